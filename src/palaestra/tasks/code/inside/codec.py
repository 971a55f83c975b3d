"""Values on their way between two processes, as JSON with tags: no code can travel in them.

A list is a list. Everything that JSON does not know is an object with one key, the tag. What cannot be told is
left where it is and named by a number (`remote`).
"""

from __future__ import annotations

import base64
import collections
import datetime
import decimal
import fractions
import itertools
import json
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` itself would take longer to import than everything else here.
    from collections.abc import Callable
    from typing import Any

MOST_ITEMS = 1_000_000
if hasattr(sys, "set_int_max_str_digits"):
    sys.set_int_max_str_digits(0)

_ITERATORS = (types.GeneratorType, map, filter, zip, enumerate, reversed, itertools.chain, itertools.islice)
_VIEWS: Any = (type({}.keys()), type({}.values()), type({}.items()))
_PLAIN: Any = (bool, int, float, str, list, tuple, set, dict)
_LISTS: dict[str, Any] = {"tuple": tuple, "set": set, "frozenset": frozenset, "deque": collections.deque}
_DICTS: dict[str, Any] = {"dict": dict, "Counter": collections.Counter, "OrderedDict": collections.OrderedDict}


class Unspeakable(TypeError):
    """A value that has no form here."""


def pack(value: Any, keep: Callable[[Any], int]) -> Any:
    """`value` as something that `json` can write; `keep(value)` is given what must stay, and names it."""
    if value is None or value is True or value is False or type(value) is str:
        return value
    kind: Any = type(value)
    if kind is int:
        return value if abs(value) < 2**53 else {"int": hex(value)}
    if kind is float:
        return {"float": value.hex()}
    if kind is list:
        return [pack(one, keep) for one in value]
    if kind.__name__ in _LISTS and kind is _LISTS[kind.__name__]:
        items = sorted(value, key=repr) if kind in (set, frozenset) else value
        return {kind.__name__: [pack(one, keep) for one in items]}
    if kind is collections.defaultdict:
        kind = dict
    if kind.__name__ in _DICTS and kind is _DICTS[kind.__name__]:
        return {kind.__name__: [[pack(k, keep), pack(v, keep)] for k, v in value.items()]}
    if kind is complex:
        return {"complex": [value.real.hex(), value.imag.hex()]}
    if kind in (bytes, bytearray):
        return {kind.__name__: base64.b64encode(value).decode()}
    if kind is range:
        return {"range": [value.start, value.stop, value.step]}
    if kind in (fractions.Fraction, decimal.Decimal):
        return {kind.__name__: str(value)}
    if kind in (datetime.date, datetime.datetime, datetime.time):
        return {kind.__name__: value.isoformat()}
    if kind is datetime.timedelta:
        return {"timedelta": [value.days, value.seconds, value.microseconds]}
    if isinstance(value, _ITERATORS) or (hasattr(value, "__next__") and hasattr(value, "__iter__")):
        return {"iterator": [pack(one, keep) for one in itertools.islice(value, MOST_ITEMS)]}
    if isinstance(value, _VIEWS):
        return [pack(one, keep) for one in value]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {"tuple": [pack(one, keep) for one in value]}
    for plain in _PLAIN:
        if isinstance(value, plain):  # A class of the program's own that is one of these: its contents go.
            return pack(plain(value), keep)
    return {"remote": keep(value)}


def unpack(packed: Any, remote: Callable[[int], Any]) -> Any:
    """The value again; `remote(number)` stands for what stayed."""
    if isinstance(packed, list):
        return [unpack(one, remote) for one in packed]
    if not isinstance(packed, dict):
        return packed
    ((tag, inner),) = packed.items()
    if tag == "int":
        return int(inner, 16)
    if tag == "float":
        return float.fromhex(inner)
    if tag in _LISTS:
        return _LISTS[tag](unpack(one, remote) for one in inner)
    if tag in _DICTS:
        return _DICTS[tag]({unpack(k, remote): unpack(v, remote) for k, v in inner})
    if tag == "complex":
        return complex(float.fromhex(inner[0]), float.fromhex(inner[1]))
    if tag in ("bytes", "bytearray"):
        return {"bytes": bytes, "bytearray": bytearray}[tag](base64.b64decode(inner))
    if tag == "range":
        return range(*inner)
    if tag in ("Fraction", "Decimal"):
        return {"Fraction": fractions.Fraction, "Decimal": decimal.Decimal}[tag](inner)
    if tag in ("date", "datetime", "time"):
        return getattr(datetime, tag).fromisoformat(inner)
    if tag == "timedelta":
        return datetime.timedelta(*inner)
    if tag == "iterator":
        return iter([unpack(one, remote) for one in inner])
    if tag == "remote":
        return remote(int(inner))
    raise Unspeakable(f"unknown tag {tag!r}")


def line(message: dict[str, Any]) -> bytes:
    """A message as one line."""
    return (json.dumps(message, ensure_ascii=True, separators=(",", ":")) + "\n").encode()
