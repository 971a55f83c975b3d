"""Messages between the host and a Python script in a sandbox.

    ECHO = Script("my_package.inside", ("echo",), max_bytes=64 * KIB)
    session = ECHO.start(make_sandbox(), Limits())
    session.send({"text": "hello"})
    reply = session.receive()
    result = session.close()

A message is one JSON object on a line. The host's end is a `ScriptSession`; the script's end is
`palaestra.sandbox.inside.channel.HostChannel`. The host trusts nothing that it receives: messages are bounded in size, and
the caller checks their content.

It takes about 25 ms to start a sandbox with Python in it. A `SessionPool` reuses scripts that run no code of a model.
"""

from __future__ import annotations

import json
import py_compile
import socket
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files as package_files
from pathlib import Path

from palaestra.core.errors import SandboxError
from palaestra.core.records import Json
from palaestra.sandbox.base import Limits, Sandbox, SandboxCommand, SandboxResult

_MAX_DIGITS = 4300
"""Digits of an integer in a message; the default limit of Python."""
ISOLATED = ("python3", "-I", "-S", "-B")
"""Python without site packages and environment variables. It starts in half the time."""


def _parse_int(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"an integer of more than {_MAX_DIGITS} digits")
    return int(digits)


@dataclass(frozen=True, slots=True)
class Script:
    """A Python script of ours that runs in a sandbox, and the limits of its messages.

    Arguments:
        package: the package that contains the modules.
        modules: the modules that the sandbox receives, by name; the last one runs. `channel` is always added.
        max_bytes: largest message that is accepted.
        max_commas: largest number of commas in a message; 0 for no limit. It bounds the memory that a message takes
            once it is parsed.
        ascii: send other characters as escapes. Otherwise lone surrogates are sent as `?`.
        folder: where the modules are in the workspace.
        command: the Python command that runs the script.
    """

    package: str
    modules: tuple[str, ...]
    max_bytes: int
    max_commas: int = 0
    ascii: bool = True
    folder: str = ""
    command: tuple[str, ...] = ISOLATED

    def start(
        self,
        sandbox: Sandbox,
        limits: Limits,
        files: Mapping[str, bytes | str] = {},
        read_only: Mapping[str, str] = {},
        env: Mapping[str, str] = {},
    ) -> ScriptSession:
        """Run the script in its own thread.

        Arguments:
            files: further files of the workspace.
            read_only, env: see `SandboxCommand`.

        Raises:
            SandboxError: the machine has no free file descriptors or threads.
        """
        # Bytecode is for our own Python, which only bubblewrap is sure to run. Compiling takes as long as starting.
        compiled = sandbox.name == "bubblewrap"
        argv, content = (*self.command, self.path(compiled)), {**self.files(compiled), **files}
        return ScriptSession(self, sandbox, SandboxCommand(argv, content, limits=limits, env=env, read_only=read_only))

    def files(self, compiled: bool) -> dict[str, bytes | str]:
        """Return the modules by path in the workspace, as source or as bytecode."""
        modules = {**dict.fromkeys(self.modules, self.package), "channel": "palaestra.sandbox.inside"}
        return {self.path(compiled, name): _load(package, name, compiled) for name, package in modules.items()}

    def path(self, compiled: bool, module: str = "") -> str:
        """Return the path of a module in the workspace; by default of the one that runs."""
        name = f"{module or self.modules[-1]}.{'pyc' if compiled else 'py'}"
        return f"{self.folder}/{name}" if self.folder else name


@cache
def _load(package: str, module: str, compiled: bool) -> bytes | str:
    """Return a module as source, or as the bytecode that Python would cache."""
    source = (package_files(package) / f"{module}.py").read_text(encoding="utf-8")
    if not compiled:
        return source
    with tempfile.TemporaryDirectory() as folder:
        plain, target = Path(folder) / f"{module}.py", Path(folder) / f"{module}.pyc"
        plain.write_text(source, encoding="utf-8")
        unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(str(plain), str(target), dfile=f"{module}.py", doraise=True, invalidation_mode=unchecked)
        return target.read_bytes()


