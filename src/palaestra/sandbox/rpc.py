"""A conversation with a Python script in a sandbox; and scripts that stay for a while, to serve many.

Starting a sandbox and Python in it takes some 25 ms. A script of ours that runs code which may be trusted, or none but
our own, can be used again.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from palaestra.core.errors import SandboxError
from palaestra.sandbox.base import Limits, SandboxResult
from palaestra.sandbox.lines import Channel

if TYPE_CHECKING:
    from palaestra.sandbox.base import Sandbox


def python(script: str) -> Sequence[str]:
    """Python without the packages and the settings of anybody: that starts in half the time."""
    return ("python3", "-I", "-S", "-B", script)


class ScriptSession:
    """A Python script that runs in a sandbox, and talks with us until one side ends it.

    Arguments:
        files: put into its workspace.
        script: the one of them that runs.
        line: how we talk.

    Raises:
        SandboxError: the machine has no room for another line or thread.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        files: Mapping[str, bytes | str],
        script: str,
        limits: Limits,
        line: Callable[[], Channel],
    ) -> None:
        self._sandbox, self._files, self._script, self._limits = sandbox, files, script, limits
        self._ended: SandboxResult | BaseException | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)
        try:
            self.line = line()
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

    def wait(self) -> SandboxResult:
        """Wait for the end of the script.

        Raises:
            SandboxError: the sandbox broke.
        """
        self._thread.join()
        if isinstance(self._ended, SandboxResult):
            return self._ended
        if isinstance(self._ended, SandboxError):
            raise self._ended
        raise SandboxError(f"the sandbox broke: {type(self._ended).__name__}: {self._ended}") from self._ended

    def ended(self, seconds: float) -> SandboxResult | None:
        """The same, if it ends within so long; else None."""
        self._thread.join(seconds)
        return None if self._thread.is_alive() else self.wait()

    def end(self) -> SandboxResult:
        """Hang up and wait for the end of the script; raises as `wait` does."""
        self.hang_up()
        return self.wait()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def _work(self) -> None:
        try:
            self._ended = self._sandbox.run(
                python(self._script), self._files, stdin=self.line.theirs, limits=self._limits
            )
        except BaseException as error:  # It is raised again where somebody waits for it.
            self._ended = error
        finally:
            self.line.theirs.close()


class SessionPool:
    """Scripts that stay, for any number of threads: each conversation is one thread's at a time.

    Arguments:
        make: starts one.
        life: seconds after which one is not used again: waiting costs its sandbox's watch some time.
        most: how often one is used; what it says is kept by its sandbox as long as it lives.
    """

    def __init__(self, make: Callable[[], ScriptSession], life: float = 30.0, most: int = 5000) -> None:
        self._make, self.life, self.most = make, life, most
        self._idle: list[tuple[ScriptSession, float, int]] = []
        self._used: dict[int, tuple[float, int]] = {}
        self._lock = threading.Lock()
        weakref.finalize(self, _dismiss, self._idle)

    def take(self) -> tuple[ScriptSession, bool]:
        """A conversation, and whether it has just begun; give it back, or end it."""
        with self._lock:
            while self._idle:
                conversation, born, uses = self._idle.pop()
                if conversation.alive and time.monotonic() - born < self.life and uses < self.most:
                    self._used[id(conversation)] = born, uses + 1
                    return conversation, False
                conversation.hang_up()
        made = self._make()
        with self._lock:
            self._used[id(made)] = time.monotonic(), 1
        return made, True

    def give(self, conversation: ScriptSession) -> None:
        """It may serve somebody else."""
        with self._lock:
            self._idle.append((conversation, *self._used.pop(id(conversation))))

    def end(self, conversation: ScriptSession) -> SandboxResult:
        """It may not; raises as `ScriptSession.wait` does."""
        with self._lock:
            self._used.pop(id(conversation), None)
        return conversation.end()

    def close(self) -> None:
        """Send all home. Whoever comes next gets a new one."""
        with self._lock:
            _dismiss(self._idle)


def _dismiss(idle: list[tuple[ScriptSession, float, int]]) -> None:
    while idle:
        with suppress(SandboxError):
            idle.pop()[0].end()


def last_words(result: SandboxResult) -> str:
    """The last line that a script said before it ended."""
    lines = [line for line in result.error_text.strip().splitlines() if line.strip()]
    return (lines[-1] if lines else f"{result.status.value}, exit code {result.exit_code}")[:300]
