"""The session of one episode: its shared state, and the entry points for actions as text or as tool calls."""

from __future__ import annotations

import fcntl
import json
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from palaestra.core.errors import PalaestraError, SettingsError, suggest
from palaestra.core.plugins import describe_error_within
from palaestra.core.text import clean_text
from palaestra.research.workspace.commands.base import (
    BrokenCommandError,
    Command,
    CommandError,
    CommandResult,
    Hooks,
    from_json,
    from_text,
    load_commands,
)
from palaestra.research.workspace.commands.blocklist import refuse
from palaestra.research.workspace.commands.files import FileLocation, Files, Page, ShellQuery, show_window
from palaestra.runs.files import storage_errors
from palaestra.sandbox.base import Shell

WINDOW = 100
"""The lines of a window."""
PATIENCE = 40.0
"""Seconds that the shell queries of one command may take together."""
COMMAND_AFTER_BASH = re.compile(r"\s*bash[ \t]+([A-Za-z_]\w*(?:[ \t][^;&>]*)?)\s*")
NOT_A_SCRIPT = re.compile(r"\A(?:bash: \w+: No such file or directory|\S+: \S+: cannot execute binary file)\Z")
"""A command that is typed as an argument of bash, and the answer of bash, which expects a script."""


class View(NamedTuple):
    """The lines of a file that the agent sees."""

    path: str
    first: int
    last: int
    total: int


class Change(NamedTuple):
    """A change of a workspace file by a command; `before` is `None` if the file was new."""

    relative: str
    before: bytes | None
    after: bytes
    what: str


