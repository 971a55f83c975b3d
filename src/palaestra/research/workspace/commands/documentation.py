"""Documentation of the commands for models: text for the prompt, and OpenAI tools."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from palaestra.research.workspace.commands.arguments import all_parameters
from palaestra.research.workspace.commands.base import Command, CommandParameter, load_commands

WIDTH = 100

Commands = Iterable[str | Command[Any]] | Mapping[str, Command[Any]]
"""Commands or their names; empty for all registered ones."""


def documentation(commands: Commands = ()) -> str:
    """Return the documentation for the prompt: usage, description, arguments and an example of each command."""
    return "\n\n".join(_entry(command) for command in _resolve(commands))


def tool_schemas(commands: Commands = ()) -> list[dict[str, Any]]:
    """Return the commands as strict OpenAI tools; optional arguments may be null."""
    return [
        {
            "type": "function",
            "function": {
                "name": command.name,
                "description": command.docs,
                "strict": True,
                "parameters": {
                    "type": "object",
                    "properties": {parameter.name: _property(parameter) for parameter in all_parameters(command)},
                    "required": [parameter.name for parameter in all_parameters(command)],
                    "additionalProperties": False,
                },
            },
        }
        for command in _resolve(commands)
    ]


def _resolve(commands: Commands) -> list[Command[Any]]:
    if isinstance(commands, Mapping):
        return list(commands.values())
    given = list(commands) or list(load_commands().values())
    return [load_commands([command])[command] if isinstance(command, str) else command for command in given]


def _entry(command: Command[Any]) -> str:
    lines = [command.usage if command.textual else "any other text: bash"]
    docs = command.docs
    if command.body is not None:
        docs += f" {command.body.name.upper()} stands on the lines below, down to a line that is only {command.end}."
    lines += textwrap.wrap(docs, WIDTH, initial_indent="    ", subsequent_indent="    ")
    for parameter in all_parameters(command) if command.textual else ():
        optional = "" if parameter.required else " (optional)"
        text = f"{parameter.name.upper()}{optional}: {', '.join(part for part in (parameter.description, parameter.written) if part)}"
        lines += textwrap.wrap(text, WIDTH, initial_indent="    - ", subsequent_indent="      ")
    if command.example:
        lines += ["    Example:", textwrap.indent(command.example, "        ", lambda line: True)]
    return "\n".join(lines)


def _property(parameter: CommandParameter) -> dict[str, Any]:
    kind = parameter.kind if parameter.required else [parameter.kind, "null"]
    return {"type": kind, "description": parameter.description}
