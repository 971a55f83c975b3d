"""The settings of a research run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from palaestra.core.settings import check_ranges, setting
from palaestra.engines.base import is_remote
from palaestra.recipes.metered_engines import CALL_TIMEOUT, CALL_TIMEOUT_HELP
from palaestra.recipes.settings import EngineSettings, RunSettings, check_effects

RECIPE = "research"
PATHS = ("mlgym", "agent_config", "prompts", "memory", "demonstration", "cache")
"""Settings that are paths."""


@dataclass(frozen=True)
class ResearchSettings(EngineSettings, RunSettings):
    """The settings of a research run: the command line's options and the content of `settings.json`."""

    task: str = setting(
        "prisoners_dilemma",
        "The task: a name from `palaestra list research`, or a folder, also of Harbor.",
        panel="Task",
        usual=True,
        names="research",
    )
    task_kwargs: Mapping[str, Any] = setting(
        {}, "Options of an MLGym or Harbor task, for example metric, steps, validations.", panel="Task"
    )
    mlgym: str = setting("", "An MLGym checkout that contains the task.", panel="Task")
    agent: str = setting(
        "model",
        "The agent: model, human, baseline, reference, script:FILE, replay:RUN, best_of:N:AGENT.",
        panel="Agent",
        usual=True,
        names="agents",
    )
    agent_config: str = setting(
        "", "An MLGym agent file (configs/agents/NAME.yaml): its templates, parser, history and tools.", panel="Agent"
    )
    model: str = setting(
        "",
        "The agent's model, if it uses one: openai:MODEL, ADDRESS#MODEL, a folder, a hub id or a registered name.",
        panel="Model",
        usual=True,
        names="models",
    )
    plugins: tuple[str, ...] = setting(
        (), "Python files (my_agent.py) or modules that register agents, commands, parsers or tasks.", panel="Run"
    )
    steps: int = setting(0, "Maximum messages of the agent; 0: the task's limit.", low=0, panel="Agent", usual=True)
    seconds: float = setting(
        0.0, "Maximum seconds of an episode; 0: the task's limit.", low=0, panel="Agent", usual=True
    )
    max_cost: float = setting(
        0.0, "Maximum dollars for the agent's model; 0: no limit.", low=0, panel="Limits on model calls", usual=True
    )
    max_calls: int = setting(
        0, "Maximum calls of the agent's model; 0: no limit.", low=0, panel="Limits on model calls", usual=True
    )
    max_tokens: int = setting(0, "Maximum tokens of these calls, in and out; 0: no limit.", low=0, panel="Sampling")
    call_timeout: float = setting(CALL_TIMEOUT, CALL_TIMEOUT_HELP, above=0, panel="Limits on model calls")
    context: int = setting(0, "Maximum tokens of a prompt with its answer; 0: the model's limit.", low=0, panel="Agent")
    answer_tokens: int = setting(
        1024, "Maximum tokens of one message of the agent.", low=1, panel="Sampling", usual=True
    )
    temperature: float = setting(0.0, "Sampling temperature; 0: greedy decoding.", low=0, panel="Sampling", usual=True)
    top_p: float = setting(
        1.0,
        "Nucleus sampling: sample from the most likely tokens of this total probability.",
        above=0,
        high=1,
        panel="Sampling",
    )
    tools: bool = setting(False, "Offer the commands as tools instead of describing them in the prompt.", panel="Agent")
    parser: str = setting(
        "last_block",
        "How the action is extracted from a message; see `palaestra list parsers`.",
        panel="Agent",
        names="parsers",
    )
    commands: tuple[str, ...] = setting((), "The agent's commands; all by default.", panel="Agent")
    history: tuple[str, ...] = setting(
        (),
        "History processors for long conversations, in order: last:N, closed_windows, summary:TOKENS.",
        panel="Agent",
    )
    strategy: bool = setting(True, "Begin with advice on how to approach the task.", panel="Agent")
    demonstration: str = setting("", "A text file or a run folder to show the agent as an example.", panel="Agent")
    format_errors: int = setting(
        3, "Consecutive unreadable messages that end the episode; 0: no limit.", low=0, panel="Agent"
    )
    format_penalty: float = setting(0.0, "Subtracted from the reward of each unreadable message.", low=0, panel="Agent")
    prompts: str = setting(
        "", "A folder of prompt templates that override the built-in ones of the same name.", panel="Agent"
    )
    memory: str = setting("", "A file that keeps the agent's notes across episodes.", panel="Agent")
    cache: str = setting(
        "",
        "The file that caches all model answers; empty: the user's cache, for all runs.",
        panel="Limits on model calls",
    )
    sandbox: str = setting(
        "bubblewrap",
        "The sandbox of the workspace; see `palaestra list sandboxes`.",
        panel="Agent",
        usual=True,
        names="sandboxes",
    )
    device: str = setting("", "The device of a local model; empty: a GPU if there is one.", panel="Model")
    seed: int = setting(0, "The seed of the agent's random choices.", low=0, panel="Run", usual=True)

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
