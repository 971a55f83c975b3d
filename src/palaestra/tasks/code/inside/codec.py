"""Encode Python values as JSON with tags. Decoding runs no code of the sender.

A list stays a list. A value that JSON does not have becomes an object with one key, the tag. An object that cannot be
copied is replaced by a reference (`remote`). Mutable containers are numbered in the order of their first occurrence. A
later occurrence is `{"same": number}`, and an answer can refer to a container of its request. This preserves identity,
aliases and cycles.

Python starts anew for every program, so this module imports almost nothing: modules written in Python would take longer
to import than most programs run.
"""

from __future__ import annotations

import binascii
import itertools
import sys
from _collections import OrderedDict, defaultdict, deque  # type: ignore[import-not-found]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

TESTS = "tests"
"""Name of the module in which the tests define their classes and functions."""
MOST_ITEMS = 1_000_000
OPERATORS = frozenset(
    f"__{name}__"
    for name in (
        "len", "getitem", "setitem", "delitem", "contains", "iter", "next", "reversed", "str", "repr", "format",
        "bool", "call", "int", "float", "index", "hash", "add", "sub", "mul", "truediv", "floordiv", "mod", "pow",
        "neg", "pos", "abs", "and", "or", "xor", "invert", "lshift", "rshift", "matmul", "radd", "rsub", "rmul",
        "rtruediv", "rfloordiv", "rmod", "rpow", "iadd", "isub", "imul", "lt", "le", "gt", "ge", "eq", "ne", "enter",
        "exit", "enter", "exit",
    )
)  # fmt: skip
"""The special methods that a proxy forwards."""

