"""Runs in a sandbox of its own, away from the program: holds the tests, asks for calls, compares.

Its stdin and stdout carry lines to the host and, through it, to the program: one request, one answer.
"""

from __future__ import annotations

import ast
import builtins
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` itself would take longer to import than everything else here.
    from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
codec: Any
asked: Any
told: int


class Gone(BaseException):
    """The program gives no more answers: it was ended, and the host says why."""


class Broken(Exception):
    """An error of the program that is none of Python's own."""


def say(message: dict[str, Any]) -> None:
    """One line to the host."""
    data = codec.line(message)
    while data:
        data = data[os.write(told, data) :]


def ask(**request: Any) -> Any:
    """One request to the program; returns what it answered, and puts into arguments what it changed in them."""
    given = request.get("args", ())
    request["args"] = [codec.pack(one, _number) for one in given]
    request["kwargs"] = {k: codec.pack(v, _number) for k, v in request.get("kwargs", {}).items()}
    say({"ask": request})
    line = asked.readline()
    if not line:
        os._exit(3)
    answer = codec.read(line)
    if "gone" in answer:
        raise Gone(answer["gone"])
    if "error" in answer:
        kind = getattr(builtins, answer["error"], Exception)
        usable = isinstance(kind, type) and issubclass(kind, Exception)
        raise (kind if usable else Broken)(answer.get("message", ""))
    for mine, after in zip(given, answer.get("args", []), strict=False):
        _take(mine, codec.unpack(after, Remote))
    return codec.unpack(answer["value"], Remote)


def _take(mine: Any, after: Any) -> None:
    """Bring an argument to what the program made of it."""
    if type(mine) is type(after) and mine != after:
        if isinstance(mine, list):
            mine[:] = after
        elif isinstance(mine, (dict, set)):
            mine.clear()
            mine.update(after)


def _number(value: Any) -> int:
    if isinstance(value, Remote):
        number: int = object.__getattribute__(value, "_number")
        return number
    raise codec.Unspeakable(f"a {type(value).__name__} of the tests cannot be given to the program")


class Remote:
    """An object that stayed with the program. It is equal to itself alone: the program has no say in it."""

    def __init__(self, number: int) -> None:
        object.__setattr__(self, "_number", number)

    def __getattr__(self, name: str) -> Any:
        return ask(what="get", of=object.__getattribute__(self, "_number"), name=name)

    def __setattr__(self, name: str, value: Any) -> None:
        ask(what="set", of=object.__getattribute__(self, "_number"), name=name, args=(value,))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return ask(what="call", of=object.__getattribute__(self, "_number"), args=args, kwargs=kwargs)


class Named:
    """A function or class of the program, by its name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return ask(what="call", name=self._name, args=args, kwargs=kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(ask(what="get", name=self._name), name)


class Asserts(ast.NodeTransformer):
    """Every assertion becomes a test of its own, so that one that fails does not hide the others."""

    def visit_Assert(self, node: ast.Assert) -> ast.Expr:
        """`assert x` -> `__assert__(lambda: x)`."""
        empty = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        call = ast.Call(ast.Name("__assert__", ast.Load()), [ast.Lambda(empty, node.test)], [])
        return ast.copy_location(ast.Expr(call), node)


def names_of(tree: ast.AST) -> set[str]:
    """The names that the tests use and do not define: those are the program's."""
    stored: set[str] = set()
    loaded: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (loaded if isinstance(node.ctx, ast.Load) else stored).add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            stored.add(node.name)
        elif isinstance(node, ast.arg):
            stored.add(node.arg)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            stored |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ExceptHandler) and node.name:
            stored.add(node.name)
    return loaded - stored - set(dir(builtins))


def judge(job: dict[str, Any]) -> None:
    """All tests of a job; says a verdict for each, and at last that it is done."""
    done: list[dict[str, str]] = []

    def check(test: Any) -> None:
        verdict = {"verdict": "passed"}
        try:
            if not test():
                verdict = {"verdict": "wrong_answer"}
        except Gone:
            raise
        except Exception as error:
            verdict = {"verdict": "runtime_error", "detail": f"{type(error).__name__}: {error}"[:500]}
        done.append(verdict)
        say({"test": verdict})

    tree = ast.parse(job["tests"])
    scope: dict[str, Any] = {"__name__": "tests", "__assert__": check}
    for name in names_of(tree) | set(job.get("names", [])):
        scope[name] = Named(name)
    tree = ast.fix_missing_locations(Asserts().visit(tree))
    try:
        exec(compile(tree, "tests.py", "exec"), scope)
        if job.get("check"):
            scope["check"](Named(job["check"]))
    except Gone as gone:
        say({"test": {"verdict": str(gone)}})
    except Exception as error:
        # Between the assertions something of the program raised, or gave what the tests cannot use.
        say({"test": {"verdict": "runtime_error", "detail": f"{type(error).__name__}: {error}"[:500]}})
    say({"done": len(done)})


def main() -> None:
    """Jobs, one after the other, each in a process of its own: none finds anything of another."""
    global asked, told, codec
    sys.path.insert(0, HERE)
    import codec as found  # type: ignore[import-not-found]

    codec = found
    asked, told = os.fdopen(os.dup(0), "rb"), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(2, 1)
    while line := asked.readline():
        child = os.fork()
        if not child:
            try:
                judge(codec.read(line))
            except BaseException as error:
                os.write(2, f"{type(error).__name__}: {error}\n".encode("utf-8", "replace"))
                os._exit(1)
            os._exit(0)
        if status := os.waitpid(child, 0)[1]:
            say({"broken": status})


if __name__ == "__main__":
    main()
