"""`palaestra research`: an agent works on a research task in a workspace, and its submission is scored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from palaestra.core.errors import SettingsError
from palaestra.core.prompts import Prompts
from palaestra.core.records import Engine, Event, Json, Listener, Sampling, ignore
from palaestra.core.registry import load_plugins
from palaestra.core.seeding import Seeds
from palaestra.engines.budget import Budget
from palaestra.envs.turn.base import TurnStopReason, transcript
from palaestra.recipes.metered_engines import MeteredEngines, SharedEngines, check_cache, meter_engines
from palaestra.recipes.own_model import is_model
from palaestra.recipes.progress import announce_start, log_events
from palaestra.recipes.research.episode_player import TRAJECTORY, Player, export_conversation, list_messages, summarize
from palaestra.recipes.research.settings import PATHS, RECIPE, ResearchSettings
from palaestra.recipes.runs import RecipeResult, record_run, start_run
from palaestra.recipes.settings import build, check_prices, load_run_settings, require, resolve_settings, to_plain
from palaestra.research.agents import Agent, AgentContext, absolute_path, make_agent, resolve_agent
from palaestra.research.agents.base import AGENT_FILES
from palaestra.research.agents.history import make_history
from palaestra.research.agents.model import ModelAgent
from palaestra.research.judge.evaluation import make_judge, sandbox_for
from palaestra.research.tasks.task import CHECKOUTS, ResearchTask, is_task_folder, load_task
from palaestra.research.workspace.commands import documentation, load_commands
from palaestra.research.workspace.env import PROMPTS, ResearchEnv
from palaestra.research.workspace.parsing import PARSERS
from palaestra.research.workspace.workspace import MeasuredSolution, Step, measure
from palaestra.runs.files import storage_errors, write_json
from palaestra.runs.provenance import Spending
from palaestra.runs.run import Run

if TYPE_CHECKING:
    from palaestra.recipes.keywords import ResearchKeywords

ENVIRONMENT = (
    "parser", "tools", "commands", "format_errors", "format_penalty", "sandbox", "strategy", "prompts", "memory",
)  # fmt: skip
"""Settings that are arguments of `ResearchEnv`."""
BEGIN, END = "<!-- research tasks: begin -->", "<!-- research tasks: end -->"


@dataclass(frozen=True, slots=True, repr=False)
class ResearchResult(RecipeResult):
    """The result of a run: its folder and the content of its `summary.json`."""

    folder: Path
    summary: Json


def run_research(
    settings: ResearchSettings | None = None,
    *,
    out: str | Path = "",
    listener: Listener | None = None,
    progress: bool = True,
    engines: SharedEngines | None = None,
    stop: Callable[[], bool] = lambda: False,
    within: Budget | None = None,
    **values: Unpack[ResearchKeywords],
) -> ResearchResult:
    """Let an agent work on a task and score its submission.

    Ctrl-C ends the episode with `TurnStopReason.INTERRUPTED`, submits the current workspace and completes the run. A
    baseline that was never measured on this machine is measured before the run begins.

    Arguments:
        settings: all settings; or pass single ones as keywords.
        out: the run folder; by default a new one below `runs/`.
        listener: receives the progress events, instead of the display on stderr.
        progress: whether to display the progress; `PALAESTRA_PROGRESS=0` also turns the display off.
        engines: opens models, shared by several runs in one process.
        stop: called between steps; if it returns true, the run raises `EpisodeStopped` and can be resumed.
        within: the shared budget of several runs.

    Raises:
        TaskError: the task's evaluator, data or baseline is broken; nothing was written.
        TotalSpentError: the shared budget is spent; the run can be resumed.

    Example:
        >>> import palaestra                                                              # doctest: +SKIP
        >>> result = palaestra.run_research(task="prisoners_dilemma", agent="baseline")       # doctest: +SKIP
        >>> result.summary["after"]                                                       # doctest: +SKIP
    """
    require(not is_model(values.get("model")), "setting 'model': expected the name or folder of a model; got an object")
    given = resolve_settings(ResearchSettings, settings, values)
    settings = resolve_paths(given)
    agent, env = _make_parts(settings)
    if engines is None:  # The agents of a bench share the settings.
        given.check_effects(agent.model)
    shows = progress and not agent.interactive
    with closing(env), start_run(RECIPE, out, listener, shows) as (folder, listener):
        _announce(settings, folder, agent, env, listener)
        with Run.create(folder, RECIPE, to_plain(settings)) as run:
            return _play(run, settings, env, engines, listener, stop, within)


def resume(
    run: Run,
    *,
    listener: Listener = ignore,
    engines: SharedEngines | None = None,
    stop: Callable[[], bool] = lambda: False,
    within: Budget | None = None,
) -> ResearchResult:
    """Resume a run whose process was killed. A finished run returns its result.

    The workspace of an unfinished episode is lost, so its stored actions are replayed in a fresh one without asking the
    agent. See `palaestra.recipes.research.episode_player`.
    """
    if run.summary is not None:
        return ResearchResult(run.folder, run.summary)
    settings = load_run_settings(ResearchSettings, run)
    agent, env = _make_parts(settings)
    with closing(env):
        _announce(settings, run.folder, agent, env, listener)
        return _play(run, settings, env, engines, listener, stop, within)


def check(settings: ResearchSettings) -> Agent:
    """Check the settings as far as possible without running anything; returns the agent, which cannot act yet."""
    return _make_parts(settings)[0]


def resolve_paths(settings: ResearchSettings) -> ResearchSettings:
    """Return the settings with absolute paths, so that the run can be resumed from another folder.

    Raises:
        UnknownNameError: there is no such agent.
        SettingsError: a plugin cannot be imported.
    """
    load_plugins(settings.plugins)  # One of them may define the agent.
    plugins = [absolute_path(name) if name.endswith(".py") else name for name in settings.plugins]
    model = settings.model and ModelAgent.resolve_argument(settings.model)
    changes: Json = {"agent": resolve_agent(settings.agent), "model": model, "plugins": plugins}
    paths = {name: getattr(settings, name) for name in PATHS}
    changes |= {name: absolute_path(path) for name, path in paths.items() if path not in ("", ":memory:")}
    if settings.agent_config:
        # Explicit settings take precedence over the file.
        defaults = {item.name for item in fields(settings) if getattr(settings, item.name) == item.default}
        values = AGENT_FILES.get("mlgym")(changes["agent_config"])
        changes |= {name: value for name, value in values.items() if name in defaults}
    if not settings.mlgym and is_task_folder(Path(settings.task)):
        changes["task"] = absolute_path(settings.task)
    return build(ResearchSettings, {**to_plain(settings), **changes})


def _make_parts(settings: ResearchSettings) -> tuple[Agent, ResearchEnv]:
    """Make the agent and the environment of a run."""
    from palaestra.models.registry import check_device

    load_plugins(settings.plugins)
    PARSERS.check(settings.parser)
    for spec in settings.history:
        make_history(spec)
    check_cache(settings.cache)
    settings.check_engine()
    if settings.device:
        check_device(settings.device)
    task = make_task(settings)
    agent = make_agent(settings.agent, make_context(settings, task))
    check_prices(settings.max_cost, agent.model)
    sandbox_for(task, settings.sandbox)
    values = {name: getattr(settings, name) for name in ENVIRONMENT}
    values |= {"max_turns": settings.steps, "max_seconds": settings.seconds, **agent.environment()}
    values["demonstration"] = load_demonstration(settings.demonstration)
    return agent, ResearchEnv(task, split="test" if agent.episodes == 1 else "validation", **values)


def _announce(settings: ResearchSettings, folder: Path, agent: Agent, env: ResearchEnv, listener: Listener) -> None:
    """Announce the run and measure its baseline, so that a broken task raises now."""
    listener(announce_start(RECIPE, folder, task=env.task.name, agent=settings.agent, model=agent.model))
    listener(Event("baseline"))
    env.baseline  # noqa: B018  (measured now if it is not cached)


def name_model(agent: str) -> str:
    """Return the model in an agent's name; empty if there is none.

    >>> name_model("best_of:4:model:nano"), name_model("baseline")
    ('nano', '')
    """
    return agent.rpartition("model:")[2] if "model:" in agent else ""


def make_task(settings: ResearchSettings) -> ResearchTask:
    """Load the task of the settings: by name, from a folder (also of Harbor), or from an MLGym checkout."""
    options = dict(settings.task_kwargs)
    if settings.mlgym:
        task: ResearchTask = CHECKOUTS.get("mlgym")(settings.mlgym, settings.task, **options)
        return task
    return load_task(settings.task, **options)


def make_context(
    settings: ResearchSettings,
    task: ResearchTask,
    open_model: Callable[[str], Engine] | None = None,
    baseline: Callable[[], MeasuredSolution] | None = None,
) -> AgentContext:
    """Make the context of a run's agent. Without `open_model` the agent can be made but cannot act."""
    sampling = Sampling(settings.answer_tokens, settings.temperature, settings.top_p)
    prompts = Prompts(PROMPTS, Path(settings.prompts).expanduser() if settings.prompts else None)
    command_docs = "" if settings.tools else documentation(load_commands(settings.commands))
    model, engine, history, tokens = settings.model, settings.engine, settings.history, settings.context
    return AgentContext(task, model, engine, open_model, sampling, history, tokens, prompts, command_docs, baseline)