_VIEWS: Any = (type({}.keys()), type({}.values()), type({}.items()))
_PLAIN: Any = (bool, int, float, str, list, tuple, set, dict)
_LISTS: dict[str, Any] = {"tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque}
_DICTS: dict[str, Any] = {"dict": dict, "OrderedDict": OrderedDict}
_DATES = ("date", "datetime", "time")
_MUTABLE: Any = (list, set, dict, OrderedDict, defaultdict, deque, bytearray)


class Unspeakable(TypeError):
    """The value cannot be encoded or decoded."""


class Proxy:
    """Base class of proxies for objects of the other process."""


class Seen:
    """The mutable containers of one request and its answer, numbered by first occurrence."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.numbers: dict[int, int] = {}

    def add(self, value: Any) -> Any:
        self.numbers[id(value)] = len(self.values)
        self.values.append(value)
        return value


def pack(value: Any, keep: Callable[[Any], Any], seen: Seen | None = None) -> Any:
    """Encode a value for JSON; `keep(value)` returns the reference to an object that cannot be copied."""
    if value is None or value is True or value is False or type(value) is str:
        return value
    kind: Any = type(value)
    if kind is int:
        return value if abs(value) < 2**53 else {"int": hex(value)}
    if kind is float:
        return {"float": value.hex()}
    if seen is not None and (kind in _MUTABLE or kind is _get_loaded("collections", "Counter")):
        if id(value) in seen.numbers:
            return {"same": seen.numbers[id(value)]}
        seen.add(value)
    if kind is list:
        return [pack(item, keep, seen) for item in value]
    if kind.__name__ in _LISTS and kind is _LISTS[kind.__name__]:
        return {kind.__name__: contents(value, keep, seen)}
    if kind is defaultdict:
        kind = dict
    if (kind.__name__ in _DICTS and kind is _DICTS[kind.__name__]) or kind is _get_loaded("collections", "Counter"):
        return {kind.__name__: contents(value, keep, seen)}
    if kind is complex:
        return {"complex": [value.real.hex(), value.imag.hex()]}
    if kind in (bytes, bytearray):
        return {kind.__name__: contents(value, keep, seen)}
    if kind is range:
        return {"range": [pack(item, keep) for item in (value.start, value.stop, value.step)]}
    if kind is _get_loaded("fractions", "Fraction"):
        return {"Fraction": [pack(value.numerator, keep), pack(value.denominator, keep)]}
    if kind is _get_loaded("decimal", "Decimal"):
        return {"Decimal": str(value)}
    if kind.__name__ in _DATES and kind is _get_loaded("datetime", kind.__name__):
        return {kind.__name__: value.isoformat()}
    if kind is _get_loaded("datetime", "timedelta"):
        return {"timedelta": [value.days, value.seconds, value.microseconds]}
    if isinstance(value, (type, Proxy)):
        return {"remote": keep(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {"namedtuple": [kind.__name__, list(value._fields), [pack(item, keep, seen) for item in value]]}
    for plain in _PLAIN:
        if isinstance(value, plain):  # A subclass: its contents are sent.
            return pack(plain(value), keep, seen)
    if isinstance(value, _VIEWS):
        return pack(list(value), keep, seen)
    if hasattr(kind, "__next__") and hasattr(kind, "__iter__") and kind.__module__ not in (TESTS, "_io"):
        return {"iterator": [pack(item, keep, seen) for item in itertools.islice(value, MOST_ITEMS)]}
    return {"remote": keep(value)}


def contents(value: Any, keep: Callable[[Any], Any], seen: Seen | None) -> Any:
    """The encoded contents of a container."""
    if isinstance(value, (bytes, bytearray)):
        return binascii.b2a_base64(value, newline=False).decode()
    if isinstance(value, dict):
        return [[pack(k, keep, seen), pack(v, keep, seen)] for k, v in value.items()]
    items = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value
    return [pack(item, keep, seen) for item in items]


def refill(value: Any, packed: Any, remote: Callable[[Any], Any], seen: Seen | None) -> Any:
    """Replace the contents of a mutable container by encoded contents."""
    if isinstance(value, bytearray):
        value[:] = binascii.a2b_base64(packed)
        return value
    if isinstance(value, dict):
        items: Any = {unpack(k, remote, seen): unpack(v, remote, seen) for k, v in packed}
    else:
        items = [unpack(item, remote, seen) for item in packed]
    value.clear()
    (value.update if isinstance(value, (dict, set)) else value.extend)(items)
    return value


def unpack(packed: Any, remote: Callable[[Any], Any], seen: Seen | None = None) -> Any:
    """Decode a value; `remote(reference)` returns the object or proxy for a reference."""
    if isinstance(packed, list):
        return refill(_remember([], seen), packed, remote, seen)
    if not isinstance(packed, dict):
        return packed
    ((tag, inner),) = packed.items()
    if tag == "int":
        return int(inner, 16)
    if tag == "float":
        return float.fromhex(inner)
    if tag in ("set", "deque"):
        return refill(_remember(_LISTS[tag](), seen), inner, remote, seen)
    if tag in _LISTS:
        return _LISTS[tag]([unpack(item, remote, seen) for item in inner])
    if tag in _DICTS or tag == "Counter":
        kind = _DICTS.get(tag) or _import("collections", tag)
        return refill(_remember(kind(), seen), inner, remote, seen)
    if tag == "namedtuple":
        kind = _import("collections", tag)(inner[0], inner[1])
        return kind(*[unpack(item, remote, seen) for item in inner[2]])
    if tag == "same" and seen is not None:
        return seen.values[inner]
    if tag == "complex":
        return complex(float.fromhex(inner[0]), float.fromhex(inner[1]))
    if tag == "bytes":
        return binascii.a2b_base64(inner)
    if tag == "bytearray":
        return refill(_remember(bytearray(), seen), inner, remote, seen)
    if tag == "range":
        return range(*[unpack(item, remote) for item in inner])
    if tag == "Fraction":
        return _import("fractions", tag)(*[unpack(item, remote) for item in inner])
    if tag == "Decimal":
        return _import("decimal", tag)(inner)
    if tag in _DATES:
        return _import("datetime", tag).fromisoformat(inner)
    if tag == "timedelta":
        return _import("datetime", tag)(*inner)
    if tag == "iterator":
        return iter([unpack(item, remote, seen) for item in inner])
    if tag == "remote":
        return remote(inner)
    raise Unspeakable(f"unknown tag {tag!r}")


def _remember(value: Any, seen: Seen | None) -> Any:
    return value if seen is None else seen.add(value)


def _get_loaded(module: str, name: str) -> Any:
    """A class of a module if the module is loaded; otherwise no value can be an instance of it."""
    loaded = sys.modules.get(module)
    return getattr(loaded, name, None) if loaded is not None else _NOBODY


def _import(module: str, name: str) -> Any:
    return getattr(__import__(module), name)


class _NoClass:
    """A class without instances."""


_NOBODY: Any = _NoClass
