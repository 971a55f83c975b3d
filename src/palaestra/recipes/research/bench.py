"""`palaestra research bench`: tasks x agents x seeds, compared by performance profiles.

Every episode is an ordinary research run in its own folder. A stopped or killed bench continues where it was: finished
runs are read, unfinished ones resumed, the others started.

bench.json              tasks, agents, seeds, their paths and the common settings
TASK/AGENT-seedN/       a run
summary.json            the table and the standings, once all runs have ended
table.csv               one line per run
report.html             the report
"""

from __future__ import annotations

import csv
import math
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

from palaestra.core.errors import ExecutorError, PalaestraError, RunError, SettingsError, TotalSpentError
from palaestra.core.records import Event, Failure, FailureCause, Json, Listener, ignore, notice
from palaestra.core.seeding import Seeds
from palaestra.core.text import mask_settings
from palaestra.engines.budget import Budget
from palaestra.executors.base import Resources, open_executor
from palaestra.recipes.metered_engines import SharedEngines, open_cache
from palaestra.recipes.progress import RunProgress, announce_start, show_progress
from palaestra.recipes.research import recipe as research
from palaestra.recipes.research.episode_player import EpisodeStopped, is_silent
from palaestra.recipes.research.settings import RECIPE as RESEARCH
from palaestra.recipes.research.settings import ResearchSettings
from palaestra.recipes.runs import NotebookResult, hash_models
from palaestra.recipes.settings import CALL_TIMEOUT, INLINE, build, require, to_plain
from palaestra.research.standings.standings import RunScore, Standings, TaskScale, compare_methods
from palaestra.research.tasks.task import Direction
from palaestra.runs.files import PARTIAL, read_json, storage_errors, write_json, write_text
from palaestra.runs.provenance import Spending, record_provenance
from palaestra.runs.run import Run, new_folder, read_summary
from palaestra.runs.trust import check_trust, record_trust

RECIPE = "bench"
PLAN = "bench.json"
COLUMNS = (
    "task", "agent", "seed", "metric", "direction", "baseline", "best_attempt", "best_submission", "outcome",
    "reward", "steps", "validations", "silent", "stop_reason", "cost", "unpriced_calls", "seconds",
)  # fmt: skip
SUMS = ("cost", "unpriced_calls", "calls", "prompt_tokens", "completion_tokens")
"""Summary fields that are summed over the runs."""


@dataclass(frozen=True, slots=True)
class BenchEpisode:
    """One run of the bench; `summary` is `None` until it has ended.

    Arguments:
        task: the name of the task.
        agent: the agent as given.
    """

    task: str
    agent: str
    seed: int
    folder: Path
    summary: Json | None = None


@dataclass(frozen=True, slots=True)
class BenchResult(NotebookResult):
    """A bench: its folder, its runs and the standings of the finished ones.

    Arguments:
        settings: the settings that all runs share.
        standings: `None` if no run has ended.
    """

    folder: Path
    tasks: tuple[str, ...]
    agents: tuple[str, ...]
    seeds: tuple[int, ...]
    episodes: tuple[BenchEpisode, ...]
    settings: Json
    standings: Standings | None
    workers: int = 1
    total_cost: float = 0.0
    places: Mapping[str, str] = field(default_factory=dict)
    """Absolute paths of tasks and agents that are given by path."""

    @property
    def ended(self) -> bool:
        return all(episode.summary is not None for episode in self.episodes)

    def silent(self, task: str, agent: str) -> bool:
        """Whether the agent wrote no message in any run on the task. Its score is then that of the starter files."""
        summaries = [e.summary for e in self.episodes if (e.task, e.agent) == (task, agent) and e.summary is not None]
        return bool(summaries) and all(map(is_silent, summaries))