def load_demonstration(where: str) -> str:
    """Return the text of a file, or the transcript of a run.

    Raises:
        SettingsError: neither exists.
    """
    if not where:
        return ""
    path = Path(where).expanduser()
    if path.is_file():
        return path.read_text(encoding="utf-8", errors="replace").strip()
    require(path.is_dir(), f"setting 'demonstration': expected a file or a run folder; {where} does not exist")
    with Run.open(path, read_only=True) as run:
        steps = run.store.steps(Step, int((run.summary or {}).get("kept_episode", 0)))
    require(len(steps) > 1, f"setting 'demonstration': the run {where} contains no step of an agent")
    return "\n\n".join(f"[{message.role}]\n{transcript(message)}" for message in list_messages(steps[1:]))


def _play(
    run: Run,
    settings: ResearchSettings,
    env: ResearchEnv,
    engines: SharedEngines | None,
    listener: Listener,
    stop: Callable[[], bool],
    within: Budget | None,
) -> ResearchResult:
    """Play the remaining episodes of the agent."""
    record_run(run, settings.model, name_model(settings.agent))
    listener = log_events(run, listener)
    # A run that exceeds its budget ends its episode, so it cannot be resumed.
    with ExitStack() as stack:
        if engines is None:
            engines = stack.enter_context(closing(SharedEngines(settings.device, listener, settings.call_timeout)))
        models, options = engines, settings.engine_kwargs

        @cache
        def meter() -> MeteredEngines:
            return stack.enter_context(meter_engines(run, settings, within, resumable=False))

        def open_model(name: str) -> Engine:
            return meter().open(name, models.get(name, **options))

        def spent() -> Spending:
            return meter().spent() if is_metered or meter.cache_info().currsize else Spending()

        agent = make_agent(settings.agent, make_context(settings, env.task, open_model, lambda: env.baseline))
        is_metered = bool(agent.model or run.store.total().calls)
        player = Player(run, env, agent, Seeds(settings.seed).derive(RECIPE), listener, spent, stop)
        episodes: list[list[Step]] = []
        while len(episodes) < agent.episodes:
            episodes.append(player.play(len(episodes)))
            if episodes[-1][-1].stop_reason == TurnStopReason.INTERRUPTED:
                break
        summary = summarize(run, settings, env, agent, episodes, listener, spent())
    write_json(run.folder / TRAJECTORY, export_conversation(summary, episodes[summary["kept_episode"]]))
    run.write_summary(summary)
    return ResearchResult(run.folder, summary)


