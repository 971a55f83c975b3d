"""Processes of ours, outside of the sandbox, that answer lines of JSON: work that may crash or never end only costs them."""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any


class LineProcess:
    """A process that answers each line of JSON with another one. It starts on first use; threads take turns.

    It is killed, with its process group, if it does not answer in time, and the next request starts another one. A forked
    process gets its own. It should end when its input closes.

    Arguments:
        argv, env: the command.
        start_seconds: how long it may take to write a first line, which says that it is ready; 0 if it writes none.

    Attributes:
        process: the running process, if there is one.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str] | None = None, start_seconds: float = 0.0) -> None:
        self._argv, self._env, self._start_seconds = argv, env, start_seconds
        self._forget()
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self._is_ready = not self._start_seconds
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the process, without waiting until it is ready."""
        with self._lock:
            self._launch()

    def ask(self, make_request: Callable[[], object], seconds: float) -> Any:
        """The answer to a request, which is made when the process is ready; `None` if it ended, or took longer.

        Raises:
            ChildProcessError: the process could not be started.
        """
        with self._lock:
            answer = None
            try:
                process = self._launch()
                assert process.stdin is not None
                assert process.stdout is not None
                if not self._is_ready and read_line(process.stdout.fileno(), self._start_seconds) is None:
                    raise ChildProcessError("the process could not be started")
                self._is_ready = True
                with suppress(OSError):
                    process.stdin.write(json.dumps(make_request()).encode() + b"\n")
                    process.stdin.flush()
                    answer = read_line(process.stdout.fileno(), seconds)
                return answer
            finally:
                if answer is None:
                    self._stop()  # A late answer must not be taken for that of the next request.

    def close(self) -> None:
        """Stop the process."""
        with self._lock:
            self._stop()

    def _launch(self) -> subprocess.Popen[bytes]:
        if self.process is not None and self.process.poll() is not None:
            self._stop()  # It was killed while it was idle.
        if self.process is None:
            self.process = subprocess.Popen(
                self._argv,
                env=self._env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        return self.process

    def _stop(self) -> None:
        process, self.process, self._is_ready = self.process, None, not self._start_seconds
        if process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()  # Closes the pipes.


def read_line(descriptor: int, seconds: float) -> Any:
    """The next line of JSON; `None` at the end of the pipe, after `seconds`, or if it is not valid."""
    deadline = time.monotonic() + seconds
    data = b""
    while not data.endswith(b"\n"):
        if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return None
        part = os.read(descriptor, 65_536)
        if not part:
            return None
        data += part
    try:
        return json.loads(data)
    except ValueError:
        return None
