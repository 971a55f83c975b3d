"""What an agent is: it is given the conversation, and says the next message, or that it stops."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from palaestra.core.errors import SettingsError
from palaestra.core.prompts import Prompts
from palaestra.core.records import Failure, Message
from palaestra.core.registry import Registry
from palaestra.engines.base import Engine, Sampling
from palaestra.envs.turn.records import Conversation, TurnStopReason
from palaestra.research.tasks.task import ResearchTask
from palaestra.research.workspace.baseline import MeasuredSolution

AGENTS = Registry("agent", "palaestra.agents")


@dataclass(frozen=True, slots=True)
class Halt:
    """An agent stops, for a reason that is not the environment's: no money, no room, nothing more to say.

    Arguments:
        note: the reason in words.
        failure: what broke, where the reason is `TurnStopReason.FAILED`.
    """

    reason: TurnStopReason
    note: str = ""
    failure: Failure | None = None


def no_engine(name: str) -> Engine:
    raise SettingsError(f"this agent was given no way to open the model {name}")


def no_baseline() -> MeasuredSolution:
    raise SettingsError("this agent was given no baseline")


def write_out(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


@dataclass(frozen=True, slots=True)
class AgentContext:
    """What agents are made with; each takes what it needs.

    Arguments:
        task: that they work on.
        model: the name of one, for agents that have one and were not told another; empty for none.
        engine: opens a model by its name, with its cache and budget.
        sampling: how a model's messages are drawn.
        history: history processors, in this order (`palaestra.research.history`).
        context_tokens: the most tokens of a prompt and its answer; 0 leaves it to the model.
        prompts: the templates.
        command_docs: the commands as templates may show them.
        baseline: the task's baseline, measured.
        ask: reads a line from a person, after a prompt; raises `EOFError` where there is none.
        show: writes to that person.
    """

    task: ResearchTask
    model: str = ""
    engine: Callable[[str], Engine] = no_engine
    sampling: Sampling = field(default_factory=lambda: Sampling(max_tokens=1024))
    history: tuple[str, ...] = ()
    context_tokens: int = 0
    prompts: Prompts = field(default_factory=lambda: Prompts(Path(__file__).parents[1] / "workspace" / "prompts"))
    command_docs: str = ""
    baseline: Callable[[], MeasuredSolution] = no_baseline
    ask: Callable[[str], str] = input
    show: Callable[[str], None] = write_out


class Agent:
    """Plays episodes. One of your own has an `act`, and a line of registration:

        AGENTS.register("mine", "my_package.agents:Mine", "what it does")

    It is made before the run, where a mistake of the user's is raised, and costs nothing until `begin`. What it knows
    beyond the conversation is in its `state`, so that a run that was killed can go on.

    Arguments:
        argument: what stands behind the colon in `--agent NAME:ARGUMENT`.
        context: what it may use.

    Example:
        >>> class Submitter(Agent):
        ...     parser = "identity"
        ...     def act(self, conversation):
        ...         return Message("assistant", "submit")
    """

    parser: str = ""
    """The output parser that reads its messages; empty for the one of the settings."""
    episodes: int = 1
    """How many episodes it plays, of which the best by validation is the one that counts."""

    model: str = ""
    """The name of the model that it asks, if it asks one."""
    interactive: bool = False
    """Whether it asks a person at the keyboard, for whom the terminal is kept free."""
    takes: str | None = None
    """What stands behind the colon, for errors; `None` for nothing."""
    note: str = ""
    """What whoever starts the run is told before it begins."""

    def __init__(self, argument: str, context: AgentContext) -> None:
        self.argument, self.context = argument, context
        if argument and type(self).takes is None:
            raise SettingsError(f"this agent takes nothing behind its name; got ':{argument}'")

    @classmethod
    def resolve_argument(cls, argument: str) -> str:
        """The same argument for a process that begins in another folder: the paths in it are absolute."""
        return argument

    def environment(self) -> Mapping[str, Any]:
        """Arguments of `ResearchEnv` that it needs to be other than the settings say."""
        return {"parser": self.parser, "tools": False} if self.parser else {}

    def begin(self, seed: int, tools: Sequence[Mapping[str, Any]]) -> None:
        """An episode begins.

        Arguments:
            seed: of the agent's own random choices in it.
            tools: what it may call, as OpenAI tools; empty where actions are text.
        """

    def act(self, conversation: Conversation) -> Message | Halt:
        """The next message of the assistant, or why there is none."""
        raise NotImplementedError(f"{type(self).__name__} needs `act`: what it says next")

    def state(self) -> Mapping[str, Any]:
        """What it knows beyond the conversation, as plain data."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Know what `state` said; called behind `begin`, before the first `act`."""


def make_agent(spec: str, context: AgentContext) -> Agent:
    """The agent that a text such as `model`, `script:FILE` or `best_of:4:model:nano` stands for.

    Raises:
        UnknownNameError: there is no such agent; names the nearest one.
        SettingsError: it cannot be made like this.
    """
    name, argument = split_spec(spec)
    agent: Agent = AGENTS.get(name)(argument, context)
    return agent


def resolve_agent(spec: str) -> str:
    """The same agent for a process that begins in another folder, as `Agent.settled` says it.

    Raises:
        UnknownNameError: there is no such agent; names the nearest one.
    """
    name, argument = split_spec(spec)
    kind = AGENTS.get(name)
    if not argument or not (isinstance(kind, type) and issubclass(kind, Agent)):
        return spec
    return f"{name}:{kind.resolve_argument(argument)}"


def split_spec(spec: str) -> tuple[str, str]:
    """The name of an agent, and what stands behind its colon; a space will do as well.

    >>> split_spec("script:my actions.txt"), split_spec("script my:actions.txt"), split_spec("human")
    (('script', 'my actions.txt'), ('script', 'my:actions.txt'), ('human', ''))
    """
    name, *rest = re.split(r":|\s+", spec.strip(), maxsplit=1)
    return name, rest[0] if rest else ""


def absolute_path(path: str) -> str:
    """A path of the user's that means the same in every folder.

    >>> absolute_path("/tmp/actions.txt")
    '/tmp/actions.txt'
    """
    return str(Path(path).expanduser().absolute())


def count_turns(conversation: Conversation) -> int:
    """Assistant messages so far."""
    return sum(message.role == "assistant" for message in conversation.messages)
