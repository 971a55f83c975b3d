"""Run the program of an agent: one process per episode, with a time limit."""

from __future__ import annotations

import json
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from palaestra.core.errors import SettingsError

_TAIL = 4000
"""Number of bytes of an agent's output that are searched for the reason of a crash."""
_FORKS = Path(__file__).with_name("agent_forks.py")


def parse_command(command: str, start: Literal["spawn", "fork"] = "spawn") -> list[str]:
    """Split a command into its words.

    Raises:
        SettingsError: it is empty, its program does not exist, or it cannot be forked.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise SettingsError(f"setting 'agent': {error} in {command!r}") from error
    if not words or shutil.which(words[0]) is None:
        raise SettingsError(f"setting 'agent': expected a command such as 'python agent.py'; got {command!r}")
    if start == "fork" and (len(words) < 2 or not words[1].endswith(".py") or not hasattr(os, "fork")):
        raise SettingsError(f"setting 'agent_start': only 'python SCRIPT.py ...' can be forked; got {command!r}")
    return words


class AgentProgram:
    """Runs a command once per episode.

    Every process has a session of its own and is killed with all its children at the end of the episode. Its input is
    empty, and of its output only the last line of a crash is used.

    Arguments:
        command: the command, with its arguments. It is not passed to a shell.
        timeout: maximum seconds of an episode.
        start: `"spawn"` starts the command anew each time. `"fork"` is for `python SCRIPT ...` on Unix: a process imports
            the packages of the script once and is forked for each episode.

    Raises:
        SettingsError: there is no such program, or it cannot be forked.
    """

    def __init__(self, command: str, timeout: float, start: Literal["spawn", "fork"] = "spawn") -> None:
        self.words, self.timeout = parse_command(command, start), timeout
        self._lock = threading.Lock()
        self._running: set[int] = set()
        self._forks = _ForkServer(self.words) if start == "fork" else None

    def run(self, variables: Mapping[str, str]) -> str:
        """Run the command to its end. Returns the reason if it fails, else an empty text.

        Arguments:
            variables: environment variables, in addition to those of this process.
        """
        with tempfile.NamedTemporaryFile() as output:
            forks = self._forks
            run = _SpawnedRun(self.words, variables, output) if forks is None else _ForkedRun(forks, variables, output)
            with self._lock:
                self._running.add(run.pid)
            try:
                status = run.wait(self.timeout)
            finally:
                _kill(run.pid)  # Also the children that it has left behind.
                with self._lock:
                    self._running.discard(run.pid)
            if status is None:
                run.wait(10.0)
                return f"the agent did not end within {self.timeout:g} seconds"
            if status:
                return f"the agent exited with status {status}{_read_reason(Path(output.name))}"
            return ""

    def stop(self) -> None:
        """Kill all processes that are running."""
        with self._lock:
            for pid in self._running:
                _kill(pid)

    def close(self) -> None:
        self.stop()
        if self._forks is not None:
            self._forks.close()


class _SpawnedRun:
    """A process in a session of its own."""

    def __init__(self, words: list[str], variables: Mapping[str, str], output: Any) -> None:
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **variables},
            start_new_session=True,
        )
        self.pid = self._process.pid

    def wait(self, timeout: float) -> int | None:
        """Wait for the end. Returns the exit status, or `None` if it has not ended in time."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout)
        return None


class _ForkServer:
    """The process of `agent_forks.py`."""

    def __init__(self, words: list[str]) -> None:
        self.orders, theirs = socket.socketpair()
        with theirs:
            command = [words[0], str(_FORKS), *words[1:]]
            self._process = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, start_new_session=True
            )

    def close(self) -> None:
        self.orders.close()
        self._process.wait()


class _ForkedRun:
    """A process that `agent_forks.py` has forked. It has the status 1 if that process has died."""

    def __init__(self, server: _ForkServer, variables: Mapping[str, str], output: Any) -> None:
        self._connection, theirs = socket.socketpair()
        with theirs, suppress(OSError):
            self._connection.sendall(json.dumps(dict(variables)).encode() + b"\n")
            socket.send_fds(server.orders, [b"r"], [theirs.fileno(), output.fileno()])
        self._replies = self._connection.makefile("rb", buffering=0)
        self.pid = self._receive(default=-1)

    def wait(self, timeout: float) -> int | None:
        if not select.select([self._connection], [], [], timeout)[0]:
            return None
        with self._connection, self._replies:
            return self._receive(default=1)

    def _receive(self, default: int) -> int:
        """The next number from the server; `default` if it has died."""
        with suppress(ConnectionError):
            return int(self._replies.readline() or default)
        return default


def _kill(pid: int) -> None:
    if pid > 0:
        with suppress(OSError):
            os.killpg(pid, signal.SIGKILL)


def _read_reason(output: Path) -> str:
    """The last line of an agent's output, which is the error of a Python script."""
    data = output.read_bytes()[-_TAIL:]
    lines = [line.strip() for line in data.decode(errors="replace").splitlines() if line.strip()]
    return f": {lines[-1][:300]}" if lines else ""
