"""Reading short messages from a pipe with little delay."""

from __future__ import annotations

import os
from contextlib import suppress
from os import read

SMALL = 2048
"""Bytes that are read at first."""
TRIES, MISSES = 100, 200


class Reader:
    """The end of a pipe that is read.

    A process that sleeps until a message comes loses more time by being woken than a short call takes. So this one looks
    again and again for some 50 microseconds before it sleeps, on a core of its own, as it would keep the other side from
    running otherwise. Where that is mostly in vain, because calls are long or the machine is busy, it stops doing so.

    Arguments:
        core: the core to run on; below 0 for any, and for no such waiting.
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
        """What has come, at most `size` bytes; waits for it. Nothing at the end."""
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
