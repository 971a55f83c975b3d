"""Compare answers with sympy in another process, with a time limit that always holds.

    this process  --pipe-->  the server  --fork-->  the worker

The server imports sympy and math-verify once, which takes about a second. The worker is forked from it within
milliseconds and does the comparisons. At the limit the server kills the worker and forks another one. Neither outlives
the process that started it: the server ends when its pipe closes, and the worker ends with the server.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from importlib.util import find_spec
from typing import Any

from palaestra.core.errors import MissingExtraError
from palaestra.tasks.math.equivalence.sympy_server import Answer, encode_line, read_line

START_LIMIT = 120.0
"""Seconds for the server to import sympy, which is slow on a cold disk."""
MARGIN = 0.1
"""Fraction of a limit that is reserved for the answer to arrive in time."""
LEAST_MARGIN = 0.12
"""Minimum of the same in seconds, for small limits on a busy machine."""

EXTRA_SECONDS = 2.0
"""Seconds after a limit until a silent server counts as dead."""


class SympyClient:
    """The client of one server, which starts on first use. Threads take turns; a forked process starts its own server.

    Raises:
        MissingExtraError: math-verify is not installed.
    """

    def __init__(self) -> None:
        if find_spec("math_verify") is None:
            raise MissingExtraError("math-verify", "math", "comparing answers that are no plain numbers")
        self._lock = threading.Lock()
        self._server: subprocess.Popen[bytes] | None = None
        self._ready = False
        _CLIENTS.add(self)

    def start(self) -> None:
        """Start the server, without waiting until it is ready."""
        with self._lock:
            self._launch()

    def compare(self, answer: str, reference: str, limit: float) -> Answer:
        """Compare two texts within `limit` seconds, counted from when the server is ready and idle."""
        with self._lock:
            try:
                if not self._await_ready():
                    self._stop()
                    return Answer("start", "the process that compares could not be started")
                # The monotonic clock is the same for all processes, so the time of the transfer counts too.
                deadline = time.monotonic() + limit - min(max(MARGIN * limit, LEAST_MARGIN), limit / 2)
                request = {"answer": answer, "reference": reference, "deadline": deadline}
                reply = self._exchange(request, limit + EXTRA_SECONDS)
            except BaseException:
                self._stop()  # Interrupted: a late answer must not be taken for that of the next request.
                raise
            if reply is None:
                self._stop()
                return Answer("crash", "the process that compares ended unexpectedly")
            return reply

    def close(self) -> None:
        """Stop the server and its worker."""
        with self._lock:
            self._stop()

    def _launch(self) -> subprocess.Popen[bytes]:
        if self._server is None:
            start = f"import sys; sys.path[:] = {sys.path!r}; from palaestra.tasks.math.equivalence.sympy_server import serve; serve()"
            self._server = subprocess.Popen(
                [sys.executable, "-c", start],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0, start_new_session=True,
            )  # fmt: skip
            self._ready = False
        return self._server

    def _await_ready(self) -> bool:
        if self._server is not None and self._server.poll() is not None:
            self._stop()  # It was killed while it was idle.
        self._launch()
        if not self._ready:
            self._ready = self._receive(START_LIMIT) is not None
        return self._ready

    def _exchange(self, request: dict[str, Any], timeout: float) -> Answer | None:
        server = self._launch()
        assert server.stdin is not None
        try:
            server.stdin.write(encode_line(request))
        except OSError:
            return None
        return self._receive(timeout)

    def _receive(self, timeout: float) -> Answer | None:
        server = self._launch()
        assert server.stdout is not None
        return Answer.from_message(read_line(server.stdout.fileno(), timeout))

    def _stop(self) -> None:
        server, self._server, self._ready = self._server, None, False
        if server is not None:
            _close_pipes(server)
            # The server leads its own process group, so the worker is killed with it.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(server.pid, signal.SIGKILL)
            server.wait()

    def _forget(self) -> None:
        """After a fork: the server belongs to the parent, so only the copies of its pipes are closed."""
        server, self._server, self._ready, self._lock = self._server, None, False, threading.Lock()
        if server is not None:
            _close_pipes(server)
            server.returncode = 0  # The parent waits for it.


_CLIENTS: weakref.WeakSet[SympyClient] = weakref.WeakSet()
_SHARED: list[SympyClient] = []
_SHARING = threading.Lock()


def get_client() -> SympyClient:
    """The client that all comparisons of this process share."""
    with _SHARING:
        if not _SHARED:
            _SHARED.append(SympyClient())
        return _SHARED[0]


def _close_all() -> None:
    for client in list(_CLIENTS):
        client._stop()


def _forget_all() -> None:
    global _SHARING
    _SHARING = threading.Lock()
    for client in list(_CLIENTS):
        client._forget()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_forget_all)


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
