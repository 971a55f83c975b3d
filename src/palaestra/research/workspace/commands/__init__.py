"""The agent's commands. To add one, define a `Command` in its own file and add a row to `commands.yaml`."""

from palaestra.research.workspace.commands.base import (
    COMMANDS,
    BrokenCommandError,
    Command,
    CommandError,
    CommandParameter,
    CommandResult,
    Hooks,
    command,
    documentation,
    load_commands,
    tool_schemas,
)
from palaestra.research.workspace.commands.memory import Memory
from palaestra.research.workspace.commands.session import Session

__all__ = [
    "COMMANDS",
    "BrokenCommandError",
    "Command",
    "CommandError",
    "CommandParameter",
    "CommandResult",
    "Hooks",
    "Memory",
    "Session",
    "command",
    "documentation",
    "load_commands",
    "tool_schemas",
]
