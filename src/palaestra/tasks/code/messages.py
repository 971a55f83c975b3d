"""Validate the messages between a program and its tests.

Both processes run in sandboxes: a model wrote the program, and the tests handle values of the program. So every message
is rebuilt here from the keys that it may have, with values of the right types. Anything else raises `MessageError`, and
the side that sent it is at fault.
"""

from __future__ import annotations

import binascii
import builtins
import re
from collections.abc import Callable, Mapping
from typing import Any

from palaestra.tasks.code.inside.codec import MOST_ITEMS, OPERATORS

Packed = Any
MOST_BITS = 1 << 20
"""Maximum size of an integer that a program returns."""
_HEX = re.compile(r"-?0x[0-9a-f]+\Z")
_FLOAT = re.compile(r"-?(?:0x[01]\.[0-9a-f]{1,13}p[+-]\d{1,4}|inf)\Z|nan\Z")
_DECIMAL = re.compile(r"-?(?:\d{1,5000}(?:\.\d{0,5000})?(?:E[+-]?\d{1,6})?|Infinity|s?NaN\d{0,20})\Z")
_DATE = re.compile(r"[0-9T:.+-]{5,40}\Z")
_PURE = {"abs", "all", "any", "len", "max", "min", "round", "sorted", "sum", "NotImplemented", "Ellipsis"}
_VALUE_TYPES = {"bool", "int", "float", "complex", "str", "bytes", "bytearray", "list", "tuple", "set", "frozenset", "dict", "range", "object"}  # fmt: skip
_BUILTINS = _PURE | _VALUE_TYPES | {n for n, x in vars(builtins).items() if isinstance(x, type) and issubclass(x, BaseException)}  # fmt: skip
"""Builtins that a program may return by name. None of them can affect the process of the tests."""


_OF_PROGRAM = ({"program", "class"}, {"tests"}, {"named"})
_OF_TESTS = ({"program"}, {"tests"}, {"tests", "class"}, {"root"}, {"named"})
"""The keys of a reference to an object of the program or of the tests, to a name of the program, or to a Python name."""


class MessageError(ValueError):
    """The message is not valid."""


class ValueTooLarge(MessageError):
    """The value is valid but too large."""


def read_program(message: Mapping[str, Any]) -> dict[str, Any]:
    """Validate a message of the program: an answer, or a request about an object of the tests.

    Raises:
        MessageError: it is neither.
    """
    check = _Checker(of_program=True)
    if "ask" not in message:
        return _read_answer(message, check)
    request = message["ask"]
    if not isinstance(request, dict) or type(request.get("of")) is not int:
        raise MessageError("a request names the object that it is about")
    return {"ask": {**_read_request(request, check, ("call", "get", "set", "operate", "copy")), "of": request["of"]}}


def read_tests(message: Mapping[str, Any]) -> dict[str, Any]:
    """Validate a message of the tests: a request to the program, or an answer to its request.

    Raises:
        MessageError: it is neither.
    """
    check = _Checker(of_program=False)
    if "ask" not in message:
        return _read_answer(message, check)
    request = message["ask"]
    if not isinstance(request, dict):
        raise MessageError("a request is an object")
    known = ("call", "get", "set", "operate", "copy", "isinstance", "issubclass")
    where = {"of": request["of"]} if type(request.get("of")) is int else {"root": _text(request.get("root"))}
    return {"ask": {**_read_request(request, check, known), **where}}


def _read_request(request: Mapping[str, Any], check: _Checker, known: tuple[str, ...]) -> dict[str, Any]:
    what, args, kwargs = request.get("what"), request.get("args"), request.get("kwargs")
    name = _text(request.get("name", ""))
    if what not in known or not isinstance(args, list) or not isinstance(kwargs, dict):
        raise MessageError(f"no request: {str(what)[:40]!r}")
    if (what == "operate" and name not in OPERATORS) or (what == "copy" and name not in ("copy", "deepcopy")):
        raise MessageError(f"no operator: {name!r}")
    if what in ("set", "isinstance", "issubclass") and len(args) != 1:
        raise MessageError(f"{what} takes one argument; got {len(args)}")
    check(args)
    check(list(kwargs.values()))
    return {"what": what, "name": name, "args": args, "kwargs": kwargs}


