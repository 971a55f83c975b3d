"""Runs inside the sandbox of a submission: opens its module, and does with its objects what the evaluator asks for.

The submission can do what it likes to this process: all that it can change is what it answers. What it prints goes nowhere.
"""

from __future__ import annotations

import builtins
import copy
import importlib.abc
import importlib.machinery
import importlib.util
import json
import operator
import os
import random
import select
import sys
import threading

# By name: what the submission puts into this module later is not called.
from collections.abc import Callable, Sequence
from os import _exit, getpid, write
from types import ModuleType
from typing import Any

from .changes import can_change, same
from .values import Decoder, Encoder, TooLarge

MODULE = "target"
LARGE = 1 << 16
"""Characters of a value of the module that is sent with its name."""
SAID = 2000
"""Characters of what an exception says."""


class Server:
    """The objects of a submission that the evaluator holds, by number."""

    def __init__(self) -> None:
        self.objects: dict[int, object] = {}
        self.numbers: dict[int, int] = {}
        self.count = 0
        self.decoder = Decoder(lambda number, _: self.objects[number])
        self.ways: dict[str, Callable[..., Any]] = {
            "call": lambda one, /, *given, **named: one(*given, **named),
            "get": getattr, "set": setattr, "drop": delattr, "len": len, "item": operator.getitem,
            "put": operator.setitem, "remove": operator.delitem, "iter": iter, "next": next, "bool": bool,
            "is": lambda kind, one: isinstance(one, kind), "copy": copy.copy, "deepcopy": copy.deepcopy,
        }  # fmt: skip

    def keep(self, value: object) -> list[Any]:
        number = self.numbers.get(id(value))
        if number is None:
            self.count += 1
            number = self.numbers[id(value)] = self.count
            self.objects[number] = value
        return ["h", number, callable(value)]

    def forget(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            if number in self.objects:
                del self.numbers[id(self.objects.pop(number))]

    def encode(self, value: object) -> Any:
        return Encoder(self.keep).encode(value)

    def named(self, value: object) -> Any:
        """A value of the module; a large one is not sent before it is asked for."""
        try:
            found = self.encode(value)
            return found if len(json.dumps(found)) <= LARGE else self.keep(value)
        except TooLarge:
            return self.keep(value)

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """What to say to a request; raises whatever the submission raises."""
        self.forget(asked["drop"])
        if asked["way"] == "open":
            module = opened()
            return {
                "value": ["d", *[part for name in public(module) for part in (name, self.named(vars(module)[name]))]]
            }
        given = [self.decoder.decode(one) for one in asked["given"]]
        named = {name: self.decoder.decode(one) for name, one in asked["named"].items()}
        # A new iterator is no value: going through it is up to who asked.
        value = self.ways[asked["way"]](self.objects[asked["object"]], *given, **named)
        said: dict[str, Any] = {"value": self.keep(value) if asked["way"] == "iter" else self.encode(value)}
        changed = {}
        if asked["way"] == "call":
            sent = {**dict(enumerate(asked["given"])), **asked["named"]}
            for place, one in {**dict(enumerate(given)), **named}.items():
                if can_change(sent[place]) and not same(sent[place], now := self.encode(one)):
                    changed[str(place)] = now
        return {**said, "changed": changed} if changed else said


def main() -> None:
    told, line, process = os.fdopen(os.dup(0), "rb"), os.dup(1), getpid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for file in range(3):
        os.dup2(nothing, file)
    threading.Thread(target=leave, args=[told.fileno()], daemon=True).start()
    here = os.getcwd()
    sys.path[:] = [path for path in sys.path if path not in ("", here)] + [here]
    random.seed(0)
    sys.meta_path.insert(0, Seeded())
    server = Server()
    for text in told:
        asked = json.loads(text)
        said: dict[str, Any]
        try:
            said = server.answer(asked)
        except TooLarge as error:
            said = {"ended": str(error)}
        except Exception as error:
            said = {"error": [name_of(error), words_of(error)]}
        except BaseException as error:
            said = {"ended": type(error).__name__}
        if getpid() != process:  # One that the submission forked.
            break
        data = json.dumps({"number": asked["number"], **said}).encode() + b"\n"
        while data:
            data = data[write(line, data) :]
        if "ended" in said:
            break
    _exit(0)  # Threads that a submission left do not keep it alive.


def leave(file: int) -> None:
    """End with the one who asks, whatever the submission is busy with."""
    poll = select.poll()
    poll.register(file, 0)
    poll.poll()
    _exit(0)


def opened() -> ModuleType:
    """The module of the submission, each time anew, as whoever imports a file by its path has it."""
    spec = importlib.util.spec_from_file_location(MODULE, os.path.abspath(f"{MODULE}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    spec.loader.exec_module(module)
    return module


def public(module: ModuleType) -> list[str]:
    """The names that an evaluator can have of it, those of modules that it imported left out."""
    names = [str(name) for name in getattr(module, "__all__", ())]
    return [
        name
        for name, value in vars(module).items()
        if name in names or (not name.startswith("__") and not isinstance(value, ModuleType))
    ] + (["__all__"] if names else [])


def name_of(error: Exception) -> str:
    """Python's own exception that this one is, or is a kind of."""
    for kind in type(error).__mro__:
        if getattr(builtins, kind.__name__, None) is kind and issubclass(kind, Exception) and kind is not Exception:
            return str(kind.__name__)
    return "RuntimeError"


def words_of(error: Exception) -> str:
    try:
        words: str = error.args[0] if len(error.args) == 1 and isinstance(error.args[0], str) else str(error)
        return str.__str__(words)[:SAID]
    except Exception:
        return ""


class Seeded(importlib.abc.MetaPathFinder):
    """Seeds the generators of NumPy and torch when they are imported, so that a submission is judged alike every time."""

    ways = {"numpy.random": "seed", "torch": "manual_seed"}  # noqa: RUF012

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(name, path, target) if name in self.ways else None
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            getattr(module, self.ways[name])(0)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if __name__ == "__main__":
    main()
