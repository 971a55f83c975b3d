"""A line to a program in a sandbox: one JSON object a line, and an end to how long one may be."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

MOST_DIGITS = 4300
"""Of an integer in a message; as Python has it."""


class Channel:
    """Two ends of a line: ours to talk on, and `theirs`, to be the program's stdin (see `Sandbox.run`).

    Arguments:
        longest: bytes of the largest message that is taken.
        most_commas: in the largest message; 0 for any number. A comma takes little on the line, and much in memory.
        ascii: whether other characters are sent as escapes; without, what is no character at all is sent as `?`.

    Raises:
        OSError: the machine is out of open files.
    """

    def __init__(self, longest: int, *, most_commas: int = 0, ascii: bool = True) -> None:
        self.longest, self.most_commas, self.ascii = longest, most_commas, ascii
        self.too_long, self.garbled = False, False
        """Whether a message came that is beyond the limit; whether something came that is no message."""
        self.mine, self.theirs = socket.socketpair()
        self._rest = bytearray()

    def settle(self, seconds: float) -> None:
        """Wait for at most so long for a message."""
        self.mine.settimeout(seconds)

    def send(self, message: Mapping[str, Any]) -> None:
        with suppress(OSError):  # It has ended; whoever reads next finds out why.
            self.mine.sendall(json.dumps(message, ensure_ascii=self.ascii).encode("utf-8", "replace") + b"\n")

    def receive(self) -> dict[str, Any] | None:
        """The next message; None where there is none, or what came is none."""
        seen = 0
        while self._rest.find(b"\n", seen) < 0 and len(self._rest) <= self.longest:
            seen = len(self._rest)
            try:
                more = self.mine.recv(1 << 16)
            except OSError:
                return None
            if not more:
                return None
            self._rest += more
        text, _, self._rest = self._rest.partition(b"\n")
        if len(text) > self.longest or (self.most_commas and text.count(b",") > self.most_commas):
            self.too_long = True
            return None
        try:
            # Reading an integer takes the square of its length, and not every process limits that.
            found = json.loads(text, parse_int=_read_int if len(text) > MOST_DIGITS else None)
        except (ValueError, RecursionError):
            found = None
        self.garbled = not isinstance(found, dict)
        return found if isinstance(found, dict) else None

    def close(self) -> None:
        """Say no more; the other side finds its input at an end."""
        self.mine.close()


def _read_int(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"an integer of more than {MOST_DIGITS} digits")
    return int(digits)
