"""The session of one episode: its shared state, and the entry points for actions as text or as tool calls."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from palaestra.core.errors import PalaestraError, suggest
from palaestra.core.text import clean_text
from palaestra.core.user_code import describe_error_within
from palaestra.research.workspace.commands.arguments import from_json, from_text
from palaestra.research.workspace.commands.base import (
    BrokenCommandError,
    Command,
    CommandError,
    CommandResult,
    Hooks,
    load_commands,
)
from palaestra.research.workspace.commands.blocklist import Blocklist
from palaestra.research.workspace.commands.files import Changes, FileLocation, Files, Page
from palaestra.research.workspace.commands.memory import Memory
from palaestra.research.workspace.commands.shell_query import ShellQuery
from palaestra.research.workspace.commands.window import window
from palaestra.sandbox.base import Shell

PATIENCE = 40.0
"""Seconds that the shell queries of one command may take together."""


class View(NamedTuple):
    """The lines of a file that the agent sees."""

    path: str
    first: int
    last: int
    total: int


class Session:
    """The commands of one episode and their shared state. One action at a time.

    Any input of an agent gives a `CommandResult`. Exceptions mean that something around the agent failed:
    `SandboxError` from the shell, `BrokenCommandError` from the code of a command, `StorageError` from the memory file,
    and other errors from the hooks.

    Arguments:
        shell: the agent's shell.
        hooks: what validate and submit do.
        commands: the names of the agent's commands; all registered ones if empty.
        blocklist: programs that are refused.
        window: the lines of a window.
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
        blocklist: Blocklist = Blocklist(),
        window: int = 100,
        memory: Path | None = None,
        timeout: float | None = None,
    ) -> None:
        self.shell, self.hooks, self.blocklist, self.timeout = shell, hooks, blocklist, timeout
        self.commands: dict[str, Command[Session]] = load_commands(commands)
        self.window = max(1, window)
        self.memory = Memory(memory)
        self.query = ShellQuery(shell, [name for name, command in self.commands.items() if command.textual])
        self.files = Files(self.query)
        self.changes = Changes()
        self.view: View | None = None
        self.ok, self.by_tool = True, False
        """Whether the last action succeeded; whether it was a tool call."""

    def run(self, text: str) -> CommandResult:
        """Perform an action given as text: a command if the first word is one, else bash if the agent has it."""
        text, self.by_tool = clean_text(text).replace("\r\n", "\n"), False
        words = text.split(None, 1)
        command = self.commands.get(words[0]) if words else None
        if command is not None and command.textual:
            return self._perform(command, lambda: from_text(command, text))
        if "bash" not in self.commands:
            name = clean_text(words[0][:80]) if words else ""
            message = f"there is no command '{name}', and no bash; a message is one of: {', '.join(self.commands)}"
            return self._record(CommandResult(message, False, "error"))
        return self._record(self.run_bash(text))

    def call(self, name: str, arguments: Mapping[str, Any] | str) -> CommandResult:
        """Perform an action given as a tool call, including `bash`; the arguments may be JSON text."""
        command, self.by_tool = self.commands.get(name), True
        if command is None:
            message = f"there is no tool '{name[:80]}'; {suggest(name[:80], self.commands)}"
            return self._record(CommandResult(message, False, "error"))
        return self._perform(command, lambda: from_json(command, arguments))

    def run_bash(self, text: str) -> CommandResult:
        """Run a text in the agent's shell, unless the blocklist refuses it."""
        refusal = self.blocklist.refusal(text)
        if refusal is not None:
            return CommandResult(refusal, ok=False, kind="blocked")
        result = self.query.execute(text, self.timeout)
        output = (self.query.take_stray() + result.output).decode("utf-8", "replace").rstrip("\n")
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

    def open_place(self, name: str) -> FileLocation:
        """Return the open file, for the command `name`."""
        if self.view is None:
            raise CommandError(f"{name}: no file is open. Open one first: open PATH")
        try:
            return self.files.existing(self.view.path)
        except CommandError:
            if self.files.locate(self.view.path).kind != "file":
                self.view = None
            raise

    def show(self, location: FileLocation, first: int, line: int | None = None) -> str:
        """Open a file at a line and return its window; `line` must exist."""
        page = self.files.page(location, first, self.window)
        if line is not None and line > max(1, page.total):
            raise CommandError(f"'{location.given}' has {page.total} lines; there is no line {line}")
        self.view_from(location, page)
        return window(location.path, page, "" if location.relative is not None else "read-only")

    def view_from(self, location: FileLocation, page: Page) -> None:
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
            raise BrokenCommandError(command.name, f"it gives a text or an CommandResult; got {type(done).__name__}")
        seconds = outcome.seconds or time.monotonic() - start
        return self._record(replace(outcome, name=command.name, seconds=seconds))

    def _record(self, outcome: CommandResult) -> CommandResult:
        self.ok = outcome.ok
        return outcome
