"""The command interface: a name, parameters, documentation and a function."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from palaestra.core.errors import PalaestraError, SandboxError, SettingsError, suggest
from palaestra.core.records import Json
from palaestra.core.registry import Registry
from palaestra.core.tables import load_table
from palaestra.core.text import clean_text

COMMANDS = Registry("command", "palaestra.commands")

_TABLE: Mapping[str, tuple[str, str]] = load_table(__file__, "commands")
for _name, (_place, _description) in _TABLE.items():
    COMMANDS.register(_name, f"{__package__}.{_place}", _description)
_WIDTH = 100
"""The width of the documentation."""

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
        """The text and the note."""
        return "\n".join(part for part in (self.text, f"[{self.note}]" if self.note else "") if part)


Perform: TypeAlias = Callable[[Any, Json], str | CommandResult]
"""The function of a command: takes the `Session` and the arguments by name."""


class CommandError(PalaestraError):
    """A command was used wrongly. The message tells the agent what was expected, what it gave and what to do."""


class BrokenCommandError(SandboxError):
    """The code of a command raised or returned something other than a result. The episode then has no score."""

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
        rest: as text it takes the whole rest of the message.
    """

    name: str
    description: str
    kind: Literal["string", "integer"] = "string"
    required: bool = True
    rest: bool = False