def _read_answer(message: Mapping[str, Any], check: _Checker) -> dict[str, Any]:
    answer: dict[str, Any] = {}
    if "error" in message:
        names = message["error"]
        if not isinstance(names, list) or not 0 < len(names) <= 20:
            raise MessageError("an error has the names of its classes")
        text = message.get("message", "")
        answer = {"error": [_text(name) for name in names], "message": text[:1000] if isinstance(text, str) else ""}
        if "attributes" in message:
            answer["attributes"] = _read_attributes(message["attributes"], check)
    elif type(message.get("argument")) is int:
        answer = {"argument": _number(message["argument"])}
    elif "value" in message:
        check(message["value"])
        answer = {"value": message["value"]}
    else:
        raise MessageError("expected an answer")
    if "changed" in message:
        answer["changed"] = _read_changed(message["changed"], check)
    return answer


def _read_attributes(packed: Any, check: _Checker) -> Packed:
    """The attributes of an error: a dictionary whose keys are public names."""
    check(packed)
    pairs = packed.get("dict") if isinstance(packed, dict) else None
    if not isinstance(pairs, list) or not all(
        type(name) is str and name.isidentifier() and name[0] != "_" for name, _ in pairs
    ):
        raise MessageError("attributes are names and values")
    return packed


def _read_changed(changed: Any, check: _Checker) -> list[Any]:
    if not isinstance(changed, list):
        raise MessageError("changes are a list")
    for pair in changed:
        if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[1], list | str):
            raise MessageError("a change is a number and contents")
        _number(pair[0])
        check(pair[1])
    return changed


