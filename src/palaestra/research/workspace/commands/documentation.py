"""The commands as a model is told of them: text for the prompt, and OpenAI tools."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from palaestra.research.workspace.commands.arguments import all_parameters
from palaestra.research.workspace.commands.base import Command, CommandParameter, load_commands

WIDTH = 100

Commands = Iterable[str | Command[Any]] | Mapping[str, Command[Any]]
"""Commands or their names; none means all that are registered."""


def documentation(commands: Commands = ()) -> str:
    """What fills the prompt: for each command how it is written, what it does, its arguments and an example."""
    return "\n\n".join(_entry(command) for command in _listed(commands))


def tool_schemas(commands: Commands = ()) -> list[dict[str, Any]]:
    """The commands as OpenAI tools. Strict: what is optional may be null."""
    return [
        {
            "type": "function",
            "function": {
                "name": command.name,
                "description": command.docs,
                "strict": True,
                "parameters": {
                    "type": "object",
                    "properties": {one.name: _property(one) for one in all_parameters(command)},
                    "required": [one.name for one in all_parameters(command)],
                    "additionalProperties": False,
                },
            },
        }
        for command in _listed(commands)
    ]


def _listed(commands: Commands) -> list[Command[Any]]:
    if isinstance(commands, Mapping):
        return list(commands.values())
    given = list(commands) or list(load_commands().values())
    return [load_commands([one])[one] if isinstance(one, str) else one for one in given]


def _entry(command: Command[Any]) -> str:
    lines = [command.usage if command.textual else "any other text: bash"]
    docs = command.docs
    if command.body is not None:
        docs += f" {command.body.name.upper()} stands on the lines below, down to a line that is only {command.end}."
    lines += textwrap.wrap(docs, WIDTH, initial_indent="    ", subsequent_indent="    ")
    for one in all_parameters(command) if command.textual else ():
        optional = "" if one.required else " (optional)"
        text = f"{one.name.upper()}{optional}: {', '.join(part for part in (one.description, one.written) if part)}"
        lines += textwrap.wrap(text, WIDTH, initial_indent="    - ", subsequent_indent="      ")
    if command.example:
        lines += ["    Example:", textwrap.indent(command.example, "        ", lambda line: True)]
    return "\n".join(lines)


def _property(parameter: CommandParameter) -> dict[str, Any]:
    kind = parameter.kind if parameter.required else [parameter.kind, "null"]
    return {"type": kind, "description": parameter.description}
