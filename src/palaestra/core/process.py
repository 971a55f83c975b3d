"""This process: its interrupts, its rank among several, its memory, its heartbeat, the output of its libraries."""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from palaestra.core.records import Event, Listener


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


def read_restarts() -> tuple[int, int]:
    """How often torchrun has restarted the processes, and how often it may (`--max-restarts`)."""
    return tuple(int(os.environ.get(f"TORCHELASTIC_{name}", 0)) for name in ("RESTART_COUNT", "MAX_RESTARTS"))  # type: ignore[return-value]


SECONDS = 5.0
"""Seconds between two events."""


@contextmanager
def repeat_event(listener: Listener, make_event: Callable[[], Event], seconds: float = SECONDS) -> Iterator[None]:
    """Send an event every few seconds, from another thread, while the code inside works."""
    ended = threading.Event()

    def send() -> None:
        with suppress(BaseException):  # The next event of the work raises it in the caller's thread.
            while not ended.wait(seconds):
                listener(make_event())

    thread = threading.Thread(target=send, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


_GB = 1e9


def measure_system() -> dict[str, float]:
    """Measure what this process uses now.

    Returns:
        `system/memory_gb`: memory of the process. With a GPU also `system/gpu_memory_gb`: memory in use on the GPU, by all
        processes; and `system/gpu_utilization` in percent, if the package nvidia-ml-py is installed. A value that cannot be
        measured is left out.
    """
    values: dict[str, float] = {}
    with suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        values["system/memory_gb"] = pages * os.sysconf("SC_PAGE_SIZE") / _GB
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        with suppress(RuntimeError):
            free, total = torch.cuda.mem_get_info()
            values["system/gpu_memory_gb"] = (total - free) / _GB
        with suppress(ModuleNotFoundError, RuntimeError):
            values["system/gpu_utilization"] = float(torch.cuda.utilization())
    return values


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Hide the progress bars of transformers and the messages of datasets, and restore the user's setting afterwards.

    A library that is not imported yet is not imported for this.
    """
    bars: Any = sys.modules.get("transformers.utils.logging")
    data: Any = sys.modules.get("datasets.utils")
    hides_bars = bars is not None and bars.is_progress_bar_enabled()
    hides_data = data is not None and not data.are_progress_bars_disabled()
    level = data.logging.get_verbosity() if data is not None else 0
    try:
        if hides_bars:
            bars.disable_progress_bar()
        if hides_data:
            data.disable_progress_bars()
        if data is not None:
            data.logging.set_verbosity(data.logging.CRITICAL)
        yield
    finally:
        if hides_bars:
            with warnings.catch_warnings(action="ignore"):  # Those of the hub may be disabled by its variable.
                bars.enable_progress_bar()
        if hides_data:
            data.enable_progress_bars()
        if data is not None:
            data.logging.set_verbosity(level)
