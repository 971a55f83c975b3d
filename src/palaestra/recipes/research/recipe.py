"""`palaestra research`: an agent works on a research task in a workspace, and what it hands in is scored."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palaestra.core.events import Event, Listener, ignore
from palaestra.core.seeding import Seeds
from palaestra.envs.turn.records import StopReason
from palaestra.recipes.metered_engines import (
    CALL_TIMEOUT,
    CALL_TIMEOUT_HELP,
    MeteredEngines,
    SharedEngines,
    check_cache,
    check_call_timeout,
    check_prices,
    meter_engines,
)  # fmt: skip
from palaestra.recipes.provenance import record_run
from palaestra.recipes.settings import (
    build,
    check_finite,
    check_minimum,
    load_run_settings,
    parse_options,
    require,
    resolve_settings,
    setting,
    to_plain,
)
from palaestra.runs.files import write_json
from palaestra.runs.run import Run, new_folder

if TYPE_CHECKING:
    from palaestra.core.prompts import Prompts
    from palaestra.engines.budget import Budget
    from palaestra.research.agents import Agent, Outfit
    from palaestra.research.judge.baseline import Measured
    from palaestra.research.tasks.task import ResearchTask
    from palaestra.research.workspace.env import ResearchEnv
    from palaestra.research.workspace.step_record import Step

RECIPE = "research"
NOTE = "note"
"""The phase of an event: its data have a `text` for whoever started the run."""
PATHS = ("mlgym", "agent_config", "prompts", "memory", "demonstration", "cache")
"""Settings that are paths."""


@dataclass(frozen=True)
class ResearchSettings:
    """What a run of research does. The same as the command line's options and as `settings.json`."""

    task: str = setting("prisoners_dilemma", "What is worked on: a name of `palaestra research tasks`, or a folder.")
    task_options: tuple[str, ...] = setting(
        (), "Options of a task of a checkout, each as name=value: metric, direction, submission, install, validations."
    )
    mlgym: str = setting("", "A checkout of MLGym; the task is then one of its.")
    agent: str = setting(
        "model", "Who works: model, human, baseline, reference, script:FILE, replay:RUN, best_of:N:AGENT."
    )
    agent_config: str = setting(
        "", "An agent file of MLGym (configs/agents/NAME.yaml): its templates, parser, history and tools."
    )
    model: str = setting(
        "",
        "The agent's model, if it uses one: openai:MODEL, ADDRESS#MODEL, a folder, a hub id or a registered name.",
    )
    plugins: tuple[str, ...] = setting(
        (), "Files (my_agent.py) or modules of one's own that register agents, commands, parsers or tasks."
    )
    steps: int = setting(0, "Most messages of the agent; 0: as many as the task allows.")
    seconds: float = setting(0.0, "Most seconds of an episode; 0: as many as the task allows.")
    max_cost: float = setting(0.0, "Most dollars for the agent's model; 0: no limit.")
    max_calls: int = setting(0, "Most calls of the agent's model; 0: no limit.")
    max_tokens: int = setting(0, "Most tokens of these calls, in and out; 0: no limit.")
    call_timeout: float = setting(CALL_TIMEOUT, CALL_TIMEOUT_HELP)
    context: int = setting(0, "Most tokens of a prompt and its answer; 0: as many as the model reads.")
    answer_tokens: int = setting(1024, "Most tokens of one message of the agent.")
    temperature: float = setting(0.0, "0 takes the likeliest token; above, messages are sampled.")
    top_p: float = setting(1.0, "Sample from the likeliest tokens of this probability.")
    tools: bool = setting(False, "Offer the commands as tools, instead of describing them.")
    parser: str = setting(
        "last_block", "How the action is found in a message; `palaestra list parsers` names the ways."
    )
    commands: tuple[str, ...] = setting((), "Only these commands; all if none is given.")
    history: tuple[str, ...] = setting(
        (), "What a long conversation is shortened by, in this order: last:N, closed_windows, summary:TOKENS."
    )
    strategy: bool = setting(True, "Begin with advice on how to go about it.")
    demonstration: str = setting("", "A text file, or the folder of a run, that shows the agent how others worked.")
    format_errors: int = setting(3, "Messages in a row that cannot be read until the episode ends; 0: never.")
    format_penalty: float = setting(0.0, "Taken from the reward for each of them.")
    prompts: str = setting("", "A folder of prompts that come before ours, under the same names.")
    memory: str = setting("", "A file in which the agent's notes outlive the episode.")
    cache: str = setting(
        "", "The file that keeps every answer of models; empty: one for all runs, in the user's cache."
    )
    sandbox: str = setting("bubblewrap", "Where the workspace is; `palaestra list sandboxes` names the kinds.")
    device: str = setting("", "Where a model of one's own computes; empty means a GPU where there is one.")
    seed: int = setting(0, "Seed of the agent's random choices.")

    def __post_init__(self) -> None:
        check_finite(self)
        check_call_timeout(self.call_timeout)
        check_minimum(self, 1, "answer_tokens")
        check_minimum(
            self, 0, "steps", "seconds", "max_cost", "max_calls", "max_tokens", "context", "temperature", "seed"
        )
        check_minimum(self, 0, "format_errors", "format_penalty")
        require(0 < self.top_p <= 1, f"setting 'top_p': expected above 0 and at most 1; got {self.top_p}")

    @property
    def in_flight(self) -> int:
        """An agent says one message at a time."""
        return 1


