"""Call functions of a submission from outside its sandbox, and limit the time of such work."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from typing import Any, Self, TypeVar

from palaestra.core.errors import SandboxError
from palaestra.research.tasks.records import SubmissionError
from palaestra.sandbox.base import MIB, Limits, Sandbox
from palaestra.sandbox.rpc import Script, last_error_line

LONGEST = 8 * MIB
"""Maximum bytes of a submission's answer."""
FOLDER = "_palaestra"
"""The folder of our script in the submission's workspace."""
SERVER = Script(
    "palaestra.research.judge.inside", ("submission_server",), LONGEST, folder=FOLDER, command=("python3", "-B")
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
        self._kept = 0
        own = {name: content for name, content in files.items() if not name.startswith(f"{FOLDER}/")}
        self._session = SERVER.start(sandbox, limits, own, read_only, env)
        try:
            names = self._ask({"module": module})
            self.functions: Sequence[str] = [str(name) for name in names] if isinstance(names, list) else []
        except BaseException:
            self.close()
            raise

    def call(self, function: str, *arguments: Any, **named: Any) -> Any:
        """Call a function of the module and return its value.

        Raises:
            SubmissionError: the function is missing, raised, exceeded a limit or returned something other than JSON.
            SandboxError: the sandbox failed.
        """
        return self._ask({"function": function, "arguments": arguments, "named": named})

    def map(self, function: str, many: Sequence[Sequence[Any]]) -> list[Any]:
        """Call a function for many tuples of arguments in one message; raises like `call`."""
        values = self._ask({"function": function, "many": many})
        if not isinstance(values, list) or len(values) != len(many):
            raise SubmissionError(
                f"{self.module}.py did not give one value for each of {len(many)} calls of {function}"
            )
        return values

    def make(self, function: str, *arguments: Any, **named: Any) -> RemoteObject:
        """Call a function or class and keep the result in the sandbox, to call its methods."""
        self._kept += 1
        self._ask({"function": function, "arguments": arguments, "named": named, "keep": str(self._kept)})
        return RemoteObject(self, str(self._kept))

    def _ask(self, message: dict[str, Any]) -> Any:
        self.called = self.called or "function" in message
        self._session.send(message)
        reply = self._session.receive()
        # Accept only a value or an error; a submission can write anything to the pipe.
        if reply is None or reply.keys() not in ({"value"}, {"error"}):
            result = self._session.close()
            if self._session.channel.too_long:
                too_long = f"{self.module}.py gave an answer of more than {LONGEST} bytes"
                raise SubmissionError(too_long, too_long)
            ended = f"{self.module}.py ended before it answered ({result.status.value})"
            raise SubmissionError(f"{ended}: {last_error_line(result)}", ended)
        if "error" in reply:
            raise SubmissionError(
                f"{self.module}.py: {str(reply['error'])[:2000]}", f"{self.module}.py raised an exception"
            )
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


class RemoteObject:
    """An object that a program keeps in its sandbox."""

    def __init__(self, program: Program, number: str) -> None:
        self._program, self._number = program, number

    def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Call a method and return its value; raises like `Program.call`."""
        return self._program._ask({"object": self._number, "function": method, "arguments": arguments, "named": named})


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
    given: list[T] = []
    raised: list[BaseException] = []
    over = threading.Event()

    def run() -> None:
        try:
            try:
                given.append(work())
            except BaseException as error:  # Raised again in the waiting thread.
                raised.append(error)
        except Interrupted:
            pass  # The interrupt arrived after the work had ended.
        finally:
            over.set()

    thread = threading.Thread(target=copy_context().run, args=(run,), name="deadline", daemon=True)
    thread.start()
    try:
        ended = over.wait(seconds)
    except BaseException:
        _stop(thread, over, release)
        raise
    if not ended:
        _stop(thread, over, release)
        raise OverdueError(f"it took longer than {seconds:g} s")
    if raised:
        raise raised[0]
    return given[0]


def interrupt(thread: threading.Thread) -> None:
    """Raise `Interrupted` in a thread as soon as it leaves a system call."""
    if thread.ident is not None and thread.is_alive():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Interrupted))


def _stop(thread: threading.Thread, over: threading.Event, release: Callable[[], None]) -> None:
    interrupt(thread)
    if not over.wait(GRACE / 2):
        release()
        interrupt(thread)  # The work may have caught the first one and continued.
        over.wait(GRACE / 2)
