"""Low-latency reads of short messages from a pipe."""

from __future__ import annotations

import os
from contextlib import suppress
from os import read

SMALL = 2048
"""Bytes of the first read."""
TRIES, MISSES = 100, 200


class Reader:
    """The reading end of a pipe.

    Waking a sleeping process takes longer than a short call. So the reader polls for about 50 microseconds before it
    sleeps, on its own core so that it does not block the other side. If polling mostly fails, because calls are long or
    the machine is busy, it stops polling.

    Arguments:
        core: the core to run on; negative for any core and no polling.
    """

    def __init__(self, file: int, core: int) -> None:
        self._file, self._tries, self._missed = file, 0, 0
        self._cores = os.sched_getaffinity(0)
        if core >= 0:
            with suppress(OSError):
                os.sched_setaffinity(0, {core})
                os.set_blocking(file, False)
                self._tries = TRIES

    def read(self, size: int = SMALL) -> bytes:
        """Wait for data and return at most `size` bytes; empty at the end of the stream."""
        for _ in range(self._tries):
            try:
                data = read(self._file, size)
            except BlockingIOError:
                continue
            if self._missed:
                self._missed -= 1
            return data
        os.set_blocking(self._file, True)
        data = read(self._file, size)
        self._missed += 1
        if self._missed > MISSES and self._tries:
            self._tries = 0
            with suppress(OSError):
                os.sched_setaffinity(0, self._cores)
        if self._tries:
            os.set_blocking(self._file, False)
        return data
