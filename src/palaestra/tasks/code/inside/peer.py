"""Requests and answers between a program and its tests. Both sides use this module.

A side sends a request, handles requests of the other side meanwhile (callbacks), and reads the answer.

Values are copied: they become JSON with tags, and decoding runs no code of the sender. A list stays a list. A value
without a JSON equivalent becomes an object with one key, the tag. Mutable containers are numbered in the order of their first
occurrence. A later occurrence is `{"same": number}`, and an answer can refer to a container of its request. This
preserves identity, aliases and cycles. Other objects stay in their process, and the other side gets a proxy (`remote`).

Every program starts a new Python process, so this module imports almost nothing: modules written in Python would take longer
to import than most programs run.
"""

from __future__ import annotations

import binascii
import builtins
import itertools
import os
import sys
from _operator import is_

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` itself would take longer to import than everything else here.
    from collections.abc import Callable, Mapping
    from typing import Any

    Value = Any  # A Python value of the program or the tests, or its packed form.

TESTS = "tests"
"""Name of the module in which the tests define their classes and functions."""
MAX_ITEMS = 1_000_000
"""Maximum number of items that are read from an iterator."""
_OPERATOR_NAMES = (
    "len getitem setitem delitem contains iter next reversed str repr format bool call int float index hash add "
    "sub mul truediv floordiv mod pow neg pos abs and or xor invert lshift rshift matmul radd rsub rmul rtruediv "
    "rfloordiv rmod rpow iadd isub imul lt le gt ge eq ne enter exit"
)
OPERATORS = frozenset(f"__{name}__" for name in _OPERATOR_NAMES.split())
"""The special methods that a proxy forwards."""
_NAMES = {
    "abs", "all", "any", "len", "max", "min", "round", "sorted", "sum", "NotImplemented", "Ellipsis", "bool", "int",
    "float", "complex", "str", "bytes", "bytearray", "list", "tuple", "set", "frozenset", "dict", "range", "object",
}  # fmt: skip
SHARED = {
    name: value
    for name, value in vars(builtins).items()
    if name in _NAMES or (isinstance(value, type) and issubclass(value, BaseException))
}
"""Builtins that a program may return by name. None of them can affect the process of the tests."""
_MUTABLE = ("list", "set", "dict", "bytearray", "deque", "OrderedDict", "Counter", "defaultdict")
_DATES = ("date", "datetime", "time")
_MODULES = {
    **dict.fromkeys(("list", "tuple", "set", "frozenset", "dict", "bytes", "bytearray", "complex", "range"), "builtins"),
    **dict.fromkeys(("deque", "OrderedDict", "defaultdict"), "_collections"),
    **dict.fromkeys((*_DATES, "timedelta"), "datetime"),
    "Counter": "collections", "Fraction": "fractions", "Decimal": "decimal",
}  # fmt: skip
"""The classes whose instances are copied, with the modules that define them."""
_ARGUMENTS: dict[str, Value] = {
    "complex": lambda value: (value.real, value.imag),
    "range": lambda value: (value.start, value.stop, value.step),
    "Fraction": lambda value: (value.numerator, value.denominator),
    "Decimal": lambda value: (str(value),),
    "timedelta": lambda value: (value.days, value.seconds, value.microseconds),
    **dict.fromkeys(_DATES, lambda value: (value.isoformat(),)),
}
"""The arguments that recreate a value."""
_VIEWS: Value = (type({}.keys()), type({}.values()), type({}.items()))
_PLAIN: Value = (bool, int, float, str, list, tuple, set, dict)
_FUNCTIONS: dict[str, Value] = {
    "__str__": str, "__repr__": repr, "__bool__": bool, "__hash__": hash, "__len__": len, "__iter__": iter,
    "__next__": next, "__reversed__": reversed,
}  # fmt: skip
"""Special methods with a builtin function, which also handles classes without the method."""


class ForeignError(Exception):
    """An exception of the other side whose class is not a builtin."""


class Proxy:
    """Base class of proxies for objects of the other process."""


class Seen:
    """The mutable containers of one request and its answer, numbered by first occurrence."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self.numbers: dict[int, int] = {}

    def add(self, value: Value) -> Value:
        self.numbers[id(value)] = len(self.values)
        self.values.append(value)
        return value


def pack(value: Value, keep: Callable[[Value], Value], seen: Seen) -> Value:
    """Encode a value for JSON; `keep(value)` returns the reference to an object that cannot be copied."""
    kind: Value = type(value)
    if value is None or kind is str or kind is bool or kind is float:
        return value
    if kind is int:
        return value if abs(value) < 2**53 else {"int": hex(value)}
    name = kind.__name__
    if type(name) is str and name in _MODULES and kind is getattr(sys.modules.get(_MODULES[name]), name, None):
        if name in _MUTABLE:
            if id(value) in seen.numbers:
                return {"same": seen.numbers[id(value)]}
            seen.add(value)
        packed = pack_contents(value, keep, seen)
        return packed if kind is list else {"dict" if name == "defaultdict" else name: packed}
    if isinstance(value, (type, Proxy)):
        return {"remote": keep(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {"namedtuple": [name, list(value._fields), [pack(item, keep, seen) for item in value]]}
    for plain in _PLAIN:
        if isinstance(value, plain):  # A subclass: its contents are sent.
            return pack(plain(value), keep, seen)
    if isinstance(value, _VIEWS):
        return pack(list(value), keep, seen)
    if hasattr(kind, "__next__") and hasattr(kind, "__iter__") and kind.__module__ not in (TESTS, "_io"):
        return {"iterator": [pack(item, keep, seen) for item in itertools.islice(value, MAX_ITEMS)]}
    return {"remote": keep(value)}


def pack_contents(value: Value, keep: Callable[[Value], Value], seen: Seen) -> Value:
    """The encoded contents of a value that is copied."""
    if isinstance(value, (bytes, bytearray)):
        return binascii.b2a_base64(value, newline=False).decode()
    if isinstance(value, dict):
        return [[pack(k, keep, seen), pack(v, keep, seen)] for k, v in value.items()]
    if isinstance(value, (set, frozenset)):
        value = sorted(value, key=repr)
    elif type(value).__name__ in _ARGUMENTS:
        value = _ARGUMENTS[type(value).__name__](value)
    return [pack(item, keep, seen) for item in value]


def unpack(packed: Value, remote: Callable[[Value], Value], seen: Seen) -> Value:
    """Decode a value; `remote(reference)` returns the object or proxy for a reference."""
    if isinstance(packed, list):
        return refill(seen.add([]), packed, remote, seen)
    if not isinstance(packed, dict):
        return packed
    ((tag, inner),) = packed.items()
    if tag == "int":
        return int(inner, 16)
    if tag == "same":
        return seen.values[inner]
    if tag == "remote":
        return remote(inner)
    if tag == "namedtuple":
        kind = __import__("collections").namedtuple(inner[0], inner[1])
        return kind(*[unpack(item, remote, seen) for item in inner[2]])
    if tag == "bytes":
        return binascii.a2b_base64(inner)
    if tag == "iterator":
        return iter([unpack(item, remote, seen) for item in inner])
    kind = getattr(__import__(_MODULES[tag]), tag)
    if tag in _MUTABLE:
        return refill(seen.add(kind()), inner, remote, seen)
    items = [unpack(item, remote, seen) for item in inner]
    if tag in _DATES:
        return kind.fromisoformat(*items)
    return kind(*items) if tag in _ARGUMENTS else kind(items)


def refill(value: Value, packed: Value, remote: Callable[[Value], Value], seen: Seen) -> Value:
    """Replace the contents of a mutable container with decoded contents."""
    if isinstance(value, bytearray):
        value[:] = binascii.a2b_base64(packed)
        return value
    if isinstance(value, dict):
        items: Value = {unpack(k, remote, seen): unpack(v, remote, seen) for k, v in packed}
    else:
        items = [unpack(item, remote, seen) for item in packed]
    value.clear()
    (value.update if isinstance(value, (dict, set)) else value.extend)(items)
    return value


class Peer:
    """Exchanges requests and answers with the other side.

    Arguments:
        channel: the `HostChannel`, which passes messages on to the other side.
        side: the key of this side's objects in messages, `"program"` or `"tests"`.
        perform: handles a request of the other side: `perform(request, arguments, keywords)`.
        keep: returns the reference to an object of this side.
        proxy: returns the object of a reference that is not to an object of this side.
        catch: exceptions that are sent to the other side; others end this process.
    """

    def __init__(
        self,
        channel: Value,
        side: str,
        perform: Callable[[dict[str, Value], list[Value], dict[str, Value]], Value],
        keep: Callable[[Value], Value],
        proxy: Callable[[dict[str, Value]], Value],
        catch: type[BaseException] = Exception,
    ) -> None:
        self.catch = catch
        self.side, self.perform, self.keep, self.proxy = side, perform, keep, proxy
        self.kept: dict[int, Value] = {}
        self._numbers: dict[int, int] = {}
        self.errors: Mapping[str, Value] = {}
        """Exception classes of this side by name, in addition to the builtins."""
        sys.set_int_max_str_digits(0)
        self._channel = channel

    def send(self, message: dict[str, Value]) -> None:
        """Send a message to the host."""
        self._channel.send(message)

    def receive(self) -> Value:
        """The next message; ends this process if the host has closed the channel."""
        message = self._channel.receive()
        if message is None:
            os._exit(0)
        return message

    def number(self, value: Value) -> tuple[int, bool]:
        """The number of an object of this side, and whether it is new."""
        known = id(value) in self._numbers
        if not known:
            self._numbers[id(value)] = len(self.kept)
            self.kept[len(self.kept)] = value  # Kept alive, so that its id is not reused.
        return self._numbers[id(value)], not known

    def ask(self, args: Value = (), kwargs: Mapping[str, Value] = {}, **request: Value) -> Value:
        """Send a request and return the answer; raises the exception of the other side."""
        seen = Seen()
        request["args"] = [pack(value, self.keep, seen) for value in args]
        request["kwargs"] = {name: pack(value, self.keep, seen) for name, value in kwargs.items()}
        self.send({"ask": request})
        while "ask" in (message := self.receive()):
            self.answer(message["ask"])
        for number, inner in message.get("changed", ()):
            refill(seen.values[number], inner, self._resolve, seen)
        if "error" in message:
            error = self._error(message["error"], message["message"])
            attributes = unpack(message.get("attributes", {"dict": []}), self._resolve, seen)
            vars(error).update({name: value for name, value in attributes.items() if name[:1] != "_"})
            raise error
        if "argument" in message:
            return args[message["argument"]]
        return unpack(message["value"], self._resolve, seen)

    def answer(self, request: dict[str, Value]) -> None:
        """Handle a request and send the result: a value or an error, and the changed arguments."""
        seen = Seen()
        try:
            args = [unpack(item, self._resolve, seen) for item in request["args"]]
            kwargs = {name: unpack(item, self._resolve, seen) for name, item in request["kwargs"].items()}
            before = [_items(value) for value in seen.values]
            value, failed, own = None, None, {}
            try:
                value = self.perform(request, args, kwargs)
            except self.catch as error:
                failed = describe_error(error)
                own = {name: value for name, value in vars(error).items() if type(name) is str and name[:1] != "_"}
            changed = [
                [number, pack_contents(seen.values[number], self.keep, seen)]
                for number, items in enumerate(before)
                if not _are_same(items, _items(seen.values[number]))
            ]
            message = failed if failed is not None else self._pack_result(value, args, seen)
            if own:  # `error.code`, for a handler on the other side
                message["attributes"] = pack(own, self.keep, seen)
            if changed:
                message["changed"] = changed
        except self.catch as error:
            message = describe_error(error)
        self.send(message)

    def _pack_result(self, value: Value, args: list[Value], seen: Value) -> dict[str, Value]:
        place = next((place for place, argument in enumerate(args) if value is argument), None)
        return {"value": pack(value, self.keep, seen)} if place is None else {"argument": place}

    def _resolve(self, reference: dict[str, Value]) -> Value:
        return self.kept[reference[self.side]] if self.side in reference else self.proxy(reference)

    def _error(self, names: list[str], message: str) -> Exception:
        for name in names:
            known = [k for k in (self.errors.get(name), getattr(builtins, name, None)) if isinstance(k, type)]
            kind: Value = next((k for k in known if issubclass(k, Exception)), None)
            if kind is not None:
                break
        else:
            name, kind = "", ForeignError
        if name != names[0]:  # A class of the other side: a class with the same name is created.
            kind = type(names[0], (kind,), {})
        try:
            error: Exception = kind(message)
        except Exception:
            error = ForeignError(message)
        return error


def describe_error(error: BaseException) -> dict[str, Value]:
    """The message for an exception: the names of its classes in resolution order, and its text."""
    try:
        names = [kind.__name__ for kind in type(error).__mro__ if kind is not object][:20]
        return {"error": names, "message": str(error)[:1000]}
    except BaseException:
        return {"error": ["Exception"], "message": ""}


def operate(target: Value, name: str, args: list[Value]) -> Value:
    """Call a special method of an object."""
    if name not in OPERATORS:
        raise AttributeError(name)
    if name in _FUNCTIONS:
        return _FUNCTIONS[name](target)
    method = getattr(type(target), name, None)
    if method is None:
        raise TypeError(f"'{type(target).__name__}' object has no {name}")
    return method(target, *args)


def _items(value: Value) -> list[Value]:
    if isinstance(value, dict):
        return [item for pair in value.items() for item in pair]
    return list(value)


def _are_same(before: list[Value], after: list[Value]) -> bool:
    return len(before) == len(after) and all(map(is_, before, after))