def bench(
    settings: ResearchSettings | None = None,
    *,
    tasks: Sequence[str],
    agents: Sequence[str],
    seeds: int = 1,
    workers: int = 1,
    total_cost: float = 0.0,
    executor: str = INLINE,
    resources: Resources | None = None,
    out: str | Path = "",
    listener: Listener | None = None,
    progress: bool = True,
) -> BenchResult:
    """Play every task with every agent and `seeds` seeds, starting at the settings' seed, and compare the agents.

    The same call with the same `out` continues a stopped bench. A run that fails (for example because a
    service rejects the key) does not stop the others; its exception is raised at the end, and the bench can be resumed.

    Arguments:
        settings: the settings of all runs; `task`, `agent` and `seed` come from the other arguments.
        workers: the number of parallel runs, one thread each.
        total_cost: the maximum cost of all runs in dollars (`settings.max_cost` limits each run); 0 for no limit. When
            it is spent, the remaining runs wait; repeat the call with a higher limit to continue.
        executor: where the runs take place: `"inline"` (in `workers` threads), `"processes:N"` or `"ray:ADDRESS"`. All
            nodes of a cluster need the bench's folder at the same path.
        resources: what a worker of a Ray cluster needs.
        listener: receives the progress events, instead of the display on stderr.
        progress: whether to display the progress; `PALAESTRA_PROGRESS=0` also turns the display off.

    Raises:
        SettingsError: a value is invalid.
        TotalSpentError: `total_cost` is spent.
        RunError: the folder contains something else.
    """
    settings = settings or ResearchSettings()
    require(seeds >= 1 and workers >= 1, f"a bench needs at least 1 seed and 1 worker; got {seeds} and {workers}")
    require(
        executor == INLINE or not total_cost,
        f"total_cost is shared by the threads of one process; use the executor 'inline', got '{executor}'",
    )
    require(0 <= total_cost < math.inf, f"total_cost must be 0 or more, and finite; got {total_cost}")
    _once("agent", agents)
    every = range(settings.seed, settings.seed + seeds)
    names, places = _places(replace(settings, max_cost=settings.max_cost or total_cost), tasks, agents)
    folder = Path(out) if out else new_folder(RECIPE)
    _check_folder(folder)
    common = to_plain(research.resolve_paths(settings))
    common = {name: value for name, value in common.items() if name not in ("task", "agent", "seed")}
    limits = {"workers": workers, "total_cost": total_cost}
    plan = {"recipe": RECIPE, "tasks": names, "agents": list(agents), "seeds": list(every), **limits, "places": places}
    plan = mask_settings({**plan, "settings": common})
    if (folder / PLAN).exists() and {**read_json(folder / PLAN), **limits} != plan:
        how = f"choose another --out, or resume it: palaestra resume {folder}"
        raise RunError(f"{folder} contains another bench; {how}")
    with storage_errors(folder, "making the bench's folder"):
        folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / PLAN, plan)
    record_trust(RECIPE, _list_named(plan))
    with show_progress(listener, progress, RunProgress) as listener:
        return resume(folder, executor=executor, resources=resources, listener=listener)


def read_bench(folder: Path) -> BenchResult:
    """Read a bench, whether or not all of its runs have ended.

    Raises:
        RunError: the folder contains no bench, or is damaged.
    """
    plan = read_json(folder / PLAN)
    if not isinstance(plan, dict) or not {"tasks", "agents", "seeds", "settings", "workers"} <= set(plan):
        raise RunError(f"the bench is damaged: {folder / PLAN} lacks tasks, agents, seeds, settings or workers")
    if any(_name(name) in (".", "..") for name in plan["tasks"]):
        raise RunError(f"the bench is damaged: {folder / PLAN} has a run outside of the folder")
    episodes = []
    for seed in plan["seeds"]:
        for task in plan["tasks"]:
            for agent in plan["agents"]:
                where = folder / _name(task) / f"{_name(agent)}-seed{seed}"
                episodes.append(BenchEpisode(task, agent, seed, where, read_summary(where, RESEARCH)))
    tasks, agents, seeds = (tuple(plan[name]) for name in ("tasks", "agents", "seeds"))
    limits = int(plan["workers"]), float(plan.get("total_cost", 0.0))
    standings, places = compute_standings(episodes), plan.get("places", {})
    return BenchResult(folder, tasks, agents, seeds, tuple(episodes), plan["settings"], standings, *limits, places)


