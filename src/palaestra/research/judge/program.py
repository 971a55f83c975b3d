"""Call functions of a submission from outside its sandbox, and limit the time of such work."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from contextvars import copy_context
from typing import Any, Self, TypeVar

from palaestra.core.errors import SandboxError
from palaestra.core.records import Json
from palaestra.research.tasks.task import SubmissionError
from palaestra.sandbox.base import MIB, Limits, Sandbox
from palaestra.sandbox.rpc import Script, last_error_line

_MAX_ANSWER = 8 * MIB
"""Maximum bytes of a submission's answer."""
_FOLDER = "_palaestra"
"""The folder of our script in the submission's workspace."""
_SERVER = Script(
    "palaestra.research.judge.inside", ("submission_server",), _MAX_ANSWER, folder=_FOLDER, command=("python3", "-B")
)


class Program:
    """A module of a submission in its own sandbox. Use it as a context manager.

    Function calls and results are JSON: the module sees only its arguments. Results are untrusted and must be checked.
    `called` says whether the module has received anything yet.

    Arguments:
        files: the submission.
        module: the file to import, without `.py`.

    Raises:
        SubmissionError: the module cannot be imported.
        SandboxError: the sandbox failed.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        files: Mapping[str, bytes],
        module: str,
        limits: Limits,
        read_only: Mapping[str, str] = {},
        env: Mapping[str, str] = {},
    ) -> None:
        self.module, self.called = module, False
        own = {name: content for name, content in files.items() if not name.startswith(f"{_FOLDER}/")}
        self._session = _SERVER.start(sandbox, limits, own, read_only, env)
        try:
            self._ask({"module": module})
        except BaseException:
            self.close()
            raise

    def call(self, function: str, *arguments: object, **named: object) -> Any:
        """Call a function of the module and return its value.

        Raises:
            SubmissionError: the function is missing, raised, exceeded a limit or returned something other than JSON.
            SandboxError: the sandbox failed.
        """
        return self._ask({"function": function, "arguments": arguments, "named": named})

    def map(self, function: str, many: Sequence[Sequence[object]]) -> list[Any]:
        """Call a function for many tuples of arguments in one message; raises like `call`."""
        values = self._ask({"function": function, "many": many})
        if not isinstance(values, list) or len(values) != len(many):
            calls = f"{len(many)} calls of {function}"
            raise SubmissionError(f"{self.module}.py did not give one value for each of {calls}")
        return values

    def _ask(self, message: Json) -> Any:
        self.called = self.called or "function" in message
        self._session.send(message)
        reply = self._session.receive()
        # Accept only a value or an error; a submission can write anything to the pipe.
        if reply is None or reply.keys() not in ({"value"}, {"error"}):
            result = self._session.close()
            if self._session.too_long:
                too_long = f"{self.module}.py gave an answer of more than {_MAX_ANSWER} bytes"
                raise SubmissionError(too_long, too_long)
            ended = f"{self.module}.py ended before it answered ({result.status.value})"
            raise SubmissionError(f"{ended}: {last_error_line(result)}", ended)
        if "error" in reply:
            raised = f"{self.module}.py raised an exception"
            raise SubmissionError(f"{self.module}.py: {str(reply['error'])[:2000]}", raised)
        return reply["value"]

    def close(self) -> None:
        """End the program."""
        with suppress(SandboxError):
            self._session.close()

    def kill(self) -> None:
        """End the program at once from another thread. Waiting calls fail."""
        interrupt(self._session.thread)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


# Time limits

T = TypeVar("T")

GRACE = 4.0
"""Seconds that interrupted work has to clean up. After that its daemon thread is abandoned."""


class Interrupted(BaseException):
    """Raised in work that exceeds its time limit. Not an `Exception`, so that ordinary handlers do not catch it."""


class OverdueError(Exception):
    """Work exceeded its time limit."""


def within(seconds: float, work: Callable[[], T], release: Callable[[], None] = lambda: None) -> T:
    """Run `work` with a time limit and return its result. Exceptions of the work are raised again.

    Ctrl-C interrupts the work and is raised again.

    Arguments:
        release: called if the work does not stop at once, to unblock what it waits for.

    Raises:
        OverdueError: the work did not end in time and was interrupted.

    Example:
        >>> within(5.0, lambda: 6 * 7)
        42
    """
    outcome: Future[T] = Future()

    def run() -> None:
        with suppress(Interrupted):  # It may arrive after the work has ended.
            try:
                outcome.set_result(work())
            except BaseException as error:  # Raised again in the waiting thread.
                outcome.set_exception(error)

    thread = threading.Thread(target=copy_context().run, args=(run,), name="deadline", daemon=True)
    thread.start()
    try:
        wait([outcome], seconds)
    except BaseException:
        _stop(thread, release)
        raise
    if not outcome.done():
        _stop(thread, release)
        raise OverdueError(f"it took longer than {seconds:g} s")
    return outcome.result()


def interrupt(thread: threading.Thread) -> None:
    """Raise `Interrupted` in a thread as soon as it leaves a system call."""
    if thread.ident is not None and thread.is_alive():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Interrupted))


def _stop(thread: threading.Thread, release: Callable[[], None]) -> None:
    interrupt(thread)
    thread.join(GRACE / 2)
    if thread.is_alive():
        release()
        interrupt(thread)  # The work may have caught the first one and continued.
        thread.join(GRACE / 2)
