"""Compare answers with sympy in another process, with a time limit that always holds.

    this process  --pipe-->  the server  --fork-->  the worker

The server imports sympy and math-verify once, which takes about a second. The worker is forked from it within
milliseconds and does the comparisons. At the limit the server kills the worker and forks another one. Neither outlives
the process that started it: the server ends when its pipe closes, and the worker ends with the server.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any

from palaestra.core.errors import MissingExtraError

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
            start = f"import sys; sys.path[:] = {sys.path!r}; from palaestra.tasks.math.equivalence.sympy_process import serve; serve()"
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


MEMORY = 2 * 1024**3
"""Address space of a worker, in bytes."""
MAX_MESSAGE = 1 << 20
"""The longest message that is read, in bytes."""
OUTCOMES = frozenset(
    {"ready", "stage", "equal", "unequal", "unreadable", "reference", "limit", "reference_limit", "crash", "start"}
)
RENEW = 2000
"""Comparisons after which a worker is replaced, because sympy's caches keep growing."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a comparison.

    Arguments:
        outcome: `equal`, `unequal`, `unreadable` (the answer), `reference` (cannot be read), `limit`,
            `reference_limit` (reading the reference took too long), `crash`, or `start` (the server did not start).
    """

    outcome: str
    note: str = ""

    @classmethod
    def from_message(cls, message: Any) -> Answer | None:
        """Rebuild an answer from a decoded message; `None` unless its outcome is known and its note is a text."""
        if not isinstance(message, dict):
            return None
        outcome, note = message.get("outcome"), message.get("note")
        if not isinstance(outcome, str) or outcome not in OUTCOMES or not isinstance(note, str):
            return None
        return cls(outcome, note)


def encode_line(message: Answer | dict[str, Any]) -> bytes:
    return json.dumps(asdict(message) if isinstance(message, Answer) else message).encode() + b"\n"


def read_line(descriptor: int, timeout: float | None) -> Any:
    """The next message; `None` at the end of the pipe, after `timeout` seconds, or if it is not valid."""
    deadline = None if timeout is None else time.monotonic() + timeout
    data = bytearray()
    while not data.endswith(b"\n"):
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not select.select([descriptor], [], [], left)[0]:
            return None
        piece = os.read(descriptor, 65_536)
        if not piece:
            return None
        data += piece
        if len(data) > MAX_MESSAGE:
            return None
    try:
        return json.loads(data.splitlines()[-1])
    except (ValueError, RecursionError):
        return None


def serve() -> None:
    """Run the server: pass requests to a worker, and kill it at the limit."""
    requests, replies = os.dup(0), os.dup(1)
    silence = os.open(os.devnull, os.O_RDWR)
    os.dup2(silence, 0)
    os.dup2(silence, 1)
    _warm()
    os.write(replies, encode_line(Answer("ready")))
    worker = _Worker(requests, replies)
    while (request := read_line(requests, None)) is not None:
        reply = worker.answer(request)
        os.write(replies, encode_line(reply))
        if reply.outcome in ("limit", "reference_limit", "crash") or worker.done >= RENEW:
            worker.kill()
            worker = _Worker(requests, replies)
    worker.kill()
    os._exit(0)  # Skip the cleanup of sympy, which only costs time.


def _warm() -> None:
    """Import and parse once, so that the first comparison of a worker is as fast as later ones."""
    import logging

    logging.disable(logging.CRITICAL)
    from palaestra.tasks.math.equivalence import symbolic
    from palaestra.tasks.math.equivalence.forms import same
    from palaestra.tasks.math.equivalence.parsing import read

    for left, right in (
        (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}"),
        ("x^2+2x+1", "(x+1)^2"),
        (r"\sin\pi", r"\log_2 4"),
    ):
        same(read(left), read(right), symbolic.decide)


class _Worker:
    """The server's handle of a forked process that compares."""

    def __init__(self, *server_pipes: int) -> None:
        self.done = 0
        down, up = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                # With the server's pipes open in the worker, the client would not notice the server's death.
                for descriptor in (down[1], up[0], *server_pipes):
                    os.close(descriptor)
                _work(down[0], up[1])
            finally:
                os._exit(1)
        os.close(down[0])
        os.close(up[1])
        self.requests, self.replies = down[1], up[0]

    def answer(self, request: dict[str, Any]) -> Answer:
        self.done += 1
        deadline = request["deadline"]
        try:
            os.write(self.requests, encode_line(request))
        except OSError:
            return Answer("crash", "the process that compares ended unexpectedly")
        stage = "reference"
        while True:
            reply = Answer.from_message(read_line(self.replies, deadline - time.monotonic()))
            if reply is not None and reply.outcome == "stage":
                stage = reply.note
            elif reply is not None:
                return reply
            elif time.monotonic() >= deadline:
                return Answer("reference_limit" if stage == "reference" else "limit")
            else:
                return Answer("crash", f"the process that compares ended unexpectedly while reading the {stage}")

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.requests)
        os.close(self.replies)


def _work(requests: int, replies: int) -> None:
    import gc
    import resource

    gc.freeze()
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    while (request := read_line(requests, None)) is not None:
        # The kernel kills the worker even if the server no longer can.
        signal.setitimer(signal.ITIMER_REAL, max(0.0, request["deadline"] - time.monotonic()) + 5.0)
        try:
            answer = _compare(request["answer"], request["reference"], replies)
        except MemoryError:
            answer = Answer("unreadable", f"too large to compute: it needs more than {MEMORY // 1024**3} GiB of memory")
        except RecursionError:
            answer = Answer("unreadable", "nested too deeply")
        signal.setitimer(signal.ITIMER_REAL, 0)
        os.write(replies, encode_line(answer))


def _compare(answer: str, reference: str, replies: int) -> Answer:
    from palaestra.tasks.math.equivalence import symbolic
    from palaestra.tasks.math.equivalence.forms import same
    from palaestra.tasks.math.equivalence.parsing import read

    expected = read(reference)
    try:
        symbolic.readable(expected)
    except (symbolic.UnreadableError, MemoryError, RecursionError) as error:
        return Answer("reference", str(error) or type(error).__name__)
    os.write(replies, encode_line(Answer("stage", "answer")))
    try:
        given = read(answer)
        symbolic.readable(given)
        return Answer("equal" if same(given, expected, symbolic.decide) else "unequal")
    except symbolic.UnreadableError as error:
        return Answer("unreadable", str(error))
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # Any error of sympy is caused by the answer: the reference was read before.
        return Answer("unreadable", f"cannot be compared: {type(error).__name__}: {str(error)[:120]}")
