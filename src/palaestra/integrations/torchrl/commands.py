"""The environment under the transforms: a research task that is given commands, and tells what came of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from palaestra.core.errors import UnknownNameError
from palaestra.core.records import Message
from palaestra.envs.turn.records import TurnStopReason
from palaestra.research.tasks.task import ResearchTask
from palaestra.research.workspace.commands import CommandResult
from palaestra.research.workspace.env import ResearchEnv
from palaestra.research.workspace.parsing import Action


class CommandEnv(ResearchEnv):
    """`ResearchEnv` whose action is a command, without a message around it, and whose answer is the bare output.

    Finding the command in a message is what `IsolateCodeBlock` does, and putting the output into words is what
    `StateToMessage` does. The system message still tells how messages are to be written, by the parser that is named.
    """

    def __init__(self, task: ResearchTask | str | Path, *, parser: str = "last_block", **arguments: Any) -> None:
        super().__init__(task, parser=parser, **arguments)
        self._parser = Found(self._parser.instructions)

    def leave(self) -> None:
        """Close the workspace; the next reset opens another."""
        self.close()
        self._closed = False

    @property
    def limit(self) -> TurnStopReason | None:
        """A limit that the episode has reached since its last command: messages that hold none take time, too."""
        return None if self.over else self._limit()

    def _shown(self, outcome: CommandResult) -> str:
        note = f"[{outcome.note}]" if outcome.note else ""
        return "\n".join(part for part in (outcome.text.rstrip("\n"), note) if part.strip())


class Found:
    """The output parser of messages in which the command was found already; it has another's instructions."""

    def __init__(self, instructions: str) -> None:
        self.instructions = instructions

    def __call__(self, message: Message) -> Action:
        return Action(message.text)


def check_arguments(name: str, maker: Callable[..., Any], given: Iterable[str]) -> None:
    """Say at once which argument nobody takes, neither `maker` nor `ResearchEnv`.

    Arguments:
        name: of the maker, for the error.

    Raises:
        UnknownNameError: with the nearest argument that there is.
    """
    taken = [one for init in (maker, ResearchEnv.__init__) for one in signature(init).parameters.values()]
    known = {one.name for one in taken if one.kind is Parameter.KEYWORD_ONLY}
    for argument in given:
        if argument not in known:
            raise UnknownNameError(f"argument of {name}", argument, known)