@dataclass(frozen=True, slots=True)
class ResearchResult:
    """The outcome: the run folder, and what is in its `summary.json`."""

    folder: Path
    summary: dict[str, Any]


def research(
    settings: ResearchSettings | None = None,
    *,
    out: str | Path = "",
    listener: Listener = ignore,
    engines: SharedEngines | None = None,
    stop: Callable[[], bool] = lambda: False,
    within: Budget | None = None,
    **values: Any,
) -> ResearchResult:
    """Let an agent work on a task, and score what it hands in.

    Ctrl-C ends the episode with `StopReason.INTERRUPTED`; what is there is handed in, and the run has ended. A baseline
    that was never measured on this machine is measured before the run begins.

    Arguments:
        settings: all of them at once, or give single ones as keywords.
        out: the run folder; a new one below `runs/` if empty.
        listener: is told of the progress.
        engines: open models, for several runs in one process.
        stop: whether to stop, asked between steps; then the run raises `Stopped`, and can be resumed.
        within: the budget of several runs, of which this is one.

    Raises:
        TaskError: the task's evaluator, data or baseline is broken; nothing was written.
        TotalSpentError: that budget is spent; the run can be resumed.

    Example:
        >>> from palaestra.recipes.research.recipe import research                             # doctest: +SKIP
        >>> result = research(task="prisoners_dilemma", agent="baseline")               # doctest: +SKIP
        >>> result.summary["best_submission"]                                           # doctest: +SKIP
    """
    settings = settled(resolve_settings(ResearchSettings, settings, values))
    if out:
        Run.check_new(Path(out))
    with (
        closing(_measured(settings, listener)) as env,
        Run.create(Path(out) if out else new_folder(RECIPE), RECIPE, to_plain(settings)) as run,
    ):
        return _play(run, settings, env, engines, listener, stop, within)


def resume(
    run: Run,
    *,
    listener: Listener = ignore,
    engines: SharedEngines | None = None,
    stop: Callable[[], bool] = lambda: False,
    within: Budget | None = None,
) -> ResearchResult:
    """Go on with a run whose process was killed; a run that has ended just gives its result.

    The workspace of an episode under way is gone, so its stored actions are played again in a fresh one; the agent is
    not asked for them, and its model costs nothing a second time. See `palaestra.recipes.research.episode_player`.
    """
    if run.summary is not None:
        return ResearchResult(run.folder, run.summary)
    settings = load_run_settings(ResearchSettings, run)
    with closing(_measured(settings, listener)) as env:
        return _play(run, settings, env, engines, listener, stop, within)


