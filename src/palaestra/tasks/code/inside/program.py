"""Runs inside the sandbox, beside the program of a model: calls what it defines, and says what came back.

It is told one call at a time. It never sees a test, an expected value or another call before its turn.
Whatever the program does to this process, all it can change is what it answers.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` itself would take longer to import than everything else here.
    from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))


def main() -> None:
    """Answer requests until there are no more."""
    asked = os.fdopen(os.dup(0), "rb")
    answers = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(2, 1)  # What the program prints goes to stderr, which nobody judges.
    sys.path.insert(0, HERE)
    import codec  # type: ignore[import-not-found]

    sys.path.remove(HERE)
    kept: dict[int, Any] = {}

    def keep(value: Any) -> int:
        number = id(value)
        kept[number] = value
        return number

    def say(message: dict[str, Any]) -> None:
        data = codec.line(message)
        while data:
            data = data[os.write(answers, data) :]

    names: dict[str, Any] = {}
    for text in asked:
        request = codec.read(text)
        try:
            say(answer(request, names, kept, keep, codec))
        except SystemExit as error:
            say({"error": "SystemExit", "message": str(error.code)})
        except KeyboardInterrupt:
            say({"error": "KeyboardInterrupt", "message": ""})
        except BaseException as error:
            say({"error": kind_of(error), "message": str(error)[:1000]})


def answer(
    request: dict[str, Any], names: dict[str, Any], kept: dict[int, Any], keep: Any, codec: Any
) -> dict[str, Any]:
    """What a request leads to."""
    if "load" in request:
        with open(request["load"], encoding="utf-8") as file:
            source = file.read()
        module = type(sys)(request.get("name", "solution"))
        names.update(module.__dict__)
        sys.modules[module.__name__] = module
        module.__dict__.update(names)
        exec(compile(source, "program.py", "exec"), module.__dict__)
        names.clear()
        names.update({"module": module})
        return {"value": None}
    scope = names["module"].__dict__
    arguments = [codec.unpack(one, kept.__getitem__) for one in request.get("args", [])]
    named = {k: codec.unpack(v, kept.__getitem__) for k, v in request.get("kwargs", {}).items()}
    target = kept[request["of"]] if "of" in request else None
    what = request["what"]
    if what == "call":
        value = (target if target is not None else find(scope, request["name"]))(*arguments, **named)
    elif what == "get":
        value = getattr(target, request["name"]) if target is not None else find(scope, request["name"])
    elif what == "set":
        setattr(target, request["name"], arguments[0])
        value = None
    elif what == "method":
        value = find(scope, request["name"])
        if isinstance(value, type):  # A class such as `Solution`: a fresh one for every call.
            value = getattr(value(), request["method"])(*arguments, **named)
        else:
            value = getattr(value, request["method"])(*arguments, **named)
    else:
        raise ValueError("unknown request")
    return {"value": codec.pack(value, keep), "args": [codec.pack(one, keep) for one in arguments]}


def find(scope: dict[str, Any], name: str) -> Any:
    """A name of the program, or of Python."""
    if name in scope:
        return scope[name]
    raise NameError(f"name '{name}' is not defined")


def kind_of(error: BaseException) -> str:
    """The nearest class of Python's own, so that whoever asked can raise it too."""
    for kind in type(error).__mro__:
        if kind.__module__ == "builtins":
            return kind.__name__
    return "Exception"


if __name__ == "__main__":
    main()
