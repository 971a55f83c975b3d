"""What a command of the agent is: a name, parameters, docs for the prompt, and a function."""

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
"""In which the agent is told of them: others come behind, and last of all bash, which is everything else."""

SessionT = TypeVar("SessionT")
Kind = Literal["command", "bash", "blocked", "error"]


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What became of one action.

    Arguments:
        text: what the agent is shown; empty where a bash command printed nothing.
        ok: whether it did what it was asked for.
        kind: `command` one of ours, `bash` anything else, `blocked` a program that is refused, `error` a misuse of one
            of ours, which changed nothing.
        note: what is to be said beside the output of a bash command: an exit code, a time-out, a limit, a new shell.
        exit_code: of a bash command.
        seconds: that it took.
        name: of the command; empty for bash as text.
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
        """Text and note in one."""
        return "\n".join(part for part in (self.text, f"[{self.note}]" if self.note else "") if part)


class CommandError(PalaestraError):
    """A command was misused. The message goes to the agent: what was expected, what came, and what to do."""


class BrokenCommandError(SandboxError):
    """The code of a command raised, or gave what is no outcome: nobody's mistake but its author's, and no score."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"the command '{name}' broke: {why}")


class Hooks(Protocol):
    """What the environment does for the commands. Both give what the agent is told: a text, or an `CommandResult` that is not
    `ok` where nothing was scored."""

    def validate(self) -> str | CommandResult: ...

    def submit(self) -> str | CommandResult:
        """Hand the work in; the episode ends with it."""
        ...


@dataclass(frozen=True, slots=True)
class CommandParameter:
    """One argument of a command.

    Arguments:
        kind: what it is in JSON; as text an integer is written in digits.
        written: how it is written as text, which is nothing to a call of a tool.
        rest: as text it takes everything that is left of the message, as it stands.
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
        perform: does it, given the session and the arguments by name; what is optional and was not given is missing.
            Gives the text to show, or a whole `CommandResult`. Raises `CommandError` for a misuse, of which the agent is
            told; anything else that it raises ends the episode as a failure.
        docs: what it does, for the prompt: whole sentences.
        example: a whole message that uses it as text.
        body: the parameter that as text stands on the lines below the first.
        end: the line that ends the body.
        joined: what stands between the words of the first line, where it is no space.
        textual: whether it can be called as text; bash is what every other text is.
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
        """How it is written as text, for example `open PATH [LINE]`."""
        words = [one.name.upper() if one.required else f"[{one.name.upper()}]" for one in self.parameters]
        line = f"{self.name} {(self.joined or ' ').join(words)}".strip()
        if self.body is None:
            return line
        below = f"\n{self.body.name.upper()}\n{self.end}"
        return line + (below if self.body.required else f"[{below}]")

    def error(self, problem: str) -> CommandError:
        """A misuse of this command: the problem, and how it is written."""
        usage = self.usage if "\n" not in self.usage else "\n" + self.usage
        return CommandError(f"{self.name}: {problem}. Usage: {usage}")


def load_commands(names: Iterable[str] = ()) -> dict[str, Command[Any]]:
    """The commands of these names, in this order; all that are registered, without names.

    Raises:
        UnknownNameError: there is no such command.
        SettingsError: what is registered under that name is no command of that name.
    """
    ordered = sorted(COMMANDS.names(), key=lambda name: (name == "bash", (*ORDER, name).index(name)))
    found = {name: COMMANDS.get(name) for name in (tuple(names) or ordered)}
    for name, command in found.items():
        if not isinstance(command, Command) or command.name != name:
            raise SettingsError(f"what is registered as '{name}' must be a Command of that name; got {command!r}")
    return found
