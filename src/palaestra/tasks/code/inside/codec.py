"""Values on their way between two processes, as JSON with tags: no code can travel in them.

A list is a list. Everything that JSON does not know is an object with one key, the tag. What cannot be told is
left where it is and named by a number (`remote`).

Python starts anew for every program, so this imports next to nothing: modules written in Python, `json` among them,
would take longer than most programs run.
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

MOST_ITEMS = 1_000_000
if hasattr(sys, "set_int_max_str_digits"):
    sys.set_int_max_str_digits(0)

_VIEWS: Any = (type({}.keys()), type({}.values()), type({}.items()))
_PLAIN: Any = (bool, int, float, str, list, tuple, set, dict)
_LISTS: dict[str, Any] = {"tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque}
_DICTS: dict[str, Any] = {"dict": dict, "OrderedDict": OrderedDict}
_DATES = ("date", "datetime", "time")


class Unspeakable(TypeError):
    """A value that has no form here."""


def pack(value: Any, keep: Callable[[Any], int]) -> Any:
    """`value` as something that JSON can hold; `keep(value)` is given what must stay, and names it."""
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
    if kind is defaultdict:
        kind = dict
    if (kind.__name__ in _DICTS and kind is _DICTS[kind.__name__]) or kind is _known("collections", "Counter"):
        return {kind.__name__: [[pack(k, keep), pack(v, keep)] for k, v in value.items()]}
    if kind is complex:
        return {"complex": [value.real.hex(), value.imag.hex()]}
    if kind in (bytes, bytearray):
        return {kind.__name__: binascii.b2a_base64(value, newline=False).decode()}
    if kind is range:
        return {"range": [value.start, value.stop, value.step]}
    if kind in (_known("fractions", "Fraction"), _known("decimal", "Decimal")):
        return {kind.__name__: str(value)}
    if kind.__name__ in _DATES and kind is _known("datetime", kind.__name__):
        return {kind.__name__: value.isoformat()}
    if kind is _known("datetime", "timedelta"):
        return {"timedelta": [value.days, value.seconds, value.microseconds]}
    if hasattr(value, "__next__") and hasattr(value, "__iter__"):
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
    if tag in _DICTS or tag == "Counter":
        kind = _DICTS.get(tag) or _imported("collections", tag)
        return kind({unpack(k, remote): unpack(v, remote) for k, v in inner})
    if tag == "complex":
        return complex(float.fromhex(inner[0]), float.fromhex(inner[1]))
    if tag in ("bytes", "bytearray"):
        return {"bytes": bytes, "bytearray": bytearray}[tag](binascii.a2b_base64(inner))
    if tag == "range":
        return range(*inner)
    if tag in ("Fraction", "Decimal"):
        return _imported({"Fraction": "fractions", "Decimal": "decimal"}[tag], tag)(inner)
    if tag in _DATES:
        return _imported("datetime", tag).fromisoformat(inner)
    if tag == "timedelta":
        return _imported("datetime", tag)(*inner)
    if tag == "iterator":
        return iter([unpack(one, remote) for one in inner])
    if tag == "remote":
        return remote(int(inner))
    raise Unspeakable(f"unknown tag {tag!r}")


def line(message: dict[str, Any]) -> bytes:
    """A message as one line."""
    return (write(message) + "\n").encode()


def _known(module: str, name: str) -> Any:
    """A class, if somebody has imported its module: else no value is one of it."""
    found = sys.modules.get(module)
    return getattr(found, name, None) if found is not None else _NOBODY


def _imported(module: str, name: str) -> Any:
    return getattr(__import__(module), name)


class _Nobody:
    """No value is of this class."""


_NOBODY: Any = _Nobody


def _refuse(value: object) -> Any:
    raise Unspeakable(f"a {type(value).__name__} has no form here")


class _Reading:
    """What the parser is to make of things: as `json` has it."""

    strict, object_hook, object_pairs_hook, memo = True, None, None, {}  # type: ignore[var-annotated]
    parse_float, parse_int, parse_constant = float, int, float


try:  # The parts of `json` that are in C, without those that are not.
    from _json import encode_basestring_ascii, make_encoder, make_scanner

    _scan = make_scanner(_Reading())  # type: ignore[arg-type]
    _encode = make_encoder(None, _refuse, encode_basestring_ascii, None, ":", ",", False, False, True)

    def write(value: Any) -> str:
        return "".join(_encode(value, 0))

    def read(text: str | bytes) -> Any:
        """What a line says; raises ValueError where it is no JSON."""
        try:
            return _scan(text.decode() if isinstance(text, bytes) else text, 0)[0]
        except StopIteration as error:
            raise ValueError(f"no JSON at {error.value}") from None

    assert read(write({"a": [1, "\u00e9", None, True]})) == {"a": [1, "\u00e9", None, True]}
except (ImportError, TypeError, AttributeError, AssertionError):  # Another Python may have them otherwise.
    import json

    def write(value: Any) -> str:
        return json.dumps(value, ensure_ascii=True, separators=(",", ":"))

    read = json.loads  # type: ignore[assignment]
