"""The agent interface: an agent receives the conversation and returns the next message, or stops."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from palaestra.core.errors import SettingsError
from palaestra.core.prompts import Prompts
from palaestra.core.records import LOCAL_SCHEME, Engine, Failure, Json, Message, Sampling
from palaestra.core.registry import Registry
from palaestra.envs.turn.base import Conversation, TurnStopReason
from palaestra.research.tasks.task import ResearchTask
from palaestra.research.workspace.workspace import MeasuredSolution, Step

AGENTS = Registry("agent", "palaestra.agents")
AGENT_FILES = Registry("agent file format", "palaestra.agent_files")
"""Functions that read the settings in an agent file of another project."""


@dataclass(frozen=True, slots=True)
class Halt:
    """Returned by an agent that stops: its budget is spent, its context is full, or it has no further action.

    Arguments:
        note: a description of the reason.
        failure: what failed, if the reason is `TurnStopReason.FAILED`.
    """

    reason: TurnStopReason
    note: str = ""
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class AgentContext:
    """The inputs of an agent; each agent uses what it needs.

    Arguments:
        task: the task.
        model: the name of the default model; empty for none.
        engine_name: the engine of local models whose name has none, for example `vllm`.
        engine: opens a model by name, with its cache and budget; `None` if the agent is only checked.
        sampling: how the model's messages are sampled.
        history: history processors in order (`palaestra.research.agents.history`).
        context_tokens: the maximum tokens of a prompt with its answer; 0 for the model's own limit.
        prompts: the prompt templates.
        command_docs: documentation of the commands for the templates.
        baseline: returns the measured baseline; `None` like `engine`.
        ask: reads a line from the user after a prompt; raises `EOFError` at the end of the input.
        show: writes to the user.
    """

    task: ResearchTask
    model: str = ""
    engine_name: str = LOCAL_SCHEME
    engine: Callable[[str], Engine] | None = None
    sampling: Sampling = field(default_factory=lambda: Sampling(max_tokens=1024))
    history: tuple[str, ...] = ()
    context_tokens: int = 0
    prompts: Prompts = field(default_factory=lambda: Prompts(Path(__file__).parents[1] / "workspace" / "prompts"))
    command_docs: str = ""
    baseline: Callable[[], MeasuredSolution] | None = None
    ask: Callable[[str], str] = input
    show: Callable[[str], None] = print


class Agent:
    """Plays episodes. To add an agent, implement `act` and register the class:

        AGENTS.register("mine", "my_package.agents:Mine", "what it does")

    An agent is made before the run starts, so that wrong arguments raise early, and should not use resources until
    `begin`. Its `state` contains what a resumed run needs besides the conversation.

    Arguments:
        argument: the text after the colon in `--agent NAME:ARGUMENT`.
        context: what the agent may use.

    Example:
        >>> class Submitter(Agent):
        ...     parser = "identity"
        ...     def act(self, conversation):
        ...         return Message("assistant", "submit")
    """

    parser: str = ""
    """The output parser for its messages; empty for the one in the settings."""
    episodes: int = 1
    """The number of episodes it plays; the best by validation counts."""

    model: str = ""
    """The name of the model it uses, if any."""
    interactive: bool = False
    """Whether it reads from the keyboard; nothing else then uses the terminal."""
    replays: bool = False
    """Whether it repeats a recorded run and compares the outputs (`find_departure`)."""
    takes: str | None = None
    """The argument after the colon, for error messages; `None` for no argument."""

    def __init__(self, argument: str, context: AgentContext) -> None:
        self.argument, self.context = argument, context
        if argument and type(self).takes is None:
            raise SettingsError(f"this agent takes no argument; got ':{argument}'")

    @classmethod
    def resolve_argument(cls, argument: str) -> str:
        """Return the argument with absolute paths, for a process in another folder."""
        return argument

    def environment(self) -> Json:
        """Return arguments of `ResearchEnv` that override the settings."""
        return {"parser": self.parser, "tools": False} if self.parser else {}

    def begin(self, seed: int, tools: Sequence[Mapping[str, object]]) -> None:
        """Begin an episode.

        Arguments:
            seed: the seed of the agent's random choices.
            tools: the OpenAI tools it may call; empty if actions are text.
        """

    def act(self, conversation: Conversation) -> Message | Halt:
        """Return the next assistant message, or a `Halt`."""
        raise NotImplementedError(f"{type(self).__name__} must implement `act`")

    def find_departure(self, step: Step, output: str) -> str:
        """Describe how a step differs from the recorded one; empty if it does not. Called after each step of a replay.

        Arguments:
            output: the output of the step's commands without the template around it.
        """
        return ""

    def state(self) -> Json:
        """Return its state besides the conversation, as plain data."""
        return {}

    def restore(self, state: Json) -> None:
        """Restore a `state`; called after `begin` and before the first `act`."""


def make_agent(spec: str, context: AgentContext) -> Agent:
    """Make an agent from a specification such as `model`, `script:FILE` or `best_of:4:model:nano`.

    Raises:
        UnknownNameError: there is no such agent; suggests the nearest one.
        SettingsError: its argument is invalid.
    """
    name, argument = split_spec(spec)
    agent: Agent = AGENTS.get(name)(argument, context)
    return agent


def resolve_agent(spec: str) -> str:
    """Return the specification with absolute paths; see `Agent.resolve_argument`.

    Raises:
        UnknownNameError: there is no such agent; suggests the nearest one.
    """
    name, argument = split_spec(spec)
    kind = AGENTS.get(name)
    if not argument or not (isinstance(kind, type) and issubclass(kind, Agent)):
        return spec
    return f"{name}:{kind.resolve_argument(argument)}"


def split_spec(spec: str) -> tuple[str, str]:
    """Split a specification into name and argument, at a colon or a space.

    >>> split_spec("script:my actions.txt"), split_spec("script my:actions.txt"), split_spec("human")
    (('script', 'my actions.txt'), ('script', 'my:actions.txt'), ('human', ''))
    """
    name, *rest = re.split(r":|\s+", spec.strip(), maxsplit=1)
    return name, rest[0] if rest else ""


def absolute_path(path: str) -> str:
    """Return a path of the user as an absolute path.

    >>> absolute_path("/tmp/actions.txt")
    '/tmp/actions.txt'
    """
    return str(Path(path).expanduser().absolute())


def count_turns(conversation: Conversation) -> int:
    """Count the assistant messages."""
    return sum(message.role == "assistant" for message in conversation.messages)
