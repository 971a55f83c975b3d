"""A process of its own for comparisons that sympy has to decide, stopped at a limit whatever it is doing.

    this process  --pipe-->  the keeper  --fork-->  the worker

The keeper imports sympy and math-verify once (about a second) and then only watches; the worker, forked
from it within milliseconds, does the work. At the limit the keeper kills the worker and forks another, so a
hopeless comparison costs its limit and nothing more. Neither outlives the process that started it: the
keeper ends when its pipe closes, the worker when the keeper does.
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
"""How long the keeper may take to import sympy, in seconds: it is slow on a busy machine's cold disk."""
MARGIN = 0.1
"""The part of a limit that is kept for answering in time."""
LEAST_MARGIN = 0.12
"""The same in seconds, for small limits: a busy machine takes its time to wake a process."""

PATIENCE = 2.0
"""Seconds beyond a limit after which a keeper that says nothing counts as dead."""


class Comparer:
    """One keeper, started when it is first needed. Threads take turns; a forked process starts its own.

    Raises:
        MissingExtraError: math-verify is not installed.
    """

    def __init__(self) -> None:
        if find_spec("math_verify") is None:
            raise MissingExtraError("math-verify", "math", "comparing answers that are no plain numbers")
        self._lock = threading.Lock()
        self._keeper: subprocess.Popen[bytes] | None = None
        self._ready = False
        _COMPARERS.add(self)

    def start(self) -> None:
        """Start the keeper without waiting for it."""
        with self._lock:
            self._launch()

    def compare(self, answer: str, reference: str, limit: float) -> Answer:
        """Compare two texts within `limit` seconds (counted from when the keeper is ready and free)."""
        with self._lock:
            try:
                if not self._await_ready():
                    self._stop()
                    return Answer("start", "the process that compares could not be started")
                # The monotonic clock is the same for all processes: what the way there takes counts too.
                deadline = time.monotonic() + limit - min(max(MARGIN * limit, LEAST_MARGIN), limit / 2)
                request = {"answer": answer, "reference": reference, "deadline": deadline}
                reply = self._exchange(request, limit + PATIENCE)
            except BaseException:
                self._stop()  # Interrupted: what it would still answer is no answer to the next question.
                raise
            if reply is None:
                self._stop()
                return Answer("crash", "the process that compares ended unexpectedly")
            return reply

    def close(self) -> None:
        """End the keeper and its worker."""
        with self._lock:
            self._stop()

    def _launch(self) -> subprocess.Popen[bytes]:
        if self._keeper is None:
            start = f"import sys; sys.path[:] = {sys.path!r}; from palaestra.tasks.math.equivalence.sympy_server import keep; keep()"
            self._keeper = subprocess.Popen(
                [sys.executable, "-c", start],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0, start_new_session=True,
            )  # fmt: skip
            self._ready = False
        return self._keeper

    def _await_ready(self) -> bool:
        if self._keeper is not None and self._keeper.poll() is not None:
            self._stop()  # Somebody killed it while it was idle.
        self._launch()
        if not self._ready:
            self._ready = self._receive(START_LIMIT) is not None
        return self._ready

    def _exchange(self, request: dict[str, Any], patience: float) -> Answer | None:
        keeper = self._launch()
        assert keeper.stdin is not None
        try:
            keeper.stdin.write(encode_line(request))
        except OSError:
            return None
        return self._receive(patience)

    def _receive(self, patience: float) -> Answer | None:
        keeper = self._launch()
        assert keeper.stdout is not None
        return Answer.from_message(read_line(keeper.stdout.fileno(), patience))

    def _stop(self) -> None:
        keeper, self._keeper, self._ready = self._keeper, None, False
        if keeper is not None:
            _close_pipes(keeper)
            # The keeper leads its own group: its worker ends with it.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(keeper.pid, signal.SIGKILL)
            keeper.wait()

    def _forget(self) -> None:
        """After a fork: the keeper belongs to the parent. Only our copies of its pipes are closed."""
        keeper, self._keeper, self._ready, self._lock = self._keeper, None, False, threading.Lock()
        if keeper is not None:
            _close_pipes(keeper)
            keeper.returncode = 0  # Not ours to wait for.


_COMPARERS: weakref.WeakSet[Comparer] = weakref.WeakSet()
_SHARED: list[Comparer] = []
_SHARING = threading.Lock()


def get_client() -> Comparer:
    """The comparer of this process."""
    with _SHARING:
        if not _SHARED:
            _SHARED.append(Comparer())
        return _SHARED[0]


def _close_all() -> None:
    for comparer in list(_COMPARERS):
        comparer._stop()


def _forget_all() -> None:
    global _SHARING
    _SHARING = threading.Lock()
    for comparer in list(_COMPARERS):
        comparer._forget()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_forget_all)


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
