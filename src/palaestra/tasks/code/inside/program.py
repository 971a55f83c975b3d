"""Runs inside the sandbox of a model's program: calls its functions and returns the results.

It receives one call at a time, and never a test, an expected value or a later call. Objects of the tests are proxies
here. Whatever the program does to this process, it can only change its answers.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` itself would take longer to import than everything else here.
    from typing import Any

    Value = Any  # A Python value of the program or the tests, or its packed form.
    Request = dict[str, Any]

HERE = os.path.dirname(os.path.abspath(__file__))


def main() -> None:
    """Answer requests until the host closes the channel."""
    sys.path.insert(0, HERE)
    from channel import HostChannel  # type: ignore[import-not-found]
    from peer import SHARED, Peer, Proxy, operate  # type: ignore[import-not-found]

    sys.path.remove(HERE)
    module = type(sys)("solution")
    proxies: dict[int, Value] = {}
    classes: dict[int, Value] = {}

    def find(name: str) -> Value:
        if name in module.__dict__:
            return module.__dict__[name]
        raise NameError(f"name '{name}' is not defined")

    def load(path: str) -> None:
        with open(path, encoding="utf-8") as file:
            source = file.read()
        sys.modules["solution"] = module
        exec(compile(source, "program.py", "exec", dont_inherit=True), module.__dict__)

    def perform(request: Request, args: list[Value], kwargs: dict[str, Value]) -> Value:
        what, name = request["what"], request.get("name", "")
        if what == "load":
            return load(name)
        target = peer.kept[request["of"]] if "of" in request else find(request["root"])
        if what == "call":
            return target(*args, **kwargs)
        if what == "get":
            return getattr(target, name) if name else target
        if what == "set":
            return setattr(target, name, args[0])
        if what == "isinstance":
            return isinstance(args[0], target)
        if what == "issubclass":
            return issubclass(args[0], target)
        if what == "copy":
            return getattr(__import__("copy"), name)(target)
        return operate(target, name, args)

    def keep(value: Value) -> Value:
        if isinstance(value, Proxy):
            return {"tests": object.__getattribute__(value, "_number_")}
        for name, builtin in SHARED.items():
            if value is builtin:
                return {"named": ["builtins", name]}
        number, _ = peer.number(value)
        return {"program": number, "class": type(value).__name__}

    def proxy(reference: Request) -> Value:
        if "root" in reference:
            return find(reference["root"])
        if "named" in reference:
            where, name = reference["named"]
            value = __import__(where, fromlist=["_"])
            for part in name.split("."):
                value = getattr(value, part)
            return value
        number = reference["tests"]
        if number not in proxies:
            owner, name, operators = reference["class"]
            if owner not in classes:
                classes[owner] = make_class(owner, name, operators)
            proxies[number] = object.__new__(classes[owner])
            object.__setattr__(proxies[number], "_number_", number)
        return proxies[number]

    def make_class(owner: int | None, name: str, operators: list[str]) -> Value:
        """The class of the proxies for a class of the tests. Calling it creates an object in the process of the tests."""

        def operator(name: str) -> Value:
            return lambda self, *args: peer.ask(args, what="operate", of=self._number_, name=name)

        def make(cls: Value, *args: Value, **kwargs: Value) -> Value:
            return peer.ask(args, kwargs, what="call", of=owner)

        body: Request = {method: operator(method) for method in operators}
        if owner is not None:
            body["__new__"] = make
        body["__init__"] = lambda self, *args, **kwargs: None
        body["__deepcopy__"] = lambda self, memo: peer.ask(what="copy", of=self._number_, name="deepcopy")
        body["__copy__"] = lambda self: peer.ask(what="copy", of=self._number_, name="copy")
        if "__eq__" in operators and "__hash__" not in operators:
            body["__hash__"] = None
        return type(name, (TestObject,), body)

    class TestObject(Proxy):  # type: ignore[misc]
        """A proxy of an object of the tests."""

        def __getattr__(self, name: str) -> Value:
            return peer.ask(what="get", of=object.__getattribute__(self, "_number_"), name=name)

        def __setattr__(self, name: str, value: Value) -> None:
            peer.ask((value,), what="set", of=object.__getattribute__(self, "_number_"), name=name)

        def __call__(self, *args: Value, **kwargs: Value) -> Value:
            return peer.ask(args, kwargs, what="call", of=object.__getattribute__(self, "_number_"))

    peer = Peer(HostChannel(), "program", perform, keep, proxy, catch=BaseException)
    while True:
        peer.answer(peer.receive()["ask"])


if __name__ == "__main__":
    main()