def check(settings: ResearchSettings) -> Agent:
    """Raise for whatever cannot be, as far as that is known without running anything; gives the agent, which cannot play."""
    return _checked(settings)[0]


def settled(settings: ResearchSettings) -> ResearchSettings:
    """The settings with absolute paths, so that a run can go on from another folder.

    Raises:
        UnknownNameError: there is no such agent.
        SettingsError: a plugin cannot be imported.
    """
    from palaestra.core.plugins import load_plugins
    from palaestra.research.agents import settled_agent, settled_path
    from palaestra.research.agents.model import ModelAgent
    from palaestra.research.tasks.task import FILE

    load_plugins(settings.plugins)  # One of them may be the agent's.
    changes: dict[str, Any] = {
        "agent": settled_agent(settings.agent), "model": ModelAgent.settled(settings.model),
        "plugins": [settled_path(name) if name.endswith(".py") else name for name in settings.plugins],
    }  # fmt: skip
    for name in PATHS:
        if (path := getattr(settings, name)) not in ("", ":memory:"):
            changes[name] = settled_path(path)
    if settings.agent_config:
        from palaestra.research.mlgym.agent_file import agent_settings

        # What the user asked for otherwise comes before the file.
        left = {one.name: getattr(settings, one.name) == one.default for one in fields(settings)}
        changes |= {name: value for name, value in agent_settings(changes["agent_config"]).items() if left[name]}
    if not settings.mlgym and (Path(settings.task) / FILE).is_file():
        changes["task"] = settled_path(settings.task)
    return build(ResearchSettings, {**to_plain(settings), **changes})


def _checked(settings: ResearchSettings) -> tuple[Agent, ResearchEnv]:
    """The agent and the environment of a run, before either of them has begun."""
    from palaestra.core.plugins import load_plugins
    from palaestra.research.agents import make_agent
    from palaestra.research.agents.history import make_history
    from palaestra.research.judge.sandboxing import sandbox_for
    from palaestra.research.workspace.parsing import PARSERS

    load_plugins(settings.plugins)
    PARSERS.check(settings.parser)
    for spec in settings.history:
        make_history(spec)
    check_cache(settings.cache)
    task = task_of(settings)
    agent = make_agent(settings.agent, outfit_of(settings, task))
    check_prices(settings.max_cost, agent.model)
    env = _environment(settings, task, agent)
    sandbox_for(task, settings.sandbox)
    return agent, env


def _measured(settings: ResearchSettings, listener: Listener) -> ResearchEnv:
    """The environment of a run, whose evaluator, data and baseline are there: what is broken in them is known now."""
    agent, env = _checked(settings)
    if agent.note:
        listener(Event(NOTE, data={"text": agent.note}))
    listener(Event("baseline"))
    env.baseline  # noqa: B018  (measured now where it never was)
    return env


def name_model(agent: str) -> str:
    """The model that an agent names itself; empty if it names none.

    >>> name_model("best_of:4:model:nano"), name_model("baseline")
    ('nano', '')
    """
    return agent.rpartition("model:")[2] if "model:" in agent else ""


def task_of(settings: ResearchSettings) -> ResearchTask:
    """The task of the settings: one of ours, of a folder, or of a checkout of MLGym."""
    from palaestra.research.tasks.task import load_task

    options = parse_options(settings.task_options, "task_options")
    if settings.mlgym:
        from palaestra.research.mlgym import load_mlgym

        return load_mlgym(settings.mlgym, settings.task, **options)
    require(not options, "setting 'task_options': only tasks of a checkout (--mlgym) have options")
    return load_task(settings.task)