class _Checker:
    """Checks packed values (see `inside/codec.py`) and counts their items. A range counts with its length.

    Arguments:
        of_program: the values come from the program, so sizes are limited.
    """

    def __init__(self, *, of_program: bool) -> None:
        self.of_program, self._items = of_program, 0
        lists = dict.fromkeys(("tuple", "set", "frozenset", "deque", "iterator"), _list)
        pairs = dict.fromkeys(("dict", "OrderedDict", "Counter"), _pairs)
        self._kinds: dict[str, Callable[[Any], list[Any]]] = {
            **lists, **pairs, "int": self._int, "float": _match(_FLOAT), "complex": _floats, "Decimal": _match(_DECIMAL), "bytes": _base64,
            "bytearray": _base64, "range": self._range, "Fraction": _fraction, "date": _match(_DATE), "datetime": _match(_DATE),
            "time": _match(_DATE), "timedelta": _timedelta, "namedtuple": _namedtuple, "same": _same, "remote": self._remote,
        }  # fmt: skip

    def __call__(self, packed: Packed) -> None:
        open_values = [packed]
        while open_values:
            value = open_values.pop()
            kind = type(value)
            if value is None or kind is str or kind is bool or (kind is int and -(2**53) < value < 2**53):
                continue
            if kind is dict and len(value) == 1:
                ((tag, inner),) = value.items()
                if tag not in self._kinds:
                    raise MessageError(f"no value: {tag[:40]!r}")
                inside = self._kinds[tag](inner)
            elif kind is list:
                inside = value
            else:
                raise MessageError(f"no value: {kind.__name__}")
            self._count(len(inside))
            open_values += inside

    def _count(self, items: int) -> None:
        self._items += items
        if self.of_program and self._items > 2 * MOST_ITEMS:
            raise ValueTooLarge(f"a value of more than {2 * MOST_ITEMS} items is too large")

    def _int(self, inner: Any) -> list[Any]:
        if self.of_program and isinstance(inner, str) and len(inner) > MOST_BITS // 4:
            raise ValueTooLarge(f"an integer of more than {MOST_BITS} bits is too large")
        return _match(_HEX)(inner)

    def _range(self, inner: Any) -> list[Any]:
        for number in _list(inner):
            self._int(number["int"]) if isinstance(number, dict) and set(number) == {"int"} else None
        numbers = [_integer(number) for number in inner]
        if len(numbers) != 3 or not numbers[2]:
            raise MessageError("a range has a start, an end and a step")
        start, stop, step = numbers
        self._count(max(0, (stop - start + step - (1 if step > 0 else -1)) // step))
        return []

    def _remote(self, inner: Any) -> list[Any]:
        if not isinstance(inner, dict):
            raise MessageError("a reference is an object")
        keys = set(inner)
        if keys not in (_OF_PROGRAM if self.of_program else _OF_TESTS):
            raise MessageError("no reference")
        for number in keys & {"program", "tests"}:
            _number(inner[number])
        if "root" in keys:
            _text(inner["root"])
        if keys == {"program", "class"}:
            _text(inner["class"])
        if keys == {"tests", "class"}:
            owner, name, operators = _list(inner["class"])
            if (owner is not None and _number(owner) < 0) or not set(map(_text, [*operators, name])) - {
                name
            } <= OPERATORS:
                raise MessageError("no reference")
        if "named" in keys:
            module, name = map(_text, _list(inner["named"]))
            if self.of_program and (module != "builtins" or name not in _BUILTINS):
                raise MessageError(f"no reference: {module}.{name}")
        return []


def _match(pattern: re.Pattern[str]) -> Callable[[Any], list[Any]]:
    def check(inner: Any) -> list[Any]:
        if not isinstance(inner, str) or not pattern.match(inner):
            raise MessageError(f"no value: {str(inner)[:40]!r}")
        return []

    return check


def _list(inner: Any) -> list[Any]:
    if not isinstance(inner, list):
        raise MessageError("expected a list")
    return inner


def _pairs(inner: Any) -> list[Any]:
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in _list(inner)):
        raise MessageError("expected pairs")
    return [item for pair in inner for item in pair]


def _floats(inner: Any) -> list[Any]:
    for number in _list(inner):
        _match(_FLOAT)(number)
    if len(inner) != 2:
        raise MessageError("expected two floats")
    return []


def _base64(inner: Any) -> list[Any]:
    try:
        binascii.a2b_base64(inner)
    except (TypeError, ValueError) as error:
        raise MessageError(f"no bytes: {error}") from None
    return []


def _integer(packed: Any) -> int:
    if isinstance(packed, dict) and set(packed) == {"int"}:
        _match(_HEX)(packed["int"])
        return int(packed["int"], 16)
    if type(packed) is not int:
        raise MessageError("expected an integer")
    return packed


def _fraction(inner: Any) -> list[Any]:
    if len(_list(inner)) != 2 or not _integer(inner[1]):
        raise MessageError("a fraction has a numerator, and a denominator that is not 0")
    _integer(inner[0])
    return [number for number in inner if isinstance(number, dict)]


def _timedelta(inner: Any) -> list[Any]:
    if len(_list(inner)) != 3 or not all(type(number) is int for number in inner):
        raise MessageError("a timedelta has days, seconds and microseconds")
    return []


def _namedtuple(inner: Any) -> list[Any]:
    if len(_list(inner)) != 3 or len(_list(inner[1])) != len(_list(inner[2])):
        raise MessageError("a named tuple has a name for each item")
    if not all(isinstance(name, str) and name.isidentifier() for name in (inner[0], *inner[1])):
        raise MessageError("a named tuple has names that are identifiers")
    return _list(inner[2])


def _same(inner: Any) -> list[Any]:
    _number(inner)
    return []


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**31:
        raise MessageError("expected a number of an object")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 200:
        raise MessageError("expected a name")
    return value
