"""Runs inside a sandbox: the script's end of `palaestra.sandbox.rpc`, one JSON object per line on stdin and stdout.

Python starts anew for each script, so this module imports almost nothing. `json` and `os` would take longer to import
than most programs run.
"""

from __future__ import annotations

import posix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class HostChannel:
    """Sends messages to the host and receives messages from it.

    It takes over stdin and stdout. Afterwards stdin is empty, and what a program prints goes to stderr, where the
    host reads no messages.
    """

    def __init__(self) -> None:
        self._input, self._output = open(posix.dup(0), "rb"), posix.dup(1)  # noqa: SIM115
        posix.dup2(posix.open("/dev/null", posix.O_RDWR), 0)
        posix.dup2(2, 1)

    def send(self, message: Any) -> None:
        """Send one message; raises `TypeError` if it contains a value that JSON does not have."""
        data = (encode(message) + "\n").encode()
        while data:
            data = data[posix.write(self._output, data) :]

    def receive(self) -> Any:
        """Return the next message; None if the host has closed the channel."""
        line = self._input.readline()
        return decode(line) if line else None


def _refuse(value: object) -> Any:
    raise TypeError(f"JSON has no {type(value).__name__}")


class _ScannerSettings:
    """The settings that `json` gives its parser."""

    strict, object_hook, object_pairs_hook, memo = True, None, None, {}  # type: ignore[var-annotated]
    parse_float, parse_int, parse_constant = float, int, float


try:  # The parts of `json` that are written in C, without those written in Python.
    from _json import encode_basestring_ascii, make_encoder, make_scanner

    _scan = make_scanner(_ScannerSettings())  # type: ignore[arg-type]
    _encode = make_encoder(None, _refuse, encode_basestring_ascii, None, ":", ",", False, False, True)

    def encode(value: Any) -> str:
        """Return `value` as JSON without line breaks, in ASCII."""
        return "".join(_encode(value, 0))

    def decode(text: bytes) -> Any:
        """Return the value of a JSON text; raises `ValueError` if it is not valid."""
        try:
            return _scan(text.decode(), 0)[0]
        except StopIteration as error:
            raise ValueError(f"invalid JSON at {error.value}") from None

    assert decode(encode({"a": [1, "\u00e9", None, True]}).encode()) == {"a": [1, "\u00e9", None, True]}
except (ImportError, TypeError, AttributeError, AssertionError):  # Another Python version may differ.
    import json

    def encode(value: Any) -> str:
        return json.dumps(value, ensure_ascii=True, separators=(",", ":"), default=_refuse)

    decode = json.loads  # type: ignore[assignment]
