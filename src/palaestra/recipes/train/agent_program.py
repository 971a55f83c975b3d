"""Run the program of an agent: one process per episode, with a time limit."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Literal

from palaestra.core.errors import SettingsError

TAIL = 4000
"""Number of bytes of an agent's output that are searched for the reason of a crash."""
FORKS = Path(__file__).with_name("agent_forks.py")


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
            if self._forks is not None:
                run: _Run = self._forks.start(variables, output.name)
            else:
                run = _SpawnedRun(self.words, variables, output)
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


class _Run:
    """A process in a session of its own."""

    pid: int

    def wait(self, timeout: float) -> int | None:
        """Wait for the end. Returns the exit status, or `None` if it has not ended in time."""
        raise NotImplementedError


class _SpawnedRun(_Run):
    def __init__(self, words: list[str], variables: Mapping[str, str], output: Any) -> None:
        self._process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            env={**os.environ, **variables}, start_new_session=True,
        )  # fmt: skip
        self.pid = self._process.pid

    def wait(self, timeout: float) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout)
        return None


class _ForkedRun(_Run):
    def __init__(self) -> None:
        self.replies: SimpleQueue[int | None] = SimpleQueue()

    def wait(self, timeout: float) -> int | None:
        with suppress(Empty):
            status = self.replies.get(timeout=timeout)
            return 1 if status is None else status
        return None


class _ForkServer:
    """The process of `agent_forks.py`."""

    def __init__(self, words: list[str]) -> None:
        self._process = subprocess.Popen(
            [words[0], str(FORKS), *words[1:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        self._lock, self._runs, self._count, self._is_dead = threading.Lock(), dict[int, _ForkedRun](), 0, False
        self._reader = threading.Thread(target=self._read, name="agent-forks", daemon=True)
        self._reader.start()

    def start(self, variables: Mapping[str, str], output: str) -> _ForkedRun:
        assert self._process.stdin is not None
        run = _ForkedRun()
        with self._lock:
            self._count += 1
            self._runs[self._count] = run
            if self._is_dead:
                run.replies.put(None)
            order = {"run": self._count, "variables": dict(variables), "output": output}
            with suppress(OSError):  # If the process has died, the reader says so.
                self._process.stdin.write(json.dumps(order).encode() + b"\n")
                self._process.stdin.flush()
        pid = run.replies.get()
        run.pid = -1 if pid is None else pid
        if pid is None:
            run.replies.put(None)
        return run

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None  # noqa: PT018
        with suppress(OSError):
            self._process.stdin.close()
        self._process.wait()
        self._reader.join()
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            reply = json.loads(line)
            if "status" in reply:
                self._runs.pop(reply["run"]).replies.put(int(reply["status"]))
            else:
                self._runs[reply["run"]].replies.put(int(reply["pid"]))
        with self._lock:  # The process has died.
            self._is_dead = True
            for run in self._runs.values():
                run.replies.put(None)


def _kill(pid: int) -> None:
    if pid > 0:
        with suppress(OSError):
            os.killpg(pid, signal.SIGKILL)


def _read_reason(output: Path) -> str:
    """The last line of an agent's output, which is the error of a Python script."""
    data = output.read_bytes()[-TAIL:]
    lines = [line.strip() for line in data.decode(errors="replace").splitlines() if line.strip()]
    return f": {lines[-1][:300]}" if lines else ""
