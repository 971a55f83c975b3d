"""Requests and answers between a program and its tests. Both sides use this module.

A side sends a request, handles requests of the other side meanwhile (callbacks), and reads the answer. Values are
copied. Other objects stay in their process, and the other side gets a proxy.
"""

from __future__ import annotations

import builtins
import os
import sys
from _operator import is_

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` itself would take longer to import than everything else here.
    from collections.abc import Callable, Mapping
    from typing import Any

import codec  # type: ignore[import-not-found]  # noqa: E402

_FUNCTIONS: dict[str, Any] = {
    "__str__": str, "__repr__": repr, "__bool__": bool, "__hash__": hash, "__len__": len, "__iter__": iter,
    "__next__": next, "__reversed__": reversed,
}  # fmt: skip
"""Special methods with a builtin function, which also handles classes without the method."""


class ForeignError(Exception):
    """An exception of the other side whose class is not a builtin."""


class Peer:
    """Exchanges requests and answers with the other side.

    Arguments:
        channel: the `HostChannel`, which passes messages on to the other side.
        side: the key of this side's objects in messages, `"program"` or `"tests"`.
        perform: handles a request of the other side: `perform(request, arguments, keywords)`.
        keep: returns the reference to an object of this side.
        proxy: returns the proxy of an object of the other side.
        catch: exceptions that are sent to the other side; others end this process.
    """

    def __init__(
        self,
        channel: Any,
        side: str,
        perform: Callable[[dict[str, Any], list[Any], dict[str, Any]], Any],
        keep: Callable[[Any], Any],
        proxy: Callable[[dict[str, Any]], Any],
        catch: type[BaseException] = Exception,
    ) -> None:
        self.catch = catch
        self.side, self.perform, self.keep, self.proxy = side, perform, keep, proxy
        self.kept: dict[int, Any] = {}
        self._numbers: dict[int, int] = {}
        self.errors: Mapping[str, Any] = {}
        """Exception classes of this side by name, in addition to the builtins."""
        if hasattr(sys, "set_int_max_str_digits"):
            sys.set_int_max_str_digits(0)
        self._channel = channel

    def send(self, message: dict[str, Any]) -> None:
        """Send a message to the host."""
        self._channel.send(message)

    def receive(self) -> Any:
        """The next message; ends this process if the host has closed the channel."""
        message = self._channel.receive()
        if message is None:
            os._exit(0)
        return message

    def number(self, value: Any) -> tuple[int, bool]:
        """The number of an object of this side, and whether it is new."""
        known = id(value) in self._numbers
        if not known:
            self._numbers[id(value)] = len(self.kept)
            self.kept[len(self.kept)] = value  # Kept alive, so that its id is not reused.
        return self._numbers[id(value)], not known

    def ask(self, args: Any = (), kwargs: Mapping[str, Any] = {}, **request: Any) -> Any:
        """Send a request and return the answer; raises the exception of the other side."""
        seen = codec.Seen()
        request["args"] = [codec.pack(value, self.keep, seen) for value in args]
        request["kwargs"] = {name: codec.pack(value, self.keep, seen) for name, value in kwargs.items()}
        self.send({"ask": request})
        while "ask" in (message := self.receive()):
            self.answer(message["ask"])
        for number, inner in message.get("changed", ()):
            codec.refill(seen.values[number], inner, self._resolve, seen)
        if "error" in message:
            error = self._error(message["error"], message["message"])
            if "attributes" in message:
                vars(error).update(codec.unpack(message["attributes"], self._resolve, seen))
            raise error
        if "argument" in message:
            return args[message["argument"]]
        return codec.unpack(message["value"], self._resolve, seen)

    def answer(self, request: dict[str, Any]) -> None:
        """Handle a request and send the result: a value or an error, and the changed arguments."""
        seen = codec.Seen()
        try:
            args = [codec.unpack(item, self._resolve, seen) for item in request["args"]]
            kwargs = {name: codec.unpack(item, self._resolve, seen) for name, item in request["kwargs"].items()}
            before = [_items(value) for value in seen.values]
            value, failed, own = None, None, {}
            try:
                value = self.perform(request, args, kwargs)
            except self.catch as error:
                failed = describe_error(error)
                own = {name: value for name, value in vars(error).items() if type(name) is str and name[:1] != "_"}
            changed = [
                [number, codec.contents(seen.values[number], self.keep, seen)]
                for number, items in enumerate(before)
                if not _are_same(items, _items(seen.values[number]))
            ]
            message = failed if failed is not None else self._pack_result(value, args, seen)
            if own:  # `error.code`, for a handler on the other side
                message["attributes"] = codec.pack(own, self.keep, seen)
            if changed:
                message["changed"] = changed
        except self.catch as error:
            message = describe_error(error)
        self.send(message)

    def _pack_result(self, value: Any, args: list[Any], seen: Any) -> dict[str, Any]:
        for place, argument in enumerate(args):
            if value is argument:
                return {"argument": place}
        return {"value": codec.pack(value, self.keep, seen)}

    def _resolve(self, reference: dict[str, Any]) -> Any:
        if self.side in reference:
            return self.kept[reference[self.side]]
        if "named" in reference:
            module, name = reference["named"]
            value = builtins if module == "builtins" else __import__(module, fromlist=["_"])
            for part in name.split("."):
                value = getattr(value, part)
            return value
        return self.proxy(reference)

    def _error(self, names: list[str], message: str) -> Exception:
        for name in names:
            known = [k for k in (self.errors.get(name), getattr(builtins, name, None)) if isinstance(k, type)]
            kind: Any = next((k for k in known if issubclass(k, Exception)), None)
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


def describe_error(error: BaseException) -> dict[str, Any]:
    """The message for an exception: the names of its classes in resolution order, and its text."""
    try:
        names = [kind.__name__ for kind in type(error).__mro__ if kind is not object][:20]
        return {"error": names, "message": str(error)[:1000]}
    except BaseException:
        return {"error": ["Exception"], "message": ""}


def operate(target: Any, name: str, args: list[Any]) -> Any:
    """Call a special method of an object."""
    if name not in codec.OPERATORS:
        raise AttributeError(name)
    if name in _FUNCTIONS:
        return _FUNCTIONS[name](target)
    method = getattr(type(target), name, None)
    if method is None:
        raise TypeError(f"'{type(target).__name__}' object has no {name}")
    return method(target, *args)


def get_qualified_name(value: Any) -> list[str] | None:
    """Module and name of a function or class of Python, so that the other side can look it up."""
    owner = getattr(value, "__objclass__", value)  # Of a method such as `str.upper`.
    module, name = getattr(owner, "__module__", None), getattr(value, "__qualname__", None)
    if value is NotImplemented or value is Ellipsis:
        module, name = "builtins", repr(value)
    if not isinstance(module, str) or not isinstance(name, str):
        return None
    resolved: Any = sys.modules.get(module)
    for part in name.split("."):
        resolved = getattr(resolved, part, None)
    return [module, name] if resolved is value and value is not None else None


def _items(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [item for pair in value.items() for item in pair]
    return list(value)


def _are_same(before: list[Any], after: list[Any]) -> bool:
    return len(before) == len(after) and all(map(is_, before, after))
