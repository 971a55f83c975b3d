"""Interpret programs that consist of calls only, without a sandbox.

Most answers are lines such as `a = add_days("2024-01-01", 5)` and `answer(a)`. A sandbox would take about 50 ms for each.
This module makes the same calls in the same order. A program with anything else (an operation, a condition, an import,
an undefined name) runs in the sandbox.
"""

from __future__ import annotations

import ast
import math
import warnings
from collections.abc import Callable, Collection, Mapping
from typing import Any

from palaestra.tasks.tools.plans import ExecutedCall
from palaestra.tasks.tools.records import MOST_CALLS, Record, with_error, with_too_many, without_answer

LONGEST = 4000
"""Maximum length of a program that is interpreted, so that no value is too large for a message."""
Make = Callable[[str, list[Any], dict[str, Any]], ExecutedCall]


class _Stop(Exception):
    """The program has ended."""

    def __init__(self, record: Record) -> None:
        self.record = record


def follow(code: str, offered: Collection[str], make: Make) -> Record | None:
    """Interpret a program of calls; None, without any call, for other programs.

    Arguments:
        make: makes a tool call.
    """
    if len(code) > LONGEST:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # For example about invalid escapes in the program.
        try:
            body = ast.parse(code).body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
    if not _is_straight(body, offered):
        return None
    try:
        return _Follower(make).run(body)
    except _Stop as end:
        return end.record


class _Follower:
    def __init__(self, make: Make) -> None:
        self._make = make
        self._made: list[ExecutedCall] = []
        self._names: dict[str, Any] = {}

    def run(self, body: list[ast.stmt]) -> Record:
        for line in body:
            if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
                self._names[line.targets[0].id] = self._value(line.value)
            elif isinstance(line, ast.Expr):
                self._value(line.value)
        return without_answer(self._made)

    def _value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Name):
            return self._names[node.id]
        if isinstance(node, ast.List | ast.Tuple):
            return [self._value(item) for item in node.elts]
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            return ast.literal_eval(node)
        args = [self._value(argument) for argument in node.args]
        kwargs = {argument.arg or "": self._value(argument.value) for argument in node.keywords}
        if node.func.id == "answer":
            raise _Stop(Record(tuple(self._made), None, value=args[0]))
        self._made.append(self._make(node.func.id, args, kwargs))
        if len(self._made) > MOST_CALLS:
            raise _Stop(with_too_many(self._made))
        if self._made[-1].error:
            raise _Stop(with_error(self._made, f"ToolError: {self._made[-1].error}"))
        return self._made[-1].value


def _is_straight(body: list[ast.stmt], offered: Collection[str]) -> bool:
    """Whether every line is a call or an assignment of a value or call, and uses only names that are defined before."""
    names: set[str] = set()
    for line in body:
        if isinstance(line, ast.Assign) and len(line.targets) == 1 and isinstance(line.targets[0], ast.Name):
            # Named lists could be nested in each other until they are huge.
            if isinstance(line.value, ast.List | ast.Tuple) or not _is_plain(line.value, names, offered):
                return False
            name = line.targets[0].id
            if name in offered or name == "answer":
                return False
            names.add(name)
        elif not isinstance(line, ast.Expr) or not (
            _is_answer(line.value, names, offered) or _is_plain(line.value, names, offered)
        ):
            return False
    return True


def _is_answer(node: ast.expr, names: Collection[str], offered: Collection[str]) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id != "answer":
        return False
    return len(node.args) == 1 and not node.keywords and _is_plain(node.args[0], names, offered)


def _is_plain(node: ast.expr, names: Collection[str], offered: Collection[str]) -> bool:
    """Whether a node is a value, a name, a list of such nodes, or a tool call with such arguments."""
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, ast.Constant):
        finite = not isinstance(node.value, float) or math.isfinite(node.value)
        return isinstance(node.value, str | int | float | None) and finite
    if isinstance(node, ast.UnaryOp):
        number = isinstance(node.operand, ast.Constant) and type(node.operand.value) in (int, float)
        return isinstance(node.op, ast.USub) and number and _is_plain(node.operand, names, offered)
    if isinstance(node, ast.List | ast.Tuple):
        return all(_is_plain(item, names, offered) for item in node.elts)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id not in offered:
        return False
    given: Mapping[str | None, ast.expr] = {keyword.arg: keyword.value for keyword in node.keywords}
    plain = all(_is_plain(keyword, names, offered) for keyword in (*node.args, *given.values()))
    return plain and None not in given and len(given) == len(node.keywords)