@dataclass(frozen=True, slots=True)
class Command:
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
        tail: a further word of the first line that only the text form accepts.
        textual: whether it can be called as text; every other text is bash.
    """

    name: str
    perform: Perform
    docs: str
    parameters: tuple[CommandParameter, ...] = ()
    example: str = ""
    body: CommandParameter | None = None
    end: str = ""
    joined: str = ""
    tail: CommandParameter | None = None
    textual: bool = True

    @property
    def all_parameters(self) -> tuple[CommandParameter, ...]:
        """The parameters, including the body."""
        return self.parameters if self.body is None else (*self.parameters, self.body)

    @property
    def usage(self) -> str:
        """The syntax as text, for example `open PATH [LINE]`."""
        words = [p.name.upper() if p.required else f"[{p.name.upper()}]" for p in self.parameters]
        line = f"{self.name} {(self.joined or ' ').join(words)}".strip()
        if self.body is None:
            return line
        below = f"\n{self.body.name.upper()}\n{self.end}"
        return line + (below if self.body.required else f"[{below}]")

    def error(self, problem: str) -> CommandError:
        """Build the error for a wrong use, with the usage."""
        usage = self.usage if "\n" not in self.usage else "\n" + self.usage
        return CommandError(f"{self.name}: {problem}. Usage: {usage}")


def command(*parameters: CommandParameter, **options: Any) -> Callable[[Perform], Command]:
    """Make a `Command` of a function: it has the function's name, and the docstring is its documentation.

    Arguments:
        options: the other fields of `Command`.
    """

    def make(perform: Perform) -> Command:
        docs = " ".join((perform.__doc__ or "").split())
        return Command(perform.__name__.strip("_"), perform, docs, parameters, **options)

    return make


def load_commands(names: Iterable[str] = ()) -> dict[str, Command]:
    """Return the commands of these names in this order, or all registered ones.

    Raises:
        UnknownNameError: there is no such command.
        SettingsError: the registered object is not a command of that name.
    """
    ordered = sorted(COMMANDS.names(), key=lambda name: (name == "bash", (*_TABLE, name).index(name)))
    commands = {name: COMMANDS.get(name) for name in (tuple(names) or ordered)}
    for name, command in commands.items():
        if not isinstance(command, Command) or command.name != name:
            raise SettingsError(f"the registered command '{name}' must be a Command of that name; got {command!r}")
    return commands


# Arguments


def from_text(command: Command, text: str) -> Json:
    """Parse the arguments of a message that starts with the command's name.

    Words are split like in a shell, so that quotes keep a word with spaces together.

    Raises:
        CommandError: the syntax is wrong; includes the usage.
    """
    line, newline, below = text.strip().partition("\n")
    line = line.strip()[len(command.name) :].strip()
    if command.parameters and command.parameters[-1].rest:
        words = (line + newline + below).split(None, len(command.parameters) - 1)
    else:
        words = _split_words(command, line)
        if command.body is None and below.strip():
            raise command.error(f"it stands alone, one command a message; got more below it: {_shorten(below.strip())}")
    parameters = command.parameters if command.tail is None else (*command.parameters, command.tail)
    if len(words) > len(parameters):
        more = _shorten(" ".join(words[len(parameters) :]))
        most = f"{len(command.parameters)} words at most"
        raise command.error(f"it stands alone, with {most}; got {more} besides. Put quotes around a word with spaces")
    pairs = zip(parameters, words, strict=False)
    arguments = {parameter.name: _convert(command, parameter, word) for parameter, word in pairs}
    _check_complete(command, command.parameters, arguments)
    if command.body is not None and (newline or command.body.required):
        arguments[command.body.name] = _parse_body(command, below)
    return arguments


def parse_arguments(command: Command, arguments: Json | str) -> Json:
    """Parse the arguments of a tool call; null means that an argument is not given.

    Raises:
        CommandError: they are not a JSON object, or do not match the parameters.
    """
    expected = f"{command.name}: arguments are a JSON object"
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments, strict=False) if arguments.strip() else {}
        except (ValueError, RecursionError) as error:
            raise CommandError(f"{expected}; this is not JSON: {error}. Send the call again") from error
    if not isinstance(arguments, Mapping):
        raise CommandError(f"{expected}; got {_shorten(str(arguments))}")
    known = {parameter.name: parameter for parameter in command.all_parameters}
    values: Json = {}
    for name, value in arguments.items():
        if name not in known:
            takes = suggest(name, known) if known else "it takes none"
            raise CommandError(f"{command.name}: there is no argument {_shorten(str(name))}; {takes}")
        if value is not None:
            values[name] = _convert(command, known[name], value)
    _check_complete(command, command.all_parameters, values)
    return values


def _split_words(command: Command, line: str) -> list[str]:
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise command.error(f"the quotes do not match in {_shorten(line)} ({error})") from error
    if not command.joined:
        return words
    if words and words[0].count(command.joined) == len(command.parameters) - 1:
        return [*words[0].split(command.joined), *words[1:]]
    raise command.error(f"expected {command.usage.splitlines()[0]} on the first line; got {_shorten(line)}")


def _parse_body(command: Command, below: str) -> str:
    """Return the lines before the end marker, each with its newline."""
    lines = below.split("\n")
    place = next((k for k, line in enumerate(lines) if line.strip() == command.end), -1)
    if place < 0:
        raise command.error(f"the text must end with a line that is only {command.end}; nothing was changed")
    if after := "\n".join(lines[place + 1 :]).strip():
        more = f"there is more below {command.end}: {_shorten(after)}"
        raise command.error(f"one command a message, and {more}; nothing was changed")
    return "".join(line + "\n" for line in lines[:place])


def _convert(command: Command, parameter: CommandParameter, value: object) -> str | int:
    if parameter.kind == "string":
        if isinstance(value, str):
            return clean_text(value)
        raise command.error(f"{parameter.name.upper()} is a text; got {_shorten(json.dumps(value, default=str))}")
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch(r"[+-]?[0-9]{1,15}", value.strip()):
        return int(value)
    raise command.error(f"{parameter.name.upper()} is a whole number; got {_shorten(str(value))}")


def _check_complete(command: Command, parameters: Iterable[CommandParameter], arguments: Json) -> None:
    for parameter in parameters:
        if parameter.required and parameter.name not in arguments:
            raise command.error(f"{parameter.name.upper()} is missing ({parameter.description})")


def _shorten(text: str) -> str:
    return f"'{text if len(text) <= 80 else text[:79] + '…'}'"


# Documentation for models


def documentation(commands: Mapping[str, Command] | None = None) -> str:
    """Return the documentation for the prompt: usage, description, arguments and an example of each command.

    Arguments:
        commands: the result of `load_commands`; by default all.
    """
    return "\n\n".join(_describe(command) for command in (commands or load_commands()).values())


def tool_schemas(commands: Mapping[str, Command] | None = None) -> list[Json]:
    """Return the commands as strict OpenAI tools; optional arguments may be null."""
    schemas: list[Json] = []
    for command in (commands or load_commands()).values():
        properties = {
            p.name: {"type": p.kind if p.required else [p.kind, "null"], "description": p.description}
            for p in command.all_parameters
        }
        schema = {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }
        function = {"name": command.name, "description": command.docs, "strict": True, "parameters": schema}
        schemas.append({"type": "function", "function": function})
    return schemas


def _describe(command: Command) -> str:
    lines = [command.usage if command.textual else "any other text: bash"]
    docs = command.docs
    if command.body is not None:
        docs += f" {command.body.name.upper()} stands on the lines below, down to a line that is only {command.end}."
    lines += textwrap.wrap(docs, _WIDTH, initial_indent="    ", subsequent_indent="    ")
    for parameter in command.all_parameters if command.textual else ():
        optional = "" if parameter.required else " (optional)"
        text = f"{parameter.name.upper()}{optional}: {parameter.description}"
        lines += textwrap.wrap(text, _WIDTH, initial_indent="    - ", subsequent_indent="      ")
    if command.example:
        lines += ["    Example:", textwrap.indent(command.example, "        ", lambda line: True)]
    return "\n".join(lines)
