"""Runs in the sandbox of a submission: imports its module and calls its functions for the evaluator, over a pipe.

The submission can do anything to this process. It can only change its own answers.
"""

from __future__ import annotations

import builtins
import importlib
import os
import random
import sys
from os import _exit, write
from pickle import dumps, loads
from types import ModuleType
from typing import Any

from .values import Reader, encode

CHANGED = 9
"""Exit code: the submission modified an argument in one of the first calls."""
WATCHED = 100
"""Calls whose arguments are compared afterwards."""
MAX_MESSAGE = 2000
"""Characters of an exception's message that are passed on."""


def main() -> None:
    module, requests, answers, core = sys.argv[1], *map(int, sys.argv[2:])
    here = os.getcwd()
    forked: list[int] = []
    os.register_at_fork(after_in_child=lambda: forked.append(1))
    # Last, so that a file of the submission cannot shadow a library.
    sys.path[:] = [path for path in sys.path if path not in ("", here)] + [here]
    random.seed(0)
    loaded: list[ModuleType] = []
    functions: dict[str, Any] = {}
    number = code = 0
    reader = Reader(requests, core)
    while (request := receive(reader)) is not None:
        name, arguments, named = loads(request)
        number += 1
        try:
            if name[0] == ".":
                before = dumps((arguments, named)) if number <= WATCHED else b""
                value = functions[name](*arguments, **named)
                if before and dumps((arguments, named)) != before:
                    code = CHANGED
            elif name == "names":
                if not loaded:
                    loaded.append(load(module))
                value = [name_ for name_ in arguments[0] if hasattr(loaded[0], name_)]
            else:
                attribute = getattr(loaded[0], arguments[0])
                functions[f".{arguments[0]}"] = attribute
                value = ("function", None) if callable(attribute) else ("value", attribute)
            answer = b"%d =%b\n" % (number, encode(value))
        except Exception as error:
            answer = b"%d !%b\n" % (number, encode([exception_name(error), exception_message(error)]))
        if forked:  # This process was forked by the submission.
            break
        while answer:
            answer = answer[write(answers, answer) :]
    _exit(code)  # Threads of the submission must not keep it alive.


def receive(reader: Reader) -> bytes | None:
    """Return the next request; `None` at the end."""
    data = reader.read()
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "little"):
        more = reader.read(1 << 20)
        if not more:
            return None
        data += more
    return data[4:]


def load(name: str) -> ModuleType:
    """Import the module and seed its random libraries, so that a submission draws the same numbers in every evaluation."""
    module = importlib.import_module(name)
    for library, seed in (("numpy.random", "seed"), ("torch.random", "manual_seed")):
        if library.partition(".")[0] in sys.modules:
            getattr(importlib.import_module(library), seed)(0)
    return module


def exception_name(error: Exception) -> str:
    """Return the built-in exception type that this one is or derives from."""
    for kind in type(error).__mro__:
        if getattr(builtins, kind.__name__, None) is kind and issubclass(kind, Exception) and kind is not Exception:
            return str(kind.__name__)
    return "RuntimeError"


def exception_message(error: Exception) -> str:
    try:
        words: str = error.args[0] if len(error.args) == 1 and isinstance(error.args[0], str) else str(error)
        return str.__str__(words)[:MAX_MESSAGE]
    except Exception:
        return ""


if __name__ == "__main__":
    main()
