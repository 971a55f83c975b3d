"""The agent's commands. To add one, define a `Command` in its own file and register it like these."""

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

for _name, _place, _description in (
    ("open", "file_commands:open_", "show a file through a window with line numbers"),
    ("goto", "file_commands:goto", "move the window to a line"),
    ("scroll_up", "file_commands:scroll_up", "move the window up"),
    ("scroll_down", "file_commands:scroll_down", "move the window down"),
    ("search_dir", "file_commands:search_dir", "find a text in the files of a folder"),
    ("search_file", "file_commands:search_file", "find a text in a file"),
    ("find_file", "file_commands:find_file", "find files by name"),
    ("create", "file_commands:create", "create a file, empty or with content"),
    ("edit", "file_commands:edit", "replace lines, unless this adds errors"),
    ("insert", "file_commands:insert", "insert lines after a line"),
    ("undo", "file_commands:undo", "undo changes one by one"),
    ("memory_write", "session:memory_write", "write a note"),
    ("memory_read", "session:memory_read", "search the notes"),
    ("validate", "session:validate", "score the work on validation data"),
    ("submit", "session:submit", "submit the work"),
    ("bash", "session:bash", "as a tool: run a bash command. As text, the agent types the bash command itself"),
):
    COMMANDS.register(_name, f"{__name__}.{_place}", _description)

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
