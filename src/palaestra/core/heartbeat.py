"""Progress events during work that reports nothing by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from palaestra.core.records import Event, Listener

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
