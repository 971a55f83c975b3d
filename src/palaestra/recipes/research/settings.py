"""The settings of a research run."""

from __future__ import annotations

from dataclasses import dataclass

from palaestra.recipes.metered_engines import CALL_TIMEOUT, CALL_TIMEOUT_HELP, check_call_timeout
from palaestra.recipes.settings import check_finite, check_minimum, require, setting

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
        "The model of the agent, where it asks one: openai:MODEL, ADDRESS#MODEL, a folder, a hub id, a name of the shelf.",
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
