"""A conversation with a script in a sandbox, and what the scripts are given."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files as package_files
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, Any

from palaestra.core.errors import SandboxError
from palaestra.sandbox.base import KIB, Limits, Result
from palaestra.sandbox.lines import Line

if TYPE_CHECKING:
    from palaestra.sandbox.base import Sandbox

LONGEST = 64 * KIB
"""Bytes of the largest message."""


class Conversation:
    """A Python script that runs in a sandbox, and talks with us until one side ends it.

    Arguments:
        files: put into its workspace.
        script: the one of them that runs.

    Raises:
        SandboxError: the machine has no room for another line or thread.
    """

    def __init__(self, sandbox: Sandbox, files: Mapping[str, str], script: str, limits: Limits) -> None:
        self._sandbox, self._files, self._script, self._limits = sandbox, files, script, limits
        self._ended: Result | BaseException | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)
        try:
            # A character beyond the first 65536 stays one: the program's side reads JSON as Python, which has no pairs.
            self.line = Line(LONGEST, ascii=False)
        except OSError as error:
            raise SandboxError(f"cannot talk with a sandbox: {error}; is the machine out of open files?") from error
        self.line.settle(limits.wall_seconds + 30.0)  # The sandbox ends it before that.
        try:
            self._thread.start()
        except RuntimeError as error:
            self.line.close()
            self.line.theirs.close()
            raise SandboxError(f"cannot talk with a sandbox: {error}; is the machine out of threads?") from error

    def send(self, message: Mapping[str, Any]) -> None:
        self.line.send(message)

    def receive(self) -> dict[str, Any] | None:
        """The next message; None where there is none, or what came is none: `line` knows which."""
        return self.line.receive()

    def hang_up(self) -> None:
        """Say no more; the other side finds its input at an end."""
        self.line.close()

    def end(self) -> Result:
        """Hang up and wait for the end of the script.

        Raises:
            SandboxError: the sandbox broke.
        """
        self.hang_up()
        self._thread.join()
        if isinstance(self._ended, Result):
            return self._ended
        if isinstance(self._ended, SandboxError):
            raise self._ended
        raise SandboxError(f"the sandbox broke: {type(self._ended).__name__}: {self._ended}") from self._ended

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def _work(self) -> None:
        try:
            # Python without the packages and the settings of anybody: that starts in half the time.
            command = ("python3", "-I", "-S", "-B", self._script)
            self._ended = self._sandbox.run(command, self._files, stdin=self.line.theirs, limits=self._limits)
        except BaseException as error:  # It is raised again where somebody waits for it.
            self._ended = error
        finally:
            self.line.theirs.close()


def last_words(result: Result) -> str:
    """The last line that a script said before it ended."""
    lines = [line for line in result.error_text.strip().splitlines() if line.strip()]
    return (lines[-1] if lines else f"{result.status.value}, exit code {result.exit_code}")[:300]


@cache
def program_files() -> dict[str, str]:
    """What the sandbox of a program is given: how to call, and nothing of the tools or the problem."""
    inside = package_files("palaestra.tasks.tools") / "inside"
    return {"program.py": (inside / "program.py").read_text(encoding="utf-8")}


@cache
def tool_files() -> dict[str, str]:
    """What the sandbox of the tools is given: the library, under the name that it has here."""
    here = package_files("palaestra.tasks.tools")
    found = {"worker.py": (here / "inside" / "worker.py").read_text(encoding="utf-8")}
    for package in ("palaestra", "palaestra/tasks", "palaestra/tasks/tools"):
        found[f"{package}/__init__.py"] = ""
    for file in _modules(here / "library"):
        found[f"palaestra/tasks/tools/library/{file.name}"] = file.read_text(encoding="utf-8")
    return found


def _modules(folder: Traversable) -> Sequence[Traversable]:
    return [file for file in folder.iterdir() if file.name.endswith(".py")]