@dataclass(frozen=True, slots=True)
class MeasuredTask:
    """A task with its two measured solutions."""

    task: ResearchTask
    baseline: MeasuredSolution
    reference: MeasuredSolution


def measure_tasks(names: Sequence[str], tell: Callable[[MeasuredTask], None] = lambda _: None) -> list[MeasuredTask]:
    """Measure the baseline and the reference of each task, one after the other.

    Raises:
        TaskError: a solution cannot be made or scored.
    """
    measured = []
    for name in names:
        task = load_task(name)
        sandbox = sandbox_for(task)
        judge = make_judge(task, sandbox)
        baseline = measure(task, sandbox, judge, task.baseline, {})
        reference = measure(task, sandbox, judge, task.reference, task.reference_files())
        measured.append(MeasuredTask(task, baseline, reference))
        tell(measured[-1])
    return measured


def format_table(measured: Sequence[MeasuredTask]) -> str:
    """Return the table: the scores on both splits, the seconds to make and score each solution, and the lowest reward on
    the test split.
    """
    lines = [
        "| task | metric | baseline: validation, test | make, judge | reference: validation, test | make, judge | lowest reward |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in measured:
        metric = row.task.metric
        cells = [f"`{row.task.name}`", f"{metric.name}, {metric.direction.value}"]
        for solution in (row.baseline, row.reference):
            cells.append(f"{solution.validation.score:.4g}, {solution.test.score:.4g}")
            cells.append(f"{solution.seconds:.1f} s, {solution.test.seconds:.1f} s")
        cells.append(f"{metric.reward(None, row.baseline.test.score):.3g}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def replace_table(path: Path, table: str) -> None:
    """Replace the text between the two marks of a page.

    Raises:
        SettingsError: the page lacks the marks.
    """
    with storage_errors(path, "writing the table of tasks"):
        text = path.read_text(encoding="utf-8")
        before, begin, rest = text.partition(BEGIN)
        _, end, after = rest.partition(END)
        if not begin or not end:
            raise SettingsError(f"{path} must contain the lines '{BEGIN}' and '{END}'")
        path.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")
