"""Replaces the module of a submission in the evaluator's process; calls go to the submission's sandbox over a pipe.

Arguments are sent as copies. Answers are plain values, see `values`. Arguments or answers that are not plain, and calls
from a forked process, raise in the evaluator.
"""

from __future__ import annotations

import builtins
import os
import pickle
import threading
from collections.abc import Callable, Iterable
from functools import cache
from io import BytesIO
from os import write
from pickle import dumps
from typing import Any, NoReturn

from .values import Reader, decode

PIPES = "PALAESTRA_LINE"
"""The environment variable with the file descriptors of the pipes to the submission and back, and a core (see `Reader`).
"""
MAX_ANSWER = 8 << 20
"""Maximum bytes of an answer."""


GLOBAL = pickle.STACK_GLOBAL
"""An opcode in every pickle of a value that is not plain."""


class SubmissionPipe:
    """The pipes to the submission, by file descriptor, and the core to wait on; see `Reader`."""

    def __init__(self, to: int, back: int, core: int = -1) -> None:
        self._to, self._reader = to, Reader(back, core)
        self._count, self._rest, self._broken, self._lock = 0, b"", "", threading.Lock()
        os.register_at_fork(after_in_child=self._disconnect)

    def names(self, wanted: Iterable[str]) -> dict[str, object]:
        """Return the attributes of the submission's module among `wanted`; raises what importing it raises."""
        there = self.ask("names", (list(wanted),), {})
        return {name: self.get(name) for name in there if type(name) is str}

    def get(self, name: str) -> Any:
        """Return an attribute of the module: a function that calls the submission, or a plain value.

        Raises:
            AttributeError: the module does not have it.
        """
        answer = self.ask("get", (name,), {})
        if type(answer) is not tuple or len(answer) != 2:
            self._break("an answer is not plain data")
        return _function(self, name) if answer[0] == "function" else answer[1]

    def ask(self, name: str, arguments: tuple[object, ...], named: dict[str, object]) -> Any:
        """Call a function of the submission, or `names` or `get` of its server."""
        request = dumps((name, arguments, named), 5)
        if GLOBAL in request:  # Either a class or function, or part of a string.
            _Pickler(BytesIO(), 5).dump((name, arguments, named))
        request = len(request).to_bytes(4, "little") + request
        with self._lock:
            if self._broken:
                raise RuntimeError(self._broken)
            self._count += 1
            expected = b"%d =" % self._count
            try:
                sent = write(self._to, request)
                while sent < len(request):
                    sent += write(self._to, memoryview(request)[sent:])
            except BrokenPipeError:
                self._break("it ended")
            line = self._read()
            # The answer to a call that the evaluator aborted, for example by an alarm, comes first.
            while not line.startswith(expected) and (number := line.partition(b" ")[0]) != expected[:-2]:
                if not number.isdigit() or len(number) > 18 or int(number) > self._count:
                    self._break("it sent data that was not requested")
                line = self._read()
            if self._rest:
                self._break("it sent data that was not requested")
        try:
            value = decode(line[len(expected) :])
        except ValueError:
            self._break("an answer is not plain data")
        if line.startswith(expected):
            return value
        raise _error(value)

    def _read(self) -> bytes:
        """Return the next line."""
        data = self._rest or self._reader.read()
        while b"\n" not in data:
            more = self._reader.read(1 << 20)
            if not more:
                self._break("it ended")
            data += more
            if len(data) > MAX_ANSWER:
                self._break(f"an answer has more than {MAX_ANSWER} bytes")
        line, _, self._rest = data.partition(b"\n")
        return line

    def _break(self, why: str) -> NoReturn:
        self._broken = f"the submission cannot be called any more: {why}"
        raise RuntimeError(self._broken) from None

    def _disconnect(self) -> None:
        self._lock = threading.Lock()
        self._broken = "only the process that imported the submission can call it"


class _Pickler(pickle.Pickler):
    """Pickles plain data and NumPy arrays only."""

    def reducer_override(self, value: Any) -> Any:
        kind = value if isinstance(value, type) else type(value)
        if kind.__module__.partition(".")[0] == "numpy" or str(getattr(value, "__module__", "")).startswith("numpy."):
            return NotImplemented
        raise TypeError(f"arguments of a submission must be plain data; got {kind.__module__}.{kind.__qualname__}")


@cache
def connect() -> SubmissionPipe:
    """Return the pipe of this process."""
    return SubmissionPipe(*map(int, os.environ[PIPES].split(",")))


def _function(line: SubmissionPipe, name: str) -> Callable[..., object]:
    ask, place = line.ask, f".{name}"

    def call(*arguments: object, **named: object) -> object:
        return ask(place, arguments, named)

    call.__name__ = call.__qualname__ = name
    return call


def _error(value: object) -> Exception:
    """Convert an exception of a submission to a built-in one."""
    if type(value) is not list or len(value) != 2 or not all(type(part) is str for part in value):
        return RuntimeError("the submission raised an exception")
    kind = getattr(builtins, value[0], None)
    try:
        if isinstance(kind, type) and issubclass(kind, Exception):
            return kind(value[1])
    except TypeError:  # The exception needs more than a message.
        pass
    return RuntimeError(f"{value[0]}: {value[1]}")
