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
from palaestra.research.workspace.commands.session import Memory, Session

for _name, _module, _description in (
    ("open", "file_commands", "show a file through a window with line numbers"),
    ("goto", "file_commands", "move the window to a line"),
    ("scroll_up", "file_commands", "move the window up"),
    ("scroll_down", "file_commands", "move the window down"),
    ("search_dir", "file_commands", "find a text in the files of a folder"),
    ("search_file", "file_commands", "find a text in a file"),
    ("find_file", "file_commands", "find files by name"),
    ("create", "file_commands", "create a file, empty or with content"),
    ("edit", "file_commands", "replace lines, unless this adds errors"),
    ("insert", "file_commands", "insert lines after a line"),
    ("undo", "file_commands", "undo changes one by one"),
    ("memory_write", "actions", "write a note"),
    ("memory_read", "actions", "search the notes"),
    ("validate", "actions", "score the work on validation data"),
    ("submit", "actions", "submit the work"),
    ("bash", "actions", "as a tool: run a bash command. As text, the agent types the bash command itself"),
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
