"""Values on their way between an evaluator and a submission: as JSON, never pickled, nothing in them is run.

`None`, truth values, texts, floats and ordinary whole numbers are themselves. Everything else is a list that begins with a
tag, as `["t", 1, 2]` for the tuple `(1, 2)`. What is no such value is a handle: a number by which the other side can ask for it.
"""

from __future__ import annotations

import base64
import importlib
import re
import sys
from collections.abc import Callable
from itertools import chain
from typing import Any

DEPTH = 100
"""Containers within containers."""
MOST = 4_000_000
"""Values in one message."""
DIRECT = frozenset({type(None), bool, float})
PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
"""Halves of a character side by side, of which JSON would make one."""
WORD = 1 << 63
"""Whole numbers up to here are themselves; JSON has no room for thousands of digits."""
KINDS = "biufcSUmM"
"""Kinds of arrays of NumPy that are values; the others hold objects, or fields."""
DTYPE = re.compile(rf"[<>|=][{KINDS}]\d{{1,9}}(\[[\w/]{{1,16}}\])?")
TORCH_DTYPE = re.compile(r"[a-z]+[0-9]*(_[a-z0-9]+)?")

Other = Callable[[object], list[Any]]
"""What is sent for something that is no value; raises where there is nothing."""
Handle = Callable[[int, bool], object]
"""What stands for a handle, by its number and whether it can be called."""


class TooLarge(ValueError):
    """A value is too deep, or has too many parts."""


class Garbled(ValueError):
    """What came is no value."""


class Encoder:
    """Turns values into what JSON can carry.

    Subclasses of plain types, as named tuples, go as their plain base.

    Raises:
        TooLarge: see `DEPTH` and `MOST`; what contains itself is too deep.
    """

    def __init__(self, other: Other) -> None:
        self.other, self.left = other, MOST

    def encode(self, value: Any, depth: int = 0) -> Any:
        kind = type(value)
        if kind in DIRECT:
            return value
        if kind is int:
            return value if -WORD < value < WORD else ["i", hex(value)]
        if kind is str:
            return ["u", _text(value.encode("utf-8", "surrogatepass"))] if PAIR.search(value) else value
        if kind is list:
            return self._many("l", value, depth)
        if kind is tuple:
            return self._many("t", value, depth)
        if kind is dict:
            return self._many("d", chain.from_iterable(value.items()), depth)
        return self._rarer(value, depth)

    def _many(self, tag: str, values: Any, depth: int) -> list[Any]:
        if depth >= DEPTH:
            raise TooLarge(f"a value has more than {DEPTH} containers within each other")
        found = [tag, *[one if type(one) in DIRECT else self.encode(one, depth + 1) for one in values]]
        self.left -= len(found)
        if self.left < 0:
            raise TooLarge(f"a value has more than {MOST} parts")
        return found

    def _rarer(self, value: Any, depth: int) -> Any:
        array = _array(value) or _tensor(value)
        if array is not None:
            return array
        # By the methods of the plain types: what a subclass makes of them does not matter.
        match value:
            case int():
                return self.encode(int.__add__(value, 0))
            case float():
                return float.__float__(value)
            case complex():
                return ["c", value.real, value.imag]
            case str():
                return self.encode(str.__str__(value))
            case bytes():
                return ["b", _text(value)]
            case bytearray():
                return ["a", _text(value)]
            case list():
                return self._many("l", list.__iter__(value), depth)
            case tuple():
                return self._many("t", tuple.__iter__(value), depth)
            case dict():
                return self._many("d", chain.from_iterable(dict.items(value)), depth)
            case set():
                return self._many("s", set.__iter__(value), depth)
            case frozenset():
                return self._many("f", frozenset.__iter__(value), depth)
            case range():
                return self._many("r", (value.start, value.stop, value.step), depth)
            case slice():
                return self._many("x", (value.start, value.stop, value.step), depth)
        return self.other(value)


