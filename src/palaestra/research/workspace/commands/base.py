"""The command interface: a name, parameters, documentation and a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

from palaestra.core.errors import PalaestraError, SandboxError, SettingsError
from palaestra.core.registry import Registry

COMMANDS = Registry("command", "palaestra.commands")

ORDER = (
    "open", "goto", "scroll_up", "scroll_down", "create", "edit", "insert", "undo", "search_dir", "search_file",
    "find_file", "memory_write", "memory_read", "validate", "submit",
)  # fmt: skip
"""The order of the commands in the prompt. Others follow, and bash comes last."""

SessionT = TypeVar("SessionT")
Kind = Literal["command", "bash", "blocked", "error"]


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of one action.

    Arguments:
        text: what the agent sees; empty if a bash command printed nothing.
        ok: whether the action succeeded.
        kind: `command` for one of ours, `bash` for anything else, `blocked` for a refused program, `error` for a wrong
            use, which changed nothing.
        note: shown with the output of a bash command: an exit code, a time-out, a limit, a new shell.
        exit_code: the exit code of a bash command.
        seconds: the duration.
        name: the name of the command; empty for bash as text.
    """

    text: str
    ok: bool = True
    kind: Kind = "command"
    note: str = ""
    exit_code: int | None = None
    seconds: float = 0.0
    name: str = ""

    @property
    def whole(self) -> str:
        """Text and note together."""
        return "\n".join(part for part in (self.text, f"[{self.note}]" if self.note else "") if part)


class CommandError(PalaestraError):
    """A command was used wrongly. The message tells the agent what was expected, what it gave and what to do."""


class BrokenCommandError(SandboxError):
    """The code of a command raised or returned something other than a result. It is an error of its author and has no
    score.
    """

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"the command '{name}' broke: {why}")


class Hooks(Protocol):
    """What the environment does for the commands. Both methods return the agent's observation: a text, or a
    `CommandResult` with `ok` false if nothing was scored.
    """

    def validate(self) -> str | CommandResult: ...

    def submit(self) -> str | CommandResult:
        """Submit the work and end the episode."""
        ...


@dataclass(frozen=True, slots=True)
class CommandParameter:
    """One argument of a command.

    Arguments:
        kind: the JSON type; as text an integer is written in digits.
        written: how it is written as text; not shown for tool calls.
        rest: as text it takes the whole rest of the message.
    """

    name: str
    description: str
    kind: Literal["string", "integer"] = "string"
    required: bool = True
    rest: bool = False
    written: str = ""


@dataclass(frozen=True, slots=True)
class Command(Generic[SessionT]):
    """A command of the agent.

    Arguments:
        perform: runs it with the session and the arguments by name; optional arguments may be missing. Returns the text
            to show or a `CommandResult`. Raises `CommandError` for wrong use, which the agent sees; any other exception
            ends the episode as a failure.
        docs: what it does, in whole sentences for the prompt.
        example: a complete message that uses it as text.
        body: the parameter on the lines below the first one, as text.
        end: the line that ends the body.
        joined: the separator of the words on the first line, if not a space.
        textual: whether it can be called as text; every other text is bash.
    """

    name: str
    perform: Callable[[SessionT, Mapping[str, Any]], str | CommandResult]
    docs: str
    parameters: tuple[CommandParameter, ...] = ()
    example: str = ""
    body: CommandParameter | None = None
    end: str = ""
    joined: str = ""
    textual: bool = True

    @property
    def usage(self) -> str:
        """The syntax as text, for example `open PATH [LINE]`."""
        words = [
            parameter.name.upper() if parameter.required else f"[{parameter.name.upper()}]"
            for parameter in self.parameters
        ]
        line = f"{self.name} {(self.joined or ' ').join(words)}".strip()
        if self.body is None:
            return line
        below = f"\n{self.body.name.upper()}\n{self.end}"
        return line + (below if self.body.required else f"[{below}]")

    def error(self, problem: str) -> CommandError:
        """Build the error for a wrong use, with the usage."""
        usage = self.usage if "\n" not in self.usage else "\n" + self.usage
        return CommandError(f"{self.name}: {problem}. Usage: {usage}")


def load_commands(names: Iterable[str] = ()) -> dict[str, Command[Any]]:
    """Return the commands of these names in this order, or all registered ones.

    Raises:
        UnknownNameError: there is no such command.
        SettingsError: the registered object is not a command of that name.
    """
    ordered = sorted(COMMANDS.names(), key=lambda name: (name == "bash", (*ORDER, name).index(name)))
    commands = {name: COMMANDS.get(name) for name in (tuple(names) or ordered)}
    for name, command in commands.items():
        if not isinstance(command, Command) or command.name != name:
            raise SettingsError(f"what is registered as '{name}' must be a Command of that name; got {command!r}")
    return commands
