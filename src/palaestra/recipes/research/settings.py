"""The settings of a research run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from palaestra.core.settings import check_ranges, setting
from palaestra.engines.base import is_remote
from palaestra.recipes.settings import CALL_TIMEOUT, EngineSettings, RunSettings, check_effects

RECIPE = "research"
PATHS = ("mlgym", "agent_config", "prompts", "memory", "demonstration", "cache")
"""Settings that are paths."""


@dataclass(frozen=True)
class ResearchSettings(EngineSettings, RunSettings):
    """The settings of a research run: the command line's options and the content of `settings.json`."""

    task: str = setting("prisoners_dilemma", panel="Task", usual=True, names="research")
    """The task: a name from `palaestra list research`, or a folder, also of Harbor."""
    task_kwargs: Mapping[str, Any] = setting({}, panel="Task")
    """Options of an MLGym or Harbor task, for example metric, steps, validations."""
    mlgym: str = setting("", panel="Task")
    """An MLGym checkout that contains the task."""
    agent: str = setting("model", panel="Agent", usual=True, names="agents")
    """The agent: model, human, baseline, reference, script:FILE, replay:RUN, best_of:N:AGENT."""
    agent_config: str = setting("", panel="Agent")
    """An MLGym agent file (configs/agents/NAME.yaml): its templates, parser, history and tools."""
    model: str = setting("", panel="Model", usual=True, names="models")
    """The agent's model, if it uses one: openai:MODEL, ADDRESS#MODEL, a folder, a hub id or a registered name."""
    plugins: tuple[str, ...] = setting((), panel="Run")
    """Python files (my_agent.py) or modules that register agents, commands, parsers or tasks."""
    steps: int = setting(0, low=0, panel="Agent", usual=True)
    """Maximum messages of the agent; 0: the task's limit."""
    seconds: float = setting(0.0, low=0, panel="Agent", usual=True)
    """Maximum seconds of an episode; 0: the task's limit."""
    max_cost: float = setting(0.0, low=0, panel="Limits on model calls", usual=True)
    """Maximum dollars for the agent's model; 0: no limit."""
    max_calls: int = setting(0, low=0, panel="Limits on model calls", usual=True)
    """Maximum calls of the agent's model; 0: no limit."""
    max_tokens: int = setting(0, low=0, panel="Sampling")
    """Maximum tokens of these calls, in and out; 0: no limit."""
    call_timeout: float = setting(CALL_TIMEOUT, above=0, panel="Limits on model calls")
    """Maximum seconds to wait for one answer of a service, including retries."""
    context: int = setting(0, low=0, panel="Agent")
    """Maximum tokens of a prompt with its answer; 0: the model's limit."""
    answer_tokens: int = setting(1024, low=1, panel="Sampling", usual=True)
    """Maximum tokens of one message of the agent."""
    temperature: float = setting(0.0, low=0, panel="Sampling", usual=True)
    """Sampling temperature; 0: greedy decoding."""
    top_p: float = setting(1.0, above=0, high=1, panel="Sampling")
    """Nucleus sampling: sample from the most likely tokens of this total probability."""
    tools: bool = setting(False, panel="Agent")
    """Offer the commands as tools instead of describing them in the prompt."""
    parser: str = setting("last_block", panel="Agent", names="parsers")
    """How the action is extracted from a message; see `palaestra list parsers`."""
    commands: tuple[str, ...] = setting((), panel="Agent")
    """The agent's commands; all by default."""
    history: tuple[str, ...] = setting((), panel="Agent")
    """History processors for long conversations, in order: last:N, closed_windows, summary:TOKENS."""
    strategy: bool = setting(True, panel="Agent")
    """Begin with advice on how to approach the task."""
    demonstration: str = setting("", panel="Agent")
    """A text file or a run folder to show the agent as an example."""
    format_errors: int = setting(3, low=0, panel="Agent")
    """Consecutive unreadable messages that end the episode; 0: no limit."""
    format_penalty: float = setting(0.0, low=0, panel="Agent")
    """Subtracted from the reward of each unreadable message."""
    prompts: str = setting("", panel="Agent")
    """A folder of prompt templates that override the built-in ones of the same name."""
    memory: str = setting("", panel="Agent")
    """A file that keeps the agent's notes across episodes."""
    cache: str = setting("", panel="Limits on model calls")
    """The file that caches all model answers; empty: the user's cache, for all runs."""
    sandbox: str = setting("bubblewrap", panel="Agent", usual=True, names="sandboxes")
    """The sandbox of the workspace; see `palaestra list sandboxes`."""
    device: str = setting("", panel="Model")
    """The device of a local model; empty: a GPU if there is one."""
    seed: int = setting(0, low=0, panel="Run", usual=True)
    """The seed of the agent's random choices."""

    def __post_init__(self) -> None:
        check_ranges(self)

    def check_effects(self, model: str) -> None:
        """Raise for a setting that has no effect on a run whose agent uses `model`; empty: none."""
        own = ("model", "max_calls", "max_tokens", "context", "answer_tokens", "temperature", "device")
        asks = f"because the agent {self.agent} asks no model"
        check_effects(
            self,
            (model, asks, (*own, "top_p", "max_cost", "call_timeout")),
            (
                self.temperature or self.agent_config,
                "at temperature 0: greedy decoding samples nothing; set a temperature",
                ("top_p",),
            ),
            (not model or is_remote(model), f"because {model} is a local model", ("max_cost", "call_timeout")),
        )

    @property
    def in_flight(self) -> int:
        """Concurrent model calls: an agent writes one message at a time."""
        return 1
