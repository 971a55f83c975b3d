"""The agent's commands. To add one, define a `Command` in its own file and register it like these."""

from palaestra.research.workspace.commands.base import (
    COMMANDS,
    BrokenCommandError,
    Command,
    CommandError,
    CommandParameter,
    CommandResult,
    Hooks,
    documentation,
    load_commands,
    tool_schemas,
)
from palaestra.research.workspace.commands.memory import Memory
from palaestra.research.workspace.commands.session import Session

for _name, _module, _description in (
    ("open", "viewing", "show a file through a window with line numbers"),
    ("goto", "viewing", "move the window to a line"),
    ("scroll_up", "viewing", "move the window up"),
    ("scroll_down", "viewing", "move the window down"),
    ("search_dir", "viewing", "find a text in the files of a folder"),
    ("search_file", "viewing", "find a text in a file"),
    ("find_file", "viewing", "find files by name"),
    ("create", "editing", "make a file, empty or with a text"),
    ("edit", "editing", "replace lines; errors that are new roll it back"),
    ("insert", "editing", "put lines behind a line"),
    ("undo", "editing", "take changes back, one after the other"),
    ("memory_write", "actions", "write a note down"),
    ("memory_read", "actions", "search the notes"),
    ("validate", "actions", "score the work on validation data"),
    ("submit", "actions", "hand the work in"),
    ("bash", "actions", "run a text in the shell"),
):
    COMMANDS.register(_name, f"{__name__}.{_module}:{_name.upper()}", _description)

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
    "documentation",
    "load_commands",
    "tool_schemas",
]