class ScriptSession:
    """A running script and the connection to it, made by `Script.start`.

    Arguments:
        command: runs the script. The connection becomes its stdin and stdout.

    Attributes:
        thread: the thread that runs the sandbox.
        too_long: a message exceeded a limit.
        garbled: the last line was not a message.
    """

    def __init__(self, script: Script, sandbox: Sandbox, command: SandboxCommand) -> None:
        self._script, self._buffer = script, bytearray()
        self.too_long, self.garbled = False, False
        self._outcome: SandboxResult | BaseException | None = None
        try:
            self._host_end, sandbox_end = socket.socketpair()
        except OSError as error:
            raise SandboxError(f"cannot talk with a sandbox: {error}; is the machine out of open files?") from error
        self.set_timeout(command.limits.wall_seconds + 30.0)  # The sandbox ends the script before that.

        def work() -> None:
            try:
                self._outcome = sandbox.run(replace(command, stdin=sandbox_end))
            except BaseException as error:  # `wait` raises it again.
                self._outcome = error
            finally:
                sandbox_end.close()

        self.thread = threading.Thread(target=work, daemon=True, name=f"sandbox-{script.modules[-1]}")
        try:
            self.thread.start()
        except RuntimeError as error:
            self.disconnect()
            sandbox_end.close()
            raise SandboxError(f"cannot talk with a sandbox: {error}; is the machine out of threads?") from error

    @property
    def is_alive(self) -> bool:
        return self.thread.is_alive()

    def set_timeout(self, seconds: float) -> None:
        """Set how long `receive` waits."""
        self._host_end.settimeout(seconds)

    def send(self, message: Mapping[str, object]) -> None:
        """Send a message. Nothing happens if the script has ended; the next `receive` returns None."""
        with suppress(OSError):
            data = json.dumps(message, ensure_ascii=self._script.ascii).encode("utf-8", "replace")
            self._host_end.sendall(data + b"\n")

    def receive(self) -> Json | None:
        """Return the next message; None if none comes, or if the line is not a message within the limits."""
        searched, limits = 0, self._script
        while self._buffer.find(b"\n", searched) < 0 and len(self._buffer) <= limits.max_bytes:
            searched = len(self._buffer)
            try:
                data = self._host_end.recv(1 << 16)
            except OSError:
                return None
            if not data:
                return None
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        if len(line) > limits.max_bytes or (limits.max_commas and line.count(b",") > limits.max_commas):
            self.too_long = True
            return None
        try:
            # Parsing an integer takes quadratic time, and the limit of Python may be switched off.
            message = json.loads(line, parse_int=_parse_int if len(line) > _MAX_DIGITS else None)
        except (ValueError, RecursionError):
            message = None
        self.garbled = not isinstance(message, dict)
        return message if isinstance(message, dict) else None

    def disconnect(self) -> None:
        """Close the connection. The script reads the end of its input."""
        self._host_end.close()

    def wait(self) -> SandboxResult:
        """Wait for the end of the script.

        Raises:
            SandboxError: the sandbox failed.
        """
        self.thread.join()
        if isinstance(self._outcome, SandboxResult):
            return self._outcome
        if isinstance(self._outcome, SandboxError):
            raise self._outcome
        raise SandboxError(f"the sandbox broke: {type(self._outcome).__name__}: {self._outcome}") from self._outcome

    def wait_for(self, seconds: float) -> SandboxResult | None:
        """Wait at most `seconds`; None if the script still runs. Raises as `wait` does."""
        self.thread.join(seconds)
        return None if self.is_alive else self.wait()

    def close(self) -> SandboxResult:
        """Close the connection and wait for the end of the script; raises as `wait` does."""
        self.disconnect()
        return self.wait()


class SessionPool:
    """Reusable sessions for any number of threads. Each belongs to one thread at a time.

    Arguments:
        start: starts a session.
        lifetime: seconds after which a session is not reused. An idle sandbox costs some CPU time.
        max_uses: how often a session is used. Its sandbox keeps all output in memory.
    """

    def __init__(self, start: Callable[[], ScriptSession], lifetime: float = 30.0, max_uses: int = 5000) -> None:
        self._start, self.lifetime, self.max_uses = start, lifetime, max_uses
        self._idle: list[tuple[ScriptSession, float, int]] = []
        self._used: dict[int, tuple[float, int]] = {}
        self._lock = threading.Lock()
        weakref.finalize(self, _close_all, self._idle)

    def acquire(self) -> tuple[ScriptSession, bool]:
        """Return a session, and whether it is new. Pass it to `release`, or disconnect it, afterwards."""
        with self._lock:
            while self._idle:
                session, start, uses = self._idle.pop()
                if session.is_alive and time.monotonic() - start < self.lifetime and uses < self.max_uses:
                    self._used[id(session)] = start, uses + 1
                    return session, False
                session.disconnect()
        session = self._start()
        with self._lock:
            self._used[id(session)] = time.monotonic(), 1
        return session, True

    def release(self, session: ScriptSession) -> None:
        """Make a session available to others."""
        with self._lock:
            self._idle.append((session, *self._used.pop(id(session))))


def _close_all(idle: list[tuple[ScriptSession, float, int]]) -> None:
    while idle:
        with suppress(SandboxError):
            idle.pop()[0].close()


def last_error_line(result: SandboxResult) -> str:
    """Return the last line of stderr, or the status if there is none."""
    lines = [line for line in result.error_text.strip().splitlines() if line.strip()]
    return (lines[-1] if lines else f"{result.status.value}, exit code {result.exit_code}")[:300]