def compute_standings(episodes: Sequence[BenchEpisode]) -> Standings | None:
    """Compare the agents, and the baselines, over the tasks with a finished run."""
    scales: dict[str, TaskScale] = {}
    runs: list[RunScore] = []
    for episode in episodes:
        if (summary := episode.summary) is not None:
            baselines = summary["baseline"], summary["baseline_validation"]
            scales[episode.task] = TaskScale(Direction(summary["direction"]), *baselines, summary["metric"])
            scores, failure = (tuple(summary["attempts"]), summary["best_submission"]), summary.get("failure")
            failure = failure and Failure(FailureCause(failure["cause"]), failure["message"])
            runs.append(RunScore(episode.task, episode.agent, episode.seed, *scores, failure))
    agents = [episode.agent for episode in episodes]
    runs.sort(key=lambda run: agents.index(run.method))
    return compare_methods(runs, scales, seeds=Seeds(0).derive(RECIPE)) if runs else None


def resume(
    folder: Path,
    *,
    executor: str = INLINE,
    resources: Resources | None = None,
    listener: Listener = ignore,
    trust: bool = False,
) -> BenchResult:
    """Continue a stopped bench. A finished one returns its result.

    Arguments:
        trust: as in `palaestra.resume`.
    """
    result = read_bench(folder)
    waiting = [episode for episode in result.episodes if episode.summary is None]
    if waiting:
        check_trust(folder, RECIPE, _list_named(read_json(folder / PLAN)), trust=trust)
    for episode in waiting:
        if (episode.folder / "settings.json").exists():
            with Run.open(episode.folder, read_only=True) as run:
                check_trust(run.folder, run.recipe, run.settings, trust=trust)
    models = hash_models(str(result.settings.get("model", "")), *map(research.name_model, result.agents))
    record_provenance(folder, models, ended=not waiting)
    if waiting:
        tasks, agents, runs = ", ".join(result.tasks), ", ".join(result.agents), str(len(result.episodes))
        listener(announce_start(RECIPE, folder, tasks=tasks, agents=agents, runs=runs))
        try:
            if executor == INLINE:
                _run_in_threads(result, waiting, listener)
            else:
                _run_on_workers(result, waiting, executor, resources, listener)
        except KeyboardInterrupt as error:
            error.add_note(f"palaestra resume {folder}")  # How to resume.
            raise
        result = read_bench(folder)
    # Written when all runs have ended, and again if a kill prevented that.
    summary = _summarize(result)
    write_json(folder / "summary.json", summary)
    table = StringIO()
    writer = csv.DictWriter(table, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(summary["rows"])
    write_text(folder / "table.csv", table.getvalue())
    return result


def _run_in_threads(result: BenchResult, waiting: Sequence[BenchEpisode], listener: Listener) -> None:
    """Play the runs in the threads of this process. Ctrl-C lets running commands finish; the runs can be resumed."""
    total, done, errors = len(result.episodes), len(result.episodes) - len(waiting), list[BaseException]()
    stopping, lock, queue = threading.Event(), threading.RLock(), iter(waiting)

    def tell(event: Event) -> None:
        with lock:
            listener(event)

    def work(ended: threading.Event) -> None:
        nonlocal done
        try:
            while not stopping.is_set() and (episode := next(queue, None)) is not None:
                try:
                    summary = _play_episode(result, episode, engines, stop=stopping.is_set, within=budget)
                    with lock:
                        done += 1
                        tell(_report_episode(done, total, episode, summary))
                except EpisodeStopped:
                    return
                except TotalSpentError as error:
                    with lock:
                        if not stopping.is_set():
                            errors.append(TotalSpentError(f"{error}. {done} of {total} runs have ended"))
                        stopping.set()
                except BaseException as error:  # Raised again by the waiting thread.
                    errors.append(error)
                    if not isinstance(error, PalaestraError):
                        stopping.set()
        finally:
            ended.set()

    engines, budget = _share_engines(result.settings, tell), _make_budget(result)
    ends = [threading.Event() for _ in range(min(result.workers, len(waiting)))]
    for ended in ends:
        # Daemon threads: a second Ctrl-C does not wait for them, and the sandboxes die with the process.
        threading.Thread(target=work, args=(ended,), daemon=True).start()
    try:
        # Not `join`: in Python 3.11 a thread whose `join` was interrupted counts as ended.
        for ended in ends:
            ended.wait()
    except BaseException:
        stopping.set()
        tell(notice("stopping: waiting for running commands"))
        for ended in ends:
            ended.wait()
        raise
    finally:
        engines.close()
    if len(errors) > 1 and isinstance(errors[0], PalaestraError):
        raise type(errors[0])(f"{errors[0]} (and {len(errors) - 1} more runs of the bench failed)")
    if errors:
        raise errors[0]


def _play_episode(result: BenchResult, episode: BenchEpisode, engines: SharedEngines, **options: Any) -> Json:
    """Start or continue one run; returns its summary."""
    task, agent = (result.places.get(name, name) for name in (episode.task, episode.agent))
    if (episode.folder / "settings.json").exists():
        with Run.open(episode.folder, trust=True) as run:  # Checked by `resume`.
            return research.resume(run, listener=ignore, engines=engines, **options).summary
    settings = build(ResearchSettings, {**result.settings, "task": task, "agent": agent, "seed": episode.seed})
    return research.run_research(settings, out=episode.folder, listener=ignore, engines=engines, **options).summary


def _report_episode(done: int, total: int, episode: BenchEpisode, summary: Json) -> Event:
    """An event that describes a finished run in one line."""
    best = summary["best_submission"]
    score = f"no score, {summary['outcome']}" if best is None else f"{best:.4g}"
    silent = ", 0 messages" if is_silent(summary) else ""
    name = f"{episode.task}, {episode.agent}, seed {episode.seed}"
    text = f"{done}/{total} {name}: {score} (baseline {summary['baseline']:.4g}){silent}"
    return Event("bench", done, total, 0, {"text": text})


def _share_engines(settings: Json, listener: Listener) -> SharedEngines:
    """Make the engines that all runs of a process share."""
    timeout = float(settings.get("call_timeout", CALL_TIMEOUT))
    return SharedEngines(str(settings.get("device", "")), listener, timeout)


def _play_in_worker(engines: SharedEngines, item: tuple[BenchResult, BenchEpisode]) -> Json | PalaestraError:
    """Play a run. Its error is a result, so that the other runs go on."""
    try:
        return _play_episode(*item, engines)
    except PalaestraError as error:
        return error


def _run_on_workers(
    result: BenchResult, waiting: Sequence[BenchEpisode], executor: str, resources: Resources | None, listener: Listener
) -> None:
    """Play the runs on the workers of an executor. The first error is raised at the end."""
    total, errors = len(result.episodes), list[PalaestraError]()
    done = total - len(waiting)
    plan = replace(result, folder=result.folder.absolute(), episodes=(), standings=None)
    items = [(plan, replace(episode, folder=episode.folder.absolute())) for episode in waiting]
    with open_executor(executor) as opened:
        make_engines = partial(_share_engines, result.settings, ignore)
        results = opened.map(_play_in_worker, items, make_engines, resources=resources, listener=listener)
        for episode, outcome in zip(waiting, results, strict=True):
            if isinstance(outcome, PalaestraError):
                errors.append(outcome)
            elif isinstance(outcome, Failure):
                errors.append(ExecutorError(f"{episode.folder}: {outcome.message}; resume the bench to play it"))
            else:
                done += 1
                listener(_report_episode(done, total, episode, outcome))
    if errors:
        raise errors[0]


def _list_named(plan: Json) -> Json:
    """Return everything in a plan that can name code, as settings."""
    names = {"task": plan["tasks"], "agent": plan["agents"], "places": plan.get("places", {})}
    return {**plan["settings"], **names}


def _make_budget(result: BenchResult) -> Budget | None:
    """Return the shared budget, less what finished and unfinished runs have spent."""
    if not result.total_cost:
        return None
    money = sum(episode.summary["cost"] for episode in result.episodes if episode.summary)
    with open_cache(str(result.settings.get("cache", ""))) as cache:
        for episode in result.episodes:
            if episode.summary is None and (episode.folder / "settings.json").exists():
                with Run.open(episode.folder, read_only=True) as run:
                    money += cache.spent(run.store.id).money
    advice = "repeat the command with a larger --total-cost"
    return Budget(max_cost=result.total_cost, spent=Spending(money=money), advice=advice, error=TotalSpentError)


def _places(
    settings: ResearchSettings, tasks: Sequence[str], agents: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    """Return the names of the tasks, and the paths of tasks and agents given by path. Raises if a run cannot be played."""
    names: dict[str, str] = {}
    places: dict[str, str] = {}
    for task in tasks:
        for agent in agents:
            resolved = research.resolve_paths(replace(settings, task=task, agent=agent))
            checked = research.check(resolved)
            if checked.interactive:
                how = f"palaestra research --agent {agent}"
                raise SettingsError(f"a bench does not support interactive agents; use: {how}")
            if resolved.agent != agent:
                places[agent] = resolved.agent
        names[task] = research.make_task(resolved).name
        if resolved.task != names[task]:
            places[names[task]] = resolved.task
    _once("task", [names[task] for task in tasks])
    return list(names.values()), places


def _check_folder(folder: Path) -> None:
    """Raise if the folder contains something other than a bench."""
    with storage_errors(folder, "making the bench's folder"):
        there = {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
    if there - {PLAN + PARTIAL} and PLAN not in there:
        raise RunError(f"{folder} is not empty and contains no bench; choose another --out")


def _once(what: str, several: Sequence[str]) -> None:
    if not several or not all(several):
        raise SettingsError(f"a bench needs at least 1 {what}; got {', '.join(several) or 'none'}")
    twice = [name for name, count in Counter(map(_name, several)).items() if count > 1]
    if twice:
        raise SettingsError(f"each {what} of a bench must be named once; '{twice[0]}' is repeated")


def _name(text: str) -> str:
    """Return a task or agent as a folder name."""
    return "".join(sign if sign.isalnum() or sign in "_.-" else "_" for sign in text)


def _summarize(result: BenchResult) -> Json:
    ended = [episode.summary for episode in result.episodes if episode.summary is not None]
    failures = sum((Counter(summary["failures"]) for summary in ended), Counter[str]())
    rows = []
    for episode in result.episodes:
        values = {name: (episode.summary or {}).get(name) for name in COLUMNS}
        rows.append({**values, "task": episode.task, "agent": episode.agent, "seed": episode.seed})
    return {
        "recipe": RECIPE,
        **dict.fromkeys(("before", "after", "gain", "gain_low", "gain_high", "unit")),  # Tasks have different units.
        "tasks": list(result.tasks),
        "agents": list(result.agents),
        "seeds": list(result.seeds),
        "runs": len(result.episodes),
        "stop_reasons": dict(Counter(summary["stop_reason"] for summary in ended)),
        "failures": dict(sorted(failures.items())),
        "rows": rows,
        "standings": None if result.standings is None else result.standings.model_dump(mode="json"),
        "total_cost": result.total_cost,
        **{name: sum(summary.get(name, 0) for summary in ended) for name in SUMS},
        "seconds": round(sum(summary["seconds"] for summary in ended), 1),
    }
