"""What the commands of one episode share, and the one way in: an action as text, or as a call of a tool."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from palaestra.core.errors import PalaestraError, suggest
from palaestra.core.plugins import locate_error
from palaestra.core.text import clean_text
from palaestra.research.workspace.commands.arguments import from_json, from_text
from palaestra.research.workspace.commands.base import (
    BrokenCommandError,
    Command,
    CommandError,
    Hooks,
    Outcome,
    load_commands,
)
from palaestra.research.workspace.commands.bash import run_bash
from palaestra.research.workspace.commands.blocklist import Blocklist
from palaestra.research.workspace.commands.editing import Changes
from palaestra.research.workspace.commands.files import Files, Page, Place
from palaestra.research.workspace.commands.memory import Memory
from palaestra.research.workspace.commands.shell_query import Inside
from palaestra.research.workspace.commands.window import window
from palaestra.sandbox.base import Shell

PATIENCE = 40.0
"""Seconds that the questions of one of our commands may take together."""


class View(NamedTuple):
    """Which lines of which file the agent has before it."""

    path: str
    first: int
    last: int
    total: int


class Session:
    """The commands of one episode, and what they share. One action at a time.

    Whatever an agent writes gives an `Outcome`. What raises is broken around it: `SandboxError` from the shell,
    `BrokenCommandError` from the code of a command, `StorageError` from the memory's file, and other errors of ours from
    the hooks.

    Arguments:
        shell: the agent's.
        hooks: what validate and submit do.
        commands: the names of those that the agent has; all that are registered, without any.
        blocklist: programs that are refused.
        window: lines that a window shows.
        memory: the file in which notes outlive the episode; without it they do not.
        timeout: seconds that a bash command may take; without it, the shell's own limit holds.

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
        self.commands: dict[str, Command] = load_commands(commands)
        self.window = max(1, window)
        self.memory = Memory(memory)
        self.inside = Inside(shell, [name for name, command in self.commands.items() if command.textual])
        self.files = Files(self.inside)
        self.changes = Changes()
        self.view: View | None = None
        self.ok, self.by_tool = True, False
        """Whether the last action did what it was asked for; whether it came as a call of a tool."""

    def run(self, text: str) -> Outcome:
        """Do one action: one of our commands where the first word is one, else bash, if the agent has it."""
        text, self.by_tool = clean_text(text).replace("\r\n", "\n"), False
        words = text.split(None, 1)
        command = self.commands.get(words[0]) if words else None
        if command is not None and command.textual:
            return self._perform(command, lambda: from_text(command, text))
        if "bash" not in self.commands:
            name = clean_text(words[0][:80]) if words else ""
            said = f"there is no command '{name}', and no bash; a message is one of: {', '.join(self.commands)}"
            return self._noted(Outcome(said, False, "error"))
        return self._noted(run_bash(self, text))

    def call(self, name: str, arguments: Mapping[str, Any] | str) -> Outcome:
        """Do one action that came as a call of a tool, `bash` among them; the arguments may be JSON text."""
        command, self.by_tool = self.commands.get(name), True
        if command is None:
            said = f"there is no tool '{name[:80]}'; {suggest(name[:80], self.commands)}"
            return self._noted(Outcome(said, False, "error"))
        return self._perform(command, lambda: from_json(command, arguments))

    def state(self) -> dict[str, Any]:
        """Where the agent stands, for templates: `open_file`, `working_dir`, the `window` as `FIRST-LAST of TOTAL`, and
        whether the last action was `ok`: did what it was asked for.

        File and window are empty where no file is open.
        """
        view = self.view
        return {
            "open_file": "" if view is None else view.path,
            "working_dir": self.inside.folder,
            "window": "" if view is None else f"{view.first}-{view.last} of {view.total}",
            "ok": self.ok,
        }

    # What commands use

    def open_place(self, name: str) -> Place:
        """The open file as it is now, for the command `name`."""
        if self.view is None:
            raise CommandError(f"{name}: no file is open. Open one first: open PATH")
        try:
            return self.files.existing(self.view.path)
        except CommandError:
            if self.files.locate(self.view.path).kind != "file":
                self.view = None
            raise

    def show(self, place: Place, first: int, line: int | None = None) -> str:
        """Open a file at a line, as the agent sees it; `line` is one that must exist."""
        page = self.files.page(place, first, self.window)
        if line is not None and line > max(1, page.total):
            raise CommandError(f"'{place.given}' has {page.total} lines; there is no line {line}")
        self.view_from(place, page)
        return window(place.path, page, "" if place.relative is not None else "read-only")

    def view_from(self, place: Place, page: Page) -> None:
        """Take a page for the open window."""
        self.view = View(place.path, page.first, page.first + max(0, len(page.lines) - 1), page.total)

    def _perform(self, command: Command, arguments: Callable[[], Mapping[str, Any]]) -> Outcome:
        start = time.monotonic()
        self.inside.deadline = start + min(PATIENCE, self.timeout or PATIENCE)
        try:
            done = command.perform(self, arguments())
        except CommandError as error:
            done = Outcome(str(error), ok=False, kind="error")
        except PalaestraError:
            raise
        except Exception as error:  # A command may be anybody's.
            code = getattr(command.perform, "__code__", None)
            raise BrokenCommandError(
                command.name, locate_error(error, Path(code.co_filename if code else "/"))
            ) from error
        finally:
            self.inside.deadline = math.inf
        outcome = Outcome(done) if isinstance(done, str) else done
        if not isinstance(outcome, Outcome):
            raise BrokenCommandError(command.name, f"it gives a text or an Outcome; got {type(done).__name__}")
        seconds = outcome.seconds or time.monotonic() - start
        return self._noted(replace(outcome, name=command.name, seconds=seconds))

    def _noted(self, outcome: Outcome) -> Outcome:
        self.ok = outcome.ok
        return outcome
