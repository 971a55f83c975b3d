"""Parses the arguments of a command from text or JSON."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from palaestra.core.errors import suggest
from palaestra.core.text import clean_text
from palaestra.research.workspace.commands.base import Command, CommandError, CommandParameter

_INTEGER = re.compile(r"[+-]?[0-9]{1,15}")


def from_text(command: Command[Any], text: str) -> dict[str, Any]:
    """Parse the arguments of a message that starts with the command's name.

    Words are split like in a shell, so that quotes keep a word with spaces together.

    Raises:
        CommandError: the syntax is wrong; includes the usage.
    """
    line, newline, below = text.strip().partition("\n")
    line = line.strip()[len(command.name) :].strip()
    if command.parameters and command.parameters[-1].rest:
        return _with_rest(command, line + newline + below)
    if command.body is None and below.strip():
        raise command.error(
            f"it stands alone, one command a message, and there is more below it: {_short(below.strip())}"
        )
    arguments: dict[str, Any] = {}
    words = _words(command, line)
    if len(words) > len(command.parameters):
        raise command.error(_too_many(command, words))
    for parameter, word in zip(command.parameters, words, strict=False):
        arguments[parameter.name] = _convert(command, parameter, word)
    _check_complete(command, arguments)
    if command.body is not None and (newline or command.body.required):
        arguments[command.body.name] = _body(command, below)
    return arguments


def from_json(command: Command[Any], arguments: Mapping[str, Any] | str) -> dict[str, Any]:
    """Parse the arguments of a tool call; null means that an argument is not given.

    Raises:
        CommandError: they are not a JSON object, or do not match the parameters.
    """
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments, strict=False) if arguments.strip() else {}
        except (ValueError, RecursionError) as error:
            raise CommandError(
                f"{command.name}: arguments are a JSON object; this is not JSON: {error}. Send the call again"
            ) from error
    if not isinstance(arguments, Mapping):
        raise CommandError(f"{command.name}: arguments are a JSON object; got {_short(str(arguments))}")
    known = {parameter.name: parameter for parameter in all_parameters(command)}
    values: dict[str, Any] = {}
    for name, value in arguments.items():
        if name not in known:
            takes = suggest(name, known) if known else "it takes none"
            raise CommandError(f"{command.name}: there is no argument {_short(str(name))}; {takes}")
        if value is not None:
            values[name] = _convert(command, known[name], value)
    _check_complete(command, values, body=True)
    return values


def all_parameters(command: Command[Any]) -> tuple[CommandParameter, ...]:
    """Return the parameters of a command, including its body."""
    return command.parameters if command.body is None else (*command.parameters, command.body)


def _words(command: Command[Any], line: str) -> list[str]:
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise command.error(f"the quotes do not match in {_short(line)} ({error})") from error
    if not command.joined:
        return words
    if len(words) == 1 and words[0].count(command.joined) == len(command.parameters) - 1:
        return words[0].split(command.joined)
    raise command.error(f"expected {command.usage.splitlines()[0]} on the first line; got {_short(line) or 'nothing'}")


def _body(command: Command[Any], below: str) -> str:
    """Return the lines before the end marker, each with its newline."""
    lines = below.split("\n")
    place = next((k for k, line in enumerate(lines) if line.strip() == command.end), None)
    if place is None:
        raise command.error(
            f"the text ends with a line that is only {command.end}; there is none, so nothing was changed"
        )
    after = "\n".join(lines[place + 1 :]).strip()
    if after:
        raise command.error(
            f"one command a message, and there is more below {command.end}: {_short(after)}; nothing was changed"
        )
    return "".join(line + "\n" for line in lines[:place])


def _with_rest(command: Command[Any], text: str) -> dict[str, Any]:
    *first, last = command.parameters
    words = text.split(None, len(first))
    arguments = {
        parameter.name: _convert(command, parameter, word) for parameter, word in zip(first, words, strict=False)
    }
    if len(words) > len(first):
        arguments[last.name] = words[-1].strip()
    _check_complete(command, arguments)
    return arguments


def _convert(command: Command[Any], parameter: CommandParameter, value: Any) -> Any:
    if parameter.kind == "string":
        if isinstance(value, str):
            return clean_text(value)
        raise command.error(f"{parameter.name.upper()} is a text; got {_short(json.dumps(value, default=str))}")
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
        return int(value)
    raise command.error(f"{parameter.name.upper()} is a whole number; got {_short(str(value))}")


def _check_complete(command: Command[Any], arguments: Mapping[str, Any], body: bool = False) -> None:
    for parameter in all_parameters(command) if body else command.parameters:
        if parameter.required and parameter.name not in arguments:
            raise command.error(f"{parameter.name.upper()} is missing ({parameter.description})")


def _too_many(command: Command[Any], words: list[str]) -> str:
    took = len(command.parameters)
    more = _short(" ".join(words[took:]))
    if not took:
        return f"it takes no arguments and stands alone; got {more}"
    return f"it takes {took} word{'s' if took > 1 else ''} at most, and got {more} besides; put quotes around a word with spaces"


def _short(text: str, most: int = 80) -> str:
    text = text if len(text) <= most else text[: most - 1] + "…"
    return f"'{text}'" if text else ""
