"""The interrupts of a process, and its rank among several."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any


class Terminated(KeyboardInterrupt):
    """The process received SIGTERM, for example from a scheduler or a container."""


def raise_on_sigterm() -> None:
    """Make SIGTERM raise `Terminated`, as Ctrl-C raises `KeyboardInterrupt`. An ignored signal stays ignored."""

    def handle(number: int, frame: FrameType | None) -> None:
        raise Terminated

    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, handle)


class HeldInterrupts:
    """A context in which the first Ctrl-C or SIGTERM is postponed until the work is saved. The second stops at once.

    The code inside checks `pending` where it can save, and calls `release` after saving. Leaving the context raises a
    pending signal. Outside the main thread, where Python has no signals, nothing is postponed.

    Arguments:
        notify: called on the first signal, to inform the user.

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
        """Whether a signal has arrived."""
        return self._signal is not None

    def release(self) -> None:
        """Raise the pending signal, if any."""
        if self._signal is not None:
            held, self._signal = self._signal, None
            raise held

    def __enter__(self) -> HeldInterrupts:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                # Ignored signals stay ignored. A handler that was not set from Python cannot be restored.
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


def read_launch_size() -> int:
    """The number of processes that torchrun has started; 1 without torchrun."""
    return int(os.environ["WORLD_SIZE"]) if "TORCHELASTIC_RUN_ID" in os.environ else 1


def read_launch_rank() -> int:
    """The number of this process among them. Only rank 0 prints and writes."""
    return int(os.environ["RANK"]) if "TORCHELASTIC_RUN_ID" in os.environ else 0
