"""Compare answers with sympy in another process, with a time limit that always holds.

    this process  --pipe-->  the server  --fork-->  the worker

The server imports sympy and math-verify once, which takes about a second. The worker is forked from it within
milliseconds. It reads the requests and writes the answers. A kernel timer kills it at the limit of a request; then
the server answers and forks another one. Neither outlives the process that started them: the worker ends when its input
closes, and the server ends with it.
"""

from __future__ import annotations

import gc
import json
import mmap
import os
import resource
import signal
import sys
import time
from dataclasses import asdict, dataclass
from functools import cache
from importlib.util import find_spec

from palaestra.core.errors import MissingExtraError
from palaestra.core.records import Json
from palaestra.sandbox.line_process import LineProcess

_MAX_START_SECONDS = 120.0
"""Seconds for the server to import sympy, which is slow on a cold disk."""
_MARGIN = 0.1
"""Fraction of a limit that is reserved for the answer to arrive in time."""
_MIN_MARGIN = 0.12
"""Minimum of this margin in seconds, for small limits on a busy machine."""
_EXTRA_SECONDS = 2.0
"""Seconds after a limit until a silent server counts as dead."""
_MEMORY = 2 * 1024**3
"""Address space of a worker, in bytes."""
_RENEW = 2000
"""Comparisons after which a worker is replaced, because sympy's caches keep growing."""
_IDLE, _REFERENCE, _ANSWER = 0, 1, 2
"""What a worker is reading. The server reads this byte when the worker dies."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a comparison.

    Arguments:
        outcome: `equal`, `unequal`, `unreadable` (the answer), `reference` (cannot be read), `limit`,
            `reference_limit` (reading the reference took too long), `crash`, or `start` (the server did not start).
    """

    outcome: str
    note: str = ""


_CRASH = Answer("crash", "the comparison process ended unexpectedly")


class SympyClient:
    """The client of one server. Threads take turns.

    Raises:
        MissingExtraError: math-verify is not installed.
    """

    def __init__(self) -> None:
        if find_spec("math_verify") is None:
            raise MissingExtraError("math-verify", "math", "comparing answers that are not plain numbers")
        start = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve()"
        self.server = LineProcess([sys.executable, "-c", start], start_seconds=_MAX_START_SECONDS)

    def compare(self, answer: str, reference: str, limit: float) -> Answer:
        """Compare two texts within `limit` seconds, counted from when the server is ready and idle."""

        def make_request() -> Json:
            # The monotonic clock is the same for all processes, so the time of the transfer counts too.
            deadline = time.monotonic() + limit - min(max(_MARGIN * limit, _MIN_MARGIN), limit / 2)
            return {"answer": answer, "reference": reference, "deadline": deadline}

        try:
            reply = self.server.ask(make_request, limit + _EXTRA_SECONDS)
        except ChildProcessError:
            return Answer("start", "the comparison process could not be started")
        return Answer(**reply) if reply else _CRASH


@cache
def get_client() -> SympyClient:
    """The client that all comparisons of this process share."""
    return SympyClient()


def serve() -> None:
    """Run the server: fork a worker, answer in its place if it dies, and replace it."""
    replies, stage = os.dup(1), mmap.mmap(-1, 1)
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    _warm()
    gc.freeze()
    os.write(replies, _encode(Answer("ready")))
    status = -1
    while status:
        pid = os.fork()
        if pid == 0:
            try:
                _work(replies, stage)
            finally:
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        if stage[0] and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM:
            os.write(replies, _encode(Answer("limit" if stage[0] == _ANSWER else "reference_limit")))
        elif stage[0]:
            os.write(replies, _encode(_CRASH))
        stage[0] = _IDLE
    os._exit(0)  # Skip the cleanup of sympy, which only costs time.


def _warm() -> None:
    """Import and parse once, so that the first comparison is as fast as later ones."""
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


def _work(replies: int, stage: mmap.mmap) -> None:
    """Run a worker: compare for each request on standard input. A kernel timer kills it at the limit."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    for _ in range(_RENEW):
        line = sys.stdin.buffer.readline()
        if not line:
            os._exit(0)
        request = json.loads(line)
        stage[0] = _REFERENCE
        signal.setitimer(signal.ITIMER_REAL, max(1e-3, request["deadline"] - time.monotonic()))
        answer = _compare(request["answer"], request["reference"], stage)
        signal.setitimer(signal.ITIMER_REAL, 0)
        stage[0] = _IDLE
        os.write(replies, _encode(answer))


def _compare(answer: str, reference: str, stage: mmap.mmap) -> Answer:
    from palaestra.tasks.math.equivalence import symbolic
    from palaestra.tasks.math.equivalence.forms import same
    from palaestra.tasks.math.equivalence.parsing import read

    try:
        expected = read(reference)
        symbolic.check_readable(expected)
    except (symbolic.UnreadableError, MemoryError, RecursionError) as error:
        return Answer("reference", str(error) or type(error).__name__)
    stage[0] = _ANSWER
    try:
        given = read(answer)
        symbolic.check_readable(given)
        return Answer("equal" if same(given, expected, symbolic.decide) else "unequal")
    except symbolic.UnreadableError as error:
        return Answer("unreadable", str(error))
    except MemoryError:
        return Answer("unreadable", f"too large to compute: it needs more than {_MEMORY // 1024**3} GiB of memory")
    except RecursionError:
        return Answer("unreadable", "nested too deeply")
    except Exception as error:  # Any error of sympy is caused by the answer: the reference was read before.
        return Answer("unreadable", f"cannot be compared: {type(error).__name__}: {str(error)[:120]}")


def _encode(message: Answer) -> bytes:
    return json.dumps(asdict(message)).encode() + b"\n"
