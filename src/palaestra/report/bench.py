"""What the page of a bench shows, read from the folders of its runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from palaestra.recipes.research.bench import BenchEpisode, BenchResult
from palaestra.recipes.research.settings import ResearchSettings
from palaestra.recipes.research.summary import is_silent
from palaestra.report.appendix import SettingRow, setting_rows
from palaestra.report.profiles import ProfilesPart, profiles_part
from palaestra.report.provenance import ProvenancePart, provenance_part
from palaestra.research.standings.scores import BASELINE, Area, Measure

COSTS = (
    "seconds",
    "calls",
    "calls_again",
    "prompt_tokens",
    "completion_tokens",
    "cost",
    "unpriced_calls",
    "unmeasured_calls",
)


@dataclass(frozen=True, slots=True)
class BenchRun:
    """One run; `address` is that of its own report."""

    episode: BenchEpisode
    address: str
    started: bool
    silent: bool
    """Whether the agent said nothing."""


@dataclass(frozen=True, slots=True)
class AgentRow:
    """What an agent has used over all its runs, and how they ended; `silent` of them without a message of its own."""

    name: str
    ended: int
    planned: int
    silent: int
    reasons: dict[str, int]
    failures: dict[str, int]
    costs: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class BenchPage:
    """Everything on the page of a bench."""

    ended: bool
    tasks: tuple[str, ...]
    agents: tuple[AgentRow, ...]
    seeds: tuple[int, ...]
    runs: tuple[BenchRun, ...]
    runs_ended: int
    profiles: ProfilesPart | None
    best: Area | None
    negative: tuple[str, ...]
    """Tasks whose baseline is negative: no ratio can be made there."""
    failures: dict[str, int]
    costs: Mapping[str, float]
    settings: tuple[SettingRow, ...]
    provenance: ProvenancePart | None


def bench_page(result: BenchResult) -> BenchPage:
    """Put a bench on a page, as far as it has come."""
    agents = tuple(_agent(name, [e for e in result.episodes if e.agent == name]) for name in result.agents)
    standings = result.standings
    areas = (
        [] if standings is None else [a for a in standings.profile(Measure.SUBMISSION).areas if a.method != BASELINE]
    )
    failures: Counter[str] = Counter()
    for row in agents:
        failures.update(row.failures)
    negative = {e.task for e in result.episodes if e.summary is not None and e.summary["baseline"] < 0}
    return BenchPage(
        ended=result.ended,
        tasks=result.tasks,
        agents=agents,
        seeds=result.seeds,
        runs=tuple(_run(result, e) for e in sorted(result.episodes, key=lambda e: _order(result, e))),
        runs_ended=sum(e.summary is not None for e in result.episodes),
        profiles=None if standings is None else profiles_part(standings, result.silent),
        best=max(areas, key=lambda area: area.area, default=None),
        negative=tuple(task for task in result.tasks if task in negative),
        failures=dict(sorted(failures.items())),
        costs={name: sum(row.costs[name] for row in agents) for name in COSTS},
        settings=setting_rows(result.settings, ResearchSettings),
        provenance=provenance_part(result.folder),
    )


def _agent(name: str, episodes: list[BenchEpisode]) -> AgentRow:
    ended: list[dict[str, Any]] = [e.summary for e in episodes if e.summary is not None]
    failures: Counter[str] = Counter()
    for summary in ended:
        failures.update(summary["failures"])
    return AgentRow(
        name=name,
        ended=len(ended),
        planned=len(episodes),
        silent=sum(map(is_silent, ended)),
        reasons=dict(Counter(str(summary["stop_reason"]).replace("_", " ") for summary in ended).most_common()),
        failures=dict(sorted(failures.items())),
        costs={cost: float(sum(summary.get(cost, 0) for summary in ended)) for cost in COSTS},
    )


def _run(result: BenchResult, episode: BenchEpisode) -> BenchRun:
    started = (episode.folder / "settings.json").exists()
    # Beside the bench's own page, so that the folder can be moved.
    address = (episode.folder / "report.html").relative_to(result.folder).as_posix() if started else ""
    return BenchRun(episode, address, started, episode.summary is not None and is_silent(episode.summary))


def _order(result: BenchResult, episode: BenchEpisode) -> tuple[int, int, int]:
    return result.tasks.index(episode.task), result.agents.index(episode.agent), episode.seed
