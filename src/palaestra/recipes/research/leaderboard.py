"""A leaderboard of the research runs below a folder: agents by tasks, with intervals, costs and an audit of how runs ended."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from palaestra.core.errors import RunError
from palaestra.core.records import Json
from palaestra.core.seeding import Seeds
from palaestra.core.statistics import Mean, mean_interval
from palaestra.recipes.research.episode_player import is_silent
from palaestra.recipes.research.settings import RECIPE
from palaestra.research.tasks.task import SubmissionOutcome
from palaestra.runs.files import read_json

_RESAMPLES = 2000
_COSTS = ("cost", "unpriced_calls", "unmeasured_calls", "calls", "prompt_tokens", "completion_tokens", "seconds")


@dataclass(frozen=True, slots=True)
class LeaderboardCell:
    """The runs of an agent on a task.

    Arguments:
        summaries: those of the runs.
        rewards: of the runs that have one. A run that failed has none.
    """

    summaries: tuple[Json, ...]
    rewards: tuple[float, ...]

    @property
    def mean(self) -> Mean | None:
        return mean_interval(self.rewards) if self.rewards else None

    @property
    def best(self) -> float | None:
        """The best score on the test split."""
        scores = [s["best_submission"] for s in self.summaries if s["best_submission"] is not None]
        if not scores:
            return None
        return float((max if self.summaries[0]["direction"] == "higher" else min)(scores))


@dataclass(frozen=True, slots=True)
class LeaderboardRow:
    """An agent.

    Arguments:
        cells: by task, for the tasks that it has played.
        mean: the mean reward over these tasks; `None` if no run has one.
        low, high: its 95 % bootstrap interval over runs; `None` if a task has a single run.
        costs: the sums over all runs.
        outcomes: how the submissions ended, by number of runs.
        findings: what is to be known of its runs: silent ones, penalties of the format, an evaluation in one process.
    """

    agent: str
    cells: dict[str, LeaderboardCell]
    mean: float | None
    low: float | None
    high: float | None
    costs: Json
    outcomes: dict[str, int]
    findings: dict[str, int]

    @property
    def runs(self) -> int:
        return sum(len(cell.summaries) for cell in self.cells.values())


@dataclass(frozen=True, slots=True)
class Leaderboard:
    """The agents, those with most tasks and the highest mean reward first.

    Arguments:
        tasks: the tasks, a task that was measured with another baseline as one of its own.
        unfinished: run folders without a summary.
    """

    tasks: tuple[str, ...]
    rows: tuple[LeaderboardRow, ...]
    unfinished: int


def read_leaderboard(folder: str | Path) -> Leaderboard:
    """Read all research runs below a folder, also those of benches.

    Raises:
        RunError: there is no finished research run.

    Example:
        >>> read_leaderboard("runs").rows[0].agent                          # doctest: +SKIP
        'model:openai:gpt-5'
    """
    root = Path(folder)
    summaries, unfinished = list[Json](), 0
    for path in sorted(root.rglob("settings.json")):
        if read_json(path).get("recipe") != RECIPE:
            continue
        end = path.with_name("summary.json")
        if end.exists():
            summaries.append(read_json(end))
        else:
            unfinished += 1
    if not summaries:
        raise RunError(f"expected research runs below {root}, such as those of palaestra research bench; found none")
    names = _name_tasks(summaries)
    played: dict[str, dict[str, list[Json]]] = {}
    for summary, name in zip(summaries, names, strict=True):
        played.setdefault(_name_agent(summary), {}).setdefault(name, []).append(summary)
    rows = [_make_row(agent, tasks) for agent, tasks in played.items()]
    rows.sort(key=lambda row: (-len(row.cells), -math.inf if row.mean is None else -row.mean, row.agent))
    return Leaderboard(tuple(sorted(set(names))), tuple(rows), unfinished)


def _name_agent(summary: Json) -> str:
    model = str(summary.get("model") or "")
    agent = str(summary["agent"])
    return agent if not model or model in agent else f"{agent} ({model})"


def _name_tasks(summaries: Sequence[Json]) -> list[str]:
    """The task of each run. Scores with different baselines are those of different versions of a task."""
    baselines: dict[str, list[float]] = {}
    for summary in summaries:
        known = baselines.setdefault(summary["task"], [])
        if summary["baseline"] not in known:
            known.append(summary["baseline"])
    return [
        summary["task"]
        if len(baselines[summary["task"]]) == 1
        else f"{summary['task']} (baseline {summary['baseline']:.4g})"
        for summary in summaries
    ]


def _make_row(agent: str, tasks: dict[str, list[Json]]) -> LeaderboardRow:
    cells = {}
    for task, runs in tasks.items():
        rewards = tuple(float(run["reward"]) for run in runs if run["reward"] is not None)
        cells[task] = LeaderboardCell(tuple(runs), rewards)
    everything = [run for runs in tasks.values() for run in runs]
    scored = [np.array(cell.rewards) for cell in cells.values() if cell.rewards]
    low, high = _bootstrap(scored) if scored and min(map(len, scored)) > 1 else (None, None)
    findings = Counter[str]()
    for run in everything:
        findings["silent"] += is_silent(run)
        findings["format errors"] += bool(run.get("format_errors"))
        findings["repeated calls"] += bool(run.get("calls_again"))
        findings["not accepted"] += run.get("scores", {}).get("accepted") == 0
    return LeaderboardRow(
        agent,
        cells,
        float(np.mean([part.mean() for part in scored])) if scored else None,
        low,
        high,
        {name: sum(run.get(name, 0) for run in everything) for name in _COSTS},
        dict(Counter(str(run.get("outcome", SubmissionOutcome.SCORED)) for run in everything).most_common()),
        {name: count for name, count in findings.items() if count},
    )


def _bootstrap(tasks: Sequence[np.ndarray]) -> tuple[float, float]:
    """The interval of the mean over tasks of their mean rewards. Runs are drawn within each task."""
    generator = Seeds(0).derive("leaderboard").generator()
    means = np.mean([generator.choice(part, (_RESAMPLES, len(part))).mean(1) for part in tasks], axis=0)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)