def outfit_of(
    settings: ResearchSettings,
    task: ResearchTask,
    calls: MeteredEngines | None = None,
    engines: SharedEngines | None = None,
    baseline: Callable[[], Measured] | None = None,
    listener: Listener = ignore,
) -> Outfit:
    """What the agent of a run is made with; without `calls` it can be made, and not play."""
    from palaestra.engines.base import Sampling
    from palaestra.research.agents import Outfit
    from palaestra.research.workspace.commands import documentation, load_commands

    own: dict[str, Any] = {} if baseline is None else {"baseline": baseline}
    if calls is not None:
        opened = engines or SharedEngines(settings.device, listener, settings.call_timeout)
        own["engine"] = lambda name: calls.open(name, opened.get(name))
    return Outfit(
        task, settings.model, sampling=Sampling(settings.answer_tokens, settings.temperature, settings.top_p),
        history=settings.history, context=settings.context, prompts=_prompts(settings),
        command_docs="" if settings.tools else documentation(load_commands(settings.commands)), **own,
    )  # fmt: skip


def _prompts(settings: ResearchSettings) -> Prompts:
    from palaestra.core.prompts import Prompts
    from palaestra.research.workspace.env import PROMPTS

    return Prompts(PROMPTS, Path(settings.prompts).expanduser() if settings.prompts else None)


def _environment(settings: ResearchSettings, task: ResearchTask, agent: Agent) -> ResearchEnv:
    from palaestra.research.workspace.env import ResearchEnv

    values: dict[str, Any] = {
        "parser": settings.parser, "tools": settings.tools, "commands": settings.commands,
        "format_errors": settings.format_errors, "format_penalty": settings.format_penalty,
        "max_turns": settings.steps, "max_seconds": settings.seconds, **agent.environment(),
    }  # fmt: skip
    return ResearchEnv(
        task, sandbox=settings.sandbox, split="test" if agent.episodes == 1 else "validation",
        strategy=settings.strategy, demonstration=demonstration_of(settings.demonstration),
        prompts=settings.prompts, memory=settings.memory, **values,
    )  # fmt: skip


def demonstration_of(where: str) -> str:
    """The text of a file, or what was said in a run.

    Raises:
        SettingsError: there is neither.
    """
    from palaestra.envs.turn.base import transcript
    from palaestra.research.workspace.step_record import Step

    if not where:
        return ""
    path = Path(where).expanduser()
    if path.is_file():
        return path.read_text(encoding="utf-8", errors="replace").strip()
    require(path.is_dir(), f"setting 'demonstration': there is no file and no run folder {where}")
    with Run.open(path, read_only=True) as run:
        steps = run.store.steps(Step, int((run.summary or {}).get("kept_episode", 0)))
    require(len(steps) > 1, f"setting 'demonstration': the run {where} holds no step of an agent")
    said = [m for step in steps[1:] for m in (*((step.message,) if step.message else ()), *step.observation)]
    return "\n\n".join(f"[{message.role}]\n{transcript(message)}" for message in said)


def _play(
    run: Run,
    settings: ResearchSettings,
    env: ResearchEnv,
    engines: SharedEngines | None,
    listener: Listener,
    stop: Callable[[], bool],
    within: Budget | None,
) -> ResearchResult:
    """The episodes of the agent, from wherever the store is."""
    from palaestra.recipes.research.episode_player import Player
    from palaestra.recipes.research.summary import TRAJECTORY, exported, summarise
    from palaestra.research.agents import make_agent

    record_run(run, settings.model, name_model(settings.agent))
    # What a run has spent ends its episode, and with it the run: there is nothing to go on with.
    with meter_engines(run, settings, within, resumable=False) as calls:
        outfit = outfit_of(settings, env.task, calls, engines, lambda: env.baseline, listener)
        agent = make_agent(settings.agent, outfit)
        player = Player(run, env, agent, Seeds(settings.seed).derive(RECIPE), listener, calls.spent, stop)
        episodes: list[list[Step]] = []
        while len(episodes) < agent.episodes:
            episodes.append(player.play(len(episodes)))
            if episodes[-1][-1].stop_reason == StopReason.INTERRUPTED:
                break
        summary = summarise(run, settings, env, agent, episodes, listener, calls.spent())
    write_json(run.folder / TRAJECTORY, exported(summary, episodes[summary["kept_episode"]]))
    run.write_summary(summary)
    return ResearchResult(run.folder, summary)