class Decoder:
    """Turns what JSON carried into values again, whoever wrote it.

    Raises:
        Garbled: it is no value.
    """

    def __init__(self, handle: Handle) -> None:
        self.handle = handle

    def decode(self, wire: Any) -> Any:
        try:
            return self._decode(wire, 0)
        except Garbled:
            raise
        except Exception as error:  # Shapes that do not fit, keys that cannot be keys, a package that is not there.
            raise Garbled(f"what came is no value: {type(error).__name__}") from None

    def _decode(self, wire: Any, depth: int) -> Any:
        kind = type(wire)
        if kind in DIRECT or kind is str or (kind is int and -WORD < wire < WORD):
            return wire
        if kind is not list or not wire or depth > DEPTH:
            raise Garbled("what came is no value")
        tag = wire[0]
        if tag in SMALL:
            return SMALL[tag](*wire[1:])
        if tag == "h":
            _, number, called = wire
            if type(number) is not int or type(called) is not bool:
                raise Garbled("what came is no handle")
            return self.handle(number, called)
        parts = [one if type(one) in DIRECT else self._decode(one, depth + 1) for one in wire[1:]]
        match tag:
            case "l":
                return parts
            case "t":
                return tuple(parts)
            case "d":
                return dict(zip(parts[::2], parts[1::2], strict=True))
            case "s":
                return set(parts)
            case "f":
                return frozenset(parts)
            case "r":
                return range(*parts)
            case "x":
                return slice(*parts)
        raise Garbled("what came has an unknown tag")


def _text(data: bytes | bytearray) -> str:
    return base64.b64encode(data).decode("ascii")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _array(value: Any) -> list[Any] | None:
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, (numpy.ndarray, numpy.generic)):
        return None
    if value.dtype.kind not in KINDS or hasattr(value, "mask"):
        return None
    tag = "n" if isinstance(value, numpy.ndarray) else "e"
    return [tag, value.dtype.str, list(value.shape), _text(numpy.asarray(value).tobytes())]


def _tensor(value: Any) -> list[Any] | None:
    torch: Any = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.is_quantized:
        return None
    plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
    data = plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    return ["T", str(plain.dtype).removeprefix("torch."), list(plain.shape), _text(data)]


def _array_of(name: str, shape: list[int], text: str) -> Any:
    if not DTYPE.fullmatch(name):
        raise Garbled("what came has an unknown type of array")
    numpy: Any = importlib.import_module("numpy")
    dtype, data = numpy.dtype(name), _bytes(text)
    if not data:
        found = numpy.zeros(shape, dtype)
        if found.nbytes:
            raise Garbled("what came is an array without its content")
        return found
    return numpy.frombuffer(data, dtype).reshape([_size(one) for one in shape]).copy()


def _element_of(name: str, shape: list[int], text: str) -> Any:
    if shape:
        raise Garbled("what came is no single number")
    return _array_of(name, shape, text)[()]


def _tensor_of(name: str, shape: list[int], text: str) -> Any:
    torch: Any = importlib.import_module("torch")
    dtype = getattr(torch, name, None) if TORCH_DTYPE.fullmatch(name) else None
    if not isinstance(dtype, torch.dtype):
        raise Garbled("what came has an unknown type of tensor")
    data = bytearray(_bytes(text))
    sizes = [_size(one) for one in shape]
    if not data:
        if 0 not in sizes:
            raise Garbled("what came is a tensor without its content")
        return torch.zeros(sizes, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).reshape(sizes)


def _size(value: object) -> int:
    if type(value) is not int or value < 0:
        raise Garbled("what came has no shape")
    return value


def _whole(text: str) -> int:
    return int(text, 16)


def _complex(real: float, imaginary: float) -> complex:
    if type(real) is not float or type(imaginary) is not float:
        raise Garbled("what came is no complex number")
    return complex(real, imaginary)


SMALL: dict[str, Callable[..., Any]] = {
    "i": _whole,
    "c": _complex,
    "b": _bytes,
    "u": lambda text: _bytes(text).decode("utf-8", "surrogatepass"),
    "a": lambda text: bytearray(_bytes(text)),
    "n": _array_of,
    "e": _element_of,
    "T": _tensor_of,
}
"""What is made of the parts of a message as they are."""
