"""The agent's commands. To add one, define a `Command` in its own file and register it like these."""

from palaestra.research.workspace.commands.base import (
    COMMANDS,
    BrokenCommandError,
    Command,
    CommandError,
    CommandParameter,
    CommandResult,
    Hooks,
    load_commands,
)
from palaestra.research.workspace.commands.blocklist import NOTHING_REFUSED, Blocklist, Rule
from palaestra.research.workspace.commands.documentation import documentation, tool_schemas
from palaestra.research.workspace.commands.memory import Memory
from palaestra.research.workspace.commands.session import Session

_HERE = "palaestra.research.workspace.commands"

COMMANDS.register("open", f"{_HERE}.viewing:OPEN", "show a file through a window with line numbers")
COMMANDS.register("goto", f"{_HERE}.viewing:GOTO", "move the window to a line")
COMMANDS.register("scroll_up", f"{_HERE}.viewing:SCROLL_UP", "move the window up")
COMMANDS.register("scroll_down", f"{_HERE}.viewing:SCROLL_DOWN", "move the window down")
COMMANDS.register("create", f"{_HERE}.editing:CREATE", "make a file, empty or with a text")
COMMANDS.register("edit", f"{_HERE}.editing:EDIT", "replace lines; errors that are new roll it back")
COMMANDS.register("insert", f"{_HERE}.editing:INSERT", "put lines behind a line")
COMMANDS.register("undo", f"{_HERE}.editing:UNDO", "take changes back, one after the other")
COMMANDS.register("search_dir", f"{_HERE}.searching:SEARCH_DIR", "find a text in the files of a folder")
COMMANDS.register("search_file", f"{_HERE}.searching:SEARCH_FILE", "find a text in a file")
COMMANDS.register("find_file", f"{_HERE}.searching:FIND_FILE", "find files by name")
COMMANDS.register("memory_write", f"{_HERE}.note_taking:MEMORY_WRITE", "write a note down")
COMMANDS.register("memory_read", f"{_HERE}.note_taking:MEMORY_READ", "search the notes")
COMMANDS.register("validate", f"{_HERE}.submit:VALIDATE", "score the work on validation data")
COMMANDS.register("submit", f"{_HERE}.submit:SUBMIT", "hand the work in")
COMMANDS.register("bash", f"{_HERE}.bash:BASH", "run a text in the shell")

__all__ = [
    "COMMANDS",
    "NOTHING_REFUSED",
    "Blocklist",
    "BrokenCommandError",
    "Command",
    "CommandError",
    "CommandParameter",
    "CommandResult",
    "Hooks",
    "Memory",
    "Rule",
    "Session",
    "documentation",
    "load_commands",
    "tool_schemas",
]
