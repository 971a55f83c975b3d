"""The server of `sympy_client` and its worker, which compares. They run in their own processes."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from dataclasses import asdict, dataclass
from typing import Any

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