class Session:
    """The commands of one episode and their shared state. One action at a time.

    Any input of an agent returns a `CommandResult`. Exceptions mean that something else failed:
    `SandboxError` from the shell, `BrokenCommandError` from the code of a command, `StorageError` from the memory file,
    and other errors from the hooks.

    Arguments:
        shell: the agent's shell.
        hooks: what validate and submit do.
        commands: the names of the agent's commands; all registered ones if empty.
        memory: a file that keeps notes across episodes.
        timeout: the maximum seconds of a bash command; by default the shell's own limit.

    Example:
        >>> from palaestra.sandbox import make_sandbox
        >>> shell = make_sandbox().shell(files={"main.py": "print(1)"})  # doctest: +SKIP
        >>> Session(shell, hooks).run("open main.py").text  # doctest: +SKIP
        '[file /workspace/main.py, 1 line]\\n1|print(1)'
    """

    def __init__(
        self,
        shell: Shell,
        hooks: Hooks,
        commands: Iterable[str] = (),
        memory: Path | None = None,
        timeout: float | None = None,
    ) -> None:
        self.shell, self.hooks, self.timeout = shell, hooks, timeout
        self.commands: dict[str, Command[Session]] = load_commands(commands)
        self.memory = Memory(memory)
        self.query = ShellQuery(shell, [name for name, command in self.commands.items() if command.textual])
        self.files = Files(self.query)
        self.changes: list[Change] = []
        self.view: View | None = None
        self.ok = True
        """Whether the last action succeeded."""

    def run(self, text: str) -> CommandResult:
        """Perform an action given as text: a command if the first word is one, else bash if the agent has it."""
        text = clean_text(text).replace("\r\n", "\n")
        words = text.split(None, 1)
        command = self.commands.get(words[0]) if words else None
        if command is not None and command.textual:
            return self._perform(command, lambda: from_text(command, text))
        if "bash" not in self.commands:
            name = words[0][:80] if words else ""
            message = f"there is no command '{name}', and no bash; a message is one of: {', '.join(self.commands)}"
            return self._record(CommandResult(message, False, "error"))
        return self._record(self.run_bash(text))

    def call(self, name: str, arguments: Mapping[str, Any] | str) -> CommandResult:
        """Perform an action given as a tool call, including `bash`; the arguments may be JSON text."""
        command = self.commands.get(name)
        if command is None:
            message = f"there is no tool '{name[:80]}'; {suggest(name[:80], self.commands)}"
            return self._record(CommandResult(message, False, "error"))
        return self._perform(command, lambda: from_json(command, arguments))

    def run_bash(self, text: str) -> CommandResult:
        """Run a text in the agent's shell, unless it starts an interactive program."""
        refusal = refuse(text)
        if refusal is not None:
            return CommandResult(refusal, ok=False, kind="blocked")
        result = self.query.execute(text, self.timeout)
        output = (self.query.take_stray() + result.output).decode("utf-8", "replace").rstrip("\n")
        if (command := COMMAND_AFTER_BASH.fullmatch(text)) and NOT_A_SCRIPT.match(output):
            return self.run_bash(command[1])  # Nothing has run: `bash ls` would run a script named ls.
        note = result.note or ("" if result.ok else f"exit code {result.exit_code}")
        return CommandResult(output, result.ok, "bash", note, result.exit_code, result.seconds)

    def state(self) -> dict[str, Any]:
        """Return the state for templates: `open_file`, `working_dir`, the `window` as `FIRST-LAST of TOTAL`, and `ok`,
        whether the last action succeeded.

        File and window are empty if no file is open.
        """
        view = self.view
        return {
            "open_file": "" if view is None else view.path,
            "working_dir": self.query.folder,
            "window": "" if view is None else f"{view.first}-{view.last} of {view.total}",
            "ok": self.ok,
        }

    # For commands

    @property
    def first_line(self) -> int:
        """The first line of the open window."""
        return 1 if self.view is None else self.view.first

    def locate_open_file(self, name: str) -> FileLocation:
        """Return the open file, for the command `name`."""
        if self.view is None:
            raise CommandError(f"{name}: no file is open. Open one first: open PATH")
        location = self.files.locate(self.view.path)
        if location.kind != "file":
            self.view = None
            return self.files.existing(location.path)  # Raises with the actual kind.
        return location

    def show(self, location: FileLocation, first: int) -> str:
        """Open a file at a line and return its window."""
        return self._show_page(location, self.files.page(location, first, WINDOW))

    def show_line(self, location: FileLocation, line: int, clamp: bool = False) -> str:
        """Open a file and show a line, with some lines above it.

        Arguments:
            clamp: show the last line instead of one beyond the end.
        """
        if line < 1:
            raise CommandError(f"LINE counts from 1; got {line}")
        page = self.files.page(location, line - WINDOW // 4, WINDOW)
        if line > max(1, page.total) and not clamp:
            raise CommandError(f"'{location.given}' has {page.total} lines; there is no line {line}")
        return self._show_page(location, page)

    def _show_page(self, location: FileLocation, page: Page) -> str:
        self.set_view(location, page)
        return show_window(location.path, page, "" if location.relative is not None else "read-only")

    def set_view(self, location: FileLocation, page: Page) -> None:
        """Set the open window."""
        self.view = View(location.path, page.first, page.first + max(0, len(page.lines) - 1), page.total)

    def _perform(self, command: Command[Session], arguments: Callable[[], Mapping[str, Any]]) -> CommandResult:
        start = time.monotonic()
        self.query.deadline = start + min(PATIENCE, self.timeout or PATIENCE)
        try:
            done = command.perform(self, arguments())
        except CommandError as error:
            done = CommandResult(str(error), ok=False, kind="error")
        except PalaestraError:
            raise
        except Exception as error:  # A user-defined command may raise anything.
            code = getattr(command.perform, "__code__", None)
            raise BrokenCommandError(
                command.name, describe_error_within(error, Path(code.co_filename if code else "/"))
            ) from error
        finally:
            self.query.deadline = math.inf
        outcome = CommandResult(done) if isinstance(done, str) else done
        if not isinstance(outcome, CommandResult):
            raise BrokenCommandError(
                command.name, f"it must return a text or a CommandResult; got {type(done).__name__}"
            )
        seconds = outcome.seconds or time.monotonic() - start
        return self._record(replace(outcome, name=command.name, seconds=seconds))

    def _record(self, outcome: CommandResult) -> CommandResult:
        self.ok = outcome.ok
        return outcome


BEGINNING = b'{"key": '
"""The beginning of every line of a memory file."""


class Memory:
    """Notes by key; a new note replaces the one with the same key.

    Arguments:
        path: a JSON Lines file for the notes, which several sessions may share. `None` keeps them in memory.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._lines: list[bytes] = []

    def write(self, key: str, text: str) -> None:
        """Store a note.

        Raises:
            StorageError: the file cannot be written.
        """
        line = json.dumps({"key": key, "text": text}).encode()
        if self.path is None:
            self._lines.append(line)
            return
        with storage_errors(self.path, "writing an agent's memory"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "ab") as stream:
                fcntl.flock(stream, fcntl.LOCK_EX)
                # A line that was cut by a kill is terminated first, so that this note is not appended to it.
                cut = not (self.path.read_bytes() or b"\n").endswith(b"\n")
                stream.write((b"\n" if cut else b"") + line + b"\n")

    def notes(self) -> dict[str, str]:
        """Return all notes, the oldest first."""
        lines = self._lines
        if self.path is not None:
            lines = self.path.read_bytes().splitlines() if self.path.exists() else []
        notes: dict[str, str] = {}
        for note in filter(None, map(_parse_note, lines)):
            notes.pop(note[0], None)
            notes[note[0]] = note[1]
        return notes

    def search(self, query: str) -> list[tuple[str, str]]:
        """Return the notes that share words with `query`, those with more and rarer ones first; without a query, the
        newest first.
        """
        newest = list(reversed(self.notes().items()))
        if not query.strip():
            return newest
        words = {key: Counter(_split_words(f"{key} {text}")) for key, text in newest}
        spread = {word: sum(word in counts for counts in words.values()) for word in set(_split_words(query))}

        def weight(note: tuple[str, str]) -> float:
            counts = words[note[0]]
            shared = [word for word in spread if counts[word]]
            return sum((1 + math.log(counts[word])) * math.log(1 + len(newest) / spread[word]) for word in shared)

        return [note for note in sorted(newest, key=weight, reverse=True) if weight(note) > 0]


def check_memory(path: Path) -> None:
    """Raise if notes cannot be stored at a path.

    Raises:
        SettingsError: it is a folder, or a file without notes.
        StorageError: it cannot be read.
    """
    if path.is_dir():
        raise SettingsError(f"the memory must be a file; {path} is a folder")
    above = next(folder for folder in path.parents if folder.exists())
    if not above.is_dir():
        raise SettingsError(f"the memory must be a file in a folder; {above} is not a folder")
    with storage_errors(path, "reading an agent's memory"):
        lines = [line for line in path.read_bytes().splitlines() if line.strip()] if path.exists() else []
    # The only line may have been cut by a kill.
    cut = len(lines) == 1 and lines[0].startswith(BEGINNING)
    if lines and not cut and not any(map(_parse_note, lines)):
        raise SettingsError(f"the memory must be a file of notes; no line of {path} is a note")


def _parse_note(line: bytes) -> tuple[str, str] | None:
    """Return key and text of a note; `None` if the line is not a note."""
    try:
        note = json.loads(line)
        return str(note["key"]), str(note["text"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _split_words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower().replace("_", " "))
