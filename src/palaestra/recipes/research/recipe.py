"""`palaestra research`: an agent works on a research task in a workspace, and its submission is scored."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Unpack

from palaestra.core.events import Event, Listener, ignore
from palaestra.core.plugins import load_plugins
from palaestra.core.prompts import Prompts
from palaestra.core.seeding import Seeds
from palaestra.engines.base import Engine, Sampling
from palaestra.engines.budget import Budget
from palaestra.envs.turn.base import transcript
from palaestra.envs.turn.records import TurnStopReason
from palaestra.recipes.metered_engines import (
    SharedEngines,
    check_cache,
    check_prices,
    meter_engines,
)
from palaestra.recipes.progress import RunProgress, announce_start, show_progress
from palaestra.recipes.research.episode_player import TRAJECTORY, Player, export_conversation, summarise
from palaestra.recipes.research.settings import PATHS, RECIPE, ResearchOptions, ResearchSettings
from palaestra.recipes.settings import build, load_run_settings, parse_options, require, resolve_settings, to_plain
from palaestra.recipes.summary import RecipeResult, record_run
from palaestra.research.agents import Agent, AgentContext, absolute_path, make_agent, resolve_agent
from palaestra.research.agents.history import make_history
from palaestra.research.agents.model import ModelAgent
from palaestra.research.judge.evaluation import sandbox_for
from palaestra.research.mlgym import load_mlgym
from palaestra.research.mlgym.agent_file import agent_settings
from palaestra.research.tasks.task import ResearchTask, is_task_folder, load_task
from palaestra.research.workspace.commands import documentation, load_commands
from palaestra.research.workspace.env import PROMPTS, ResearchEnv
from palaestra.research.workspace.parsing import PARSERS
from palaestra.research.workspace.step_record import Step
from palaestra.research.workspace.workspace import MeasuredSolution
from palaestra.runs.files import write_json
from palaestra.runs.run import Run, new_folder


@dataclass(frozen=True, slots=True, repr=False)
class ResearchResult(RecipeResult):
    """The result of a run: its folder and the content of its `summary.json`."""

    folder: Path
    summary: dict[str, Any]


def research(
    settings: ResearchSettings | None = None,
    *,
    out: str | Path = "",
    listener: Listener | None = None,
    progress: bool = True,
    engines: SharedEngines | None = None,
    stop: Callable[[], bool] = lambda: False,
    within: Budget | None = None,
    **values: Unpack[ResearchOptions],
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
        >>> result = palaestra.research(task="prisoners_dilemma", agent="baseline")       # doctest: +SKIP
        >>> result.summary["after"]                                                       # doctest: +SKIP
    """
    settings = resolve_paths(resolve_settings(ResearchSettings, settings, values))
    folder = Path(out) if out else new_folder(RECIPE)
    Run.check_new(folder)
    agent, env = _make_parts(settings)
    with show_progress(listener, progress and not agent.interactive, RunProgress) as listener, closing(env):
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
    changes: dict[str, Any] = {
        "agent": resolve_agent(settings.agent), "model": ModelAgent.resolve_argument(settings.model),
        "plugins": [absolute_path(name) if name.endswith(".py") else name for name in settings.plugins],
    }  # fmt: skip
    for name in PATHS:
        if (path := getattr(settings, name)) not in ("", ":memory:"):
            changes[name] = absolute_path(path)
    if settings.agent_config:
        # Explicit settings take precedence over the file.
        left = {item.name: getattr(settings, item.name) == item.default for item in fields(settings)}
        changes |= {name: value for name, value in agent_settings(changes["agent_config"]).items() if left[name]}
    if not settings.mlgym and is_task_folder(Path(settings.task)):
        changes["task"] = absolute_path(settings.task)
    return build(ResearchSettings, {**to_plain(settings), **changes})


def _make_parts(settings: ResearchSettings) -> tuple[Agent, ResearchEnv]:
    """Make the agent and the environment of a run."""
    load_plugins(settings.plugins)
    PARSERS.check(settings.parser)
    for spec in settings.history:
        make_history(spec)
    check_cache(settings.cache)
    settings.check_engine()
    task = make_task(settings)
    agent = make_agent(settings.agent, make_context(settings, task))
    check_prices(settings.max_cost, agent.model)
    sandbox_for(task, settings.sandbox)
    values: dict[str, Any] = {
        "parser": settings.parser, "tools": settings.tools, "commands": settings.commands,
        "format_errors": settings.format_errors, "format_penalty": settings.format_penalty,
        "max_turns": settings.steps, "max_seconds": settings.seconds, **agent.environment(),
    }  # fmt: skip
    env = ResearchEnv(
        task, sandbox=settings.sandbox, split="test" if agent.episodes == 1 else "validation",
        strategy=settings.strategy, demonstration=load_demonstration(settings.demonstration),
        prompts=settings.prompts, memory=settings.memory, **values,
    )  # fmt: skip
    return agent, env


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
    options = parse_options(settings.task_options, "task_options")
    if settings.mlgym:
        return load_mlgym(settings.mlgym, settings.task, **options)
    return load_task(settings.task, **options)


def make_context(
    settings: ResearchSettings,
    task: ResearchTask,
    open_model: Callable[[str], Engine] | None = None,
    baseline: Callable[[], MeasuredSolution] | None = None,
) -> AgentContext:
    """Make the context of a run's agent. Without `open_model` the agent can be made but cannot act."""
    prompts = Prompts(PROMPTS, Path(settings.prompts).expanduser() if settings.prompts else None)
    return AgentContext(
        task, settings.model, engine=open_model, engine_name=settings.engine,
        sampling=Sampling(settings.answer_tokens, settings.temperature, settings.top_p),
        history=settings.history, context_tokens=settings.context, prompts=prompts,
        command_docs="" if settings.tools else documentation(load_commands(settings.commands)), baseline=baseline,
    )  # fmt: skip


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
    messages = [m for step in steps[1:] for m in (*((step.message,) if step.message else ()), *step.observation)]
    return "\n\n".join(f"[{message.role}]\n{transcript(message)}" for message in messages)


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
    # A run that exceeds its budget ends its episode, so it cannot be resumed.
    with ExitStack() as stack:
        if engines is None:
            engines = stack.enter_context(closing(SharedEngines(settings.device, listener, settings.call_timeout)))
        calls = stack.enter_context(meter_engines(run, settings, within, resumable=False))
        models, options = engines, settings.parse_engine_options()
        context = make_context(
            settings, env.task, lambda name: calls.open(name, models.get(name, **options)), lambda: env.baseline
        )
        agent = make_agent(settings.agent, context)
        player = Player(run, env, agent, Seeds(settings.seed).derive(RECIPE), listener, calls.spent, stop)
        episodes: list[list[Step]] = []
        while len(episodes) < agent.episodes:
            episodes.append(player.play(len(episodes)))
            if episodes[-1][-1].stop_reason == TurnStopReason.INTERRUPTED:
                break
        summary = summarise(run, settings, env, agent, episodes, listener, calls.spent())
    write_json(run.folder / TRAJECTORY, export_conversation(summary, episodes[summary["kept_episode"]]))
    run.write_summary(summary)
    return ResearchResult(run.folder, summary)
