"""The connection between an evaluator and a submission: a JSON codec, and low-latency reads of a pipe.

Values come from untrusted code; decoding them runs no code. `None`, booleans, numbers, strings and lists represent
themselves. Everything else is an object with one key that names its type, for example `{"tuple": [1, 2]}`. Subclasses of
plain types, such as named tuples, are sent as their plain base.
"""

from __future__ import annotations

import base64
import importlib
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from os import read
from typing import Any

SCALARS = frozenset({type(None), bool, int, float, str})
COLLECTIONS: tuple[type[Any], ...] = (tuple, set, frozenset)
ARRAYS = "biufc"
"""NumPy dtype kinds that count as values: booleans and numbers."""


def encode(value: object) -> bytes:
    """Encode a plain value.

    Raises:
        TypeError: the value is not plain.
        ValueError, RecursionError: the value is too large for JSON.
    """
    return b"%d" % value if type(value) is int else json.dumps(to_json(value)).encode()


def decode(line: bytes) -> Any:
    """Decode a plain value from an untrusted source.

    Raises:
        ValueError: it is not a plain value.
    """
    if line.isdigit() and len(line) < 19:
        return int(line)
    try:
        return DECODER.decode(line.decode("ascii"))
    except RecursionError:
        raise ValueError("a value is nested too deeply") from None
    except (TypeError, LookupError, AttributeError, ArithmeticError, MemoryError) as error:
        raise ValueError(f"not a plain value: {type(error).__name__}") from None


def to_json(value: Any) -> Any:
    if type(value) in SCALARS:
        return value
    if isinstance(value, list):
        return [to_json(item) for item in list.__iter__(value)]
    if isinstance(value, dict):
        return {"dict": [[to_json(key), to_json(item)] for key, item in dict.items(value)]}
    for kind in COLLECTIONS:
        if isinstance(value, kind):
            return {kind.__name__: [to_json(item) for item in kind.__iter__(value)]}
    numpy: Any = sys.modules.get("numpy")  # Before the numbers, because some NumPy types derive from Python's.
    if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic) and value.dtype.kind in ARRAYS:
        data = base64.b64encode(numpy.asarray(value).tobytes()).decode()
        return {"array" if isinstance(value, numpy.ndarray) else "element": [value.dtype.str, list(value.shape), data]}
    if isinstance(value, bytes | bytearray):
        return {"bytes" if isinstance(value, bytes) else "bytearray": base64.b64encode(value).decode()}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    for base in (int, float, str):
        if isinstance(value, base):
            return base.__add__(value, base())  # type: ignore[operator]
    raise TypeError(f"expected plain data: numbers, texts, lists, dictionaries, arrays; got {type(value).__name__}")


def _rebuild(encoded: dict[str, Any]) -> Any:
    ((name, parts),) = encoded.items()
    return BUILDERS[name](parts)


def _array(parts: list[Any]) -> Any:
    name, shape, data = parts
    if type(name) is not str or name[1:2] not in ARRAYS or any(type(size) is not int or size < 0 for size in shape):
        raise ValueError("not an array")
    numpy: Any = importlib.import_module("numpy")
    return numpy.frombuffer(base64.b64decode(data, validate=True), numpy.dtype(name)).reshape(shape).copy()


def _element(parts: list[Any]) -> Any:
    if parts[1] != []:
        raise ValueError("not a single number")
    return _array(parts)[()]


DECODER = json.JSONDecoder(object_hook=_rebuild)
BUILDERS: dict[str, Callable[[Any], Any]] = {
    "dict": dict,
    **{kind.__name__: kind for kind in COLLECTIONS},
    "bytes": lambda text: base64.b64decode(text, validate=True),
    "bytearray": lambda text: bytearray(base64.b64decode(text, validate=True)),
    "complex": lambda parts: complex(*parts),
    "array": _array,
    "element": _element,
}


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
