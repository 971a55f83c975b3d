"""The settings of a research run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from palaestra.core.settings import check_ranges, setting
from palaestra.recipes.engine_settings import EngineOptions, EngineSettings
from palaestra.recipes.metered_engines import CALL_TIMEOUT, CALL_TIMEOUT_HELP
from palaestra.recipes.run_settings import RunOptions, RunSettings

RECIPE = "research"
PATHS = ("mlgym", "agent_config", "prompts", "memory", "demonstration", "cache")
"""Settings that are paths."""


@dataclass(frozen=True)
class ResearchSettings(EngineSettings, RunSettings):
    """The settings of a research run: the command line's options and the content of `settings.json`."""

    task: str = setting(
        "prisoners_dilemma", "The task: a name from `palaestra research tasks`, or a folder, also of Harbor."
    )
    task_options: tuple[str, ...] = setting(
        (), "Options of an MLGym or Harbor task, each as name=value, for example metric, steps, validations."
    )
    mlgym: str = setting("", "An MLGym checkout that contains the task.")
    agent: str = setting(
        "model", "The agent: model, human, baseline, reference, script:FILE, replay:RUN, best_of:N:AGENT."
    )
    agent_config: str = setting(
        "", "An MLGym agent file (configs/agents/NAME.yaml): its templates, parser, history and tools."
    )
    model: str = setting(
        "",
        "The agent's model, if it uses one: openai:MODEL, ADDRESS#MODEL, a folder, a hub id or a registered name.",
    )
    plugins: tuple[str, ...] = setting(
        (), "Python files (my_agent.py) or modules that register agents, commands, parsers or tasks."
    )
    steps: int = setting(0, "Maximum messages of the agent; 0: the task's limit.", low=0)
    seconds: float = setting(0.0, "Maximum seconds of an episode; 0: the task's limit.", low=0)
    max_cost: float = setting(0.0, "Maximum dollars for the agent's model; 0: no limit.", low=0)
    max_calls: int = setting(0, "Maximum calls of the agent's model; 0: no limit.", low=0)
    max_tokens: int = setting(0, "Maximum tokens of these calls, in and out; 0: no limit.", low=0)
    call_timeout: float = setting(CALL_TIMEOUT, CALL_TIMEOUT_HELP, above=0)
    context: int = setting(0, "Maximum tokens of a prompt with its answer; 0: the model's limit.", low=0)
    answer_tokens: int = setting(1024, "Maximum tokens of one message of the agent.", low=1)
    temperature: float = setting(0.0, "Sampling temperature; 0: greedy decoding.", low=0)
    top_p: float = setting(
        1.0, "Nucleus sampling: sample from the most likely tokens of this total probability.", above=0, high=1
    )
    tools: bool = setting(False, "Offer the commands as tools instead of describing them in the prompt.")
    parser: str = setting("last_block", "How the action is extracted from a message; see `palaestra list parsers`.")
    commands: tuple[str, ...] = setting((), "The agent's commands; all by default.")
    history: tuple[str, ...] = setting(
        (), "History processors for long conversations, in order: last:N, closed_windows, summary:TOKENS."
    )
    strategy: bool = setting(True, "Begin with advice on how to approach the task.")
    demonstration: str = setting("", "A text file or a run folder to show the agent as an example.")
    format_errors: int = setting(3, "Consecutive unreadable messages that end the episode; 0: no limit.", low=0)
    format_penalty: float = setting(0.0, "Subtracted from the reward of each unreadable message.", low=0)
    prompts: str = setting("", "A folder of prompt templates that override the built-in ones of the same name.")
    memory: str = setting("", "A file that keeps the agent's notes across episodes.")
    cache: str = setting("", "The file that caches all model answers; empty: the user's cache, for all runs.")
    sandbox: str = setting("bubblewrap", "The sandbox of the workspace; see `palaestra list sandboxes`.")
    device: str = setting("", "The device of a local model; empty: a GPU if there is one.")
    seed: int = setting(0, "The seed of the agent's random choices.", low=0)

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def in_flight(self) -> int:
        """Concurrent model calls: an agent writes one message at a time."""
        return 1


class ResearchOptions(EngineOptions, RunOptions, total=False):
    """The fields of `ResearchSettings` as keyword arguments, for editors and type checkers."""

    task: str
    task_options: Sequence[str]
    mlgym: str
    agent: str
    agent_config: str
    model: str
    plugins: Sequence[str]
    steps: int
    seconds: float
    max_cost: float
    max_calls: int
    max_tokens: int
    call_timeout: float
    context: int
    answer_tokens: int
    temperature: float
    top_p: float
    tools: bool
    parser: str
    commands: Sequence[str]
    history: Sequence[str]
    strategy: bool
    demonstration: str
    format_errors: int
    format_penalty: float
    prompts: str
    memory: str
    cache: str
    sandbox: str
    device: str
    seed: int
