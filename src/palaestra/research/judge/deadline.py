"""Run work with a time limit, in a thread that is interrupted when the time is over."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")

GRACE = 4.0
"""Seconds that interrupted work has to clean up. After that its daemon thread is abandoned."""


class Interrupted(BaseException):
    """Raised in work whose time is over. It is not an `Exception`, so that ordinary handlers do not catch it."""


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
            pass  # It arrived after the work had ended.
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
        interrupt(thread)  # It may have caught the first one and continued.
        over.wait(GRACE / 2)
