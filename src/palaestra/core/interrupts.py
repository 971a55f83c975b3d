"""Ctrl-C and SIGTERM: stop where the work can be saved."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any


class Terminated(KeyboardInterrupt):
    """The process was asked to end by SIGTERM, as schedulers and containers do."""


def raise_on_sigterm() -> None:
    """Let SIGTERM raise `Terminated`, so that it ends a program as Ctrl-C does. An ignored signal stays ignored."""

    def handle(number: int, frame: FrameType | None) -> None:
        raise Terminated

    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, handle)


class HeldInterrupts:
    """A block in which the first Ctrl-C or SIGTERM waits until the work is saved; the second stops it at once.

    The block looks at `pending` where it can save, and calls `release` when it has saved. Leaving the block
    raises what is still pending. Outside the main thread, where Python has no signals, nothing is held.

    Arguments:
        notify: is called when the first signal comes, to tell the user what will happen.

    >>> with HeldInterrupts() as held:
    ...     for step in range(3):
    ...         if held.pending:
    ...             pass  # save the state here
    ...         held.release()
    """

    def __init__(self, notify: Callable[[], None] = lambda: None) -> None:
        self.notify = notify
        self._signal: KeyboardInterrupt | None = None
        self._handlers: dict[int, Any] = {}

    @property
    def pending(self) -> bool:
        """Whether a signal has come."""
        return self._signal is not None

    def release(self) -> None:
        """Raise the signal that has come, if one has."""
        if self._signal is not None:
            held, self._signal = self._signal, None
            raise held

    def __enter__(self) -> HeldInterrupts:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                # Whoever ignores a signal means it; a handler that was not set from Python cannot be put back.
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._handlers[number] = signal.signal(number, self._hold)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._handlers:
            signal.signal(*self._handlers.popitem())
        if error is None:
            self.release()

    def _hold(self, number: int, frame: FrameType | None) -> None:
        first = self._signal is None
        self._signal = self._signal or (Terminated() if number == signal.SIGTERM else KeyboardInterrupt())
        if not first:
            self.release()
        self.notify()
