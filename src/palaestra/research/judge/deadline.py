"""Work that may never end: done in a thread of its own, which is waited for, and interrupted when its time is over."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")

GRACE = 4.0
"""Seconds that interrupted work has to end its own; then it is left to itself, as a thread that keeps no process alive."""


class Interrupted(BaseException):
    """Raised in work whose time is over. No `Exception`, so that nothing takes it for an error of its own."""


class OverdueError(Exception):
    """Work took longer than it may."""


def within(seconds: float, work: Callable[[], T], release: Callable[[], None] = lambda: None) -> T:
    """What `work` gives, or whatever it raises, if it ends in time.

    Ctrl-C while it is waited for interrupts it, and is raised again.

    Arguments:
        release: called where the work does not end at once, to end what it may be waiting for.

    Raises:
        OverdueError: it did not end in time, and was interrupted.

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
            except BaseException as error:  # Raised again by whoever waits for it.
                raised.append(error)
        except Interrupted:
            pass  # It came when the work was over already.
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
    """Raise `Interrupted` in a thread, as soon as it is not in a call of the system."""
    if thread.ident is not None and thread.is_alive():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Interrupted))


def _stop(thread: threading.Thread, over: threading.Event, release: Callable[[], None]) -> None:
    interrupt(thread)
    if not over.wait(GRACE / 2):
        release()
        interrupt(thread)  # It may have caught the first one, and gone on.
        over.wait(GRACE / 2)
