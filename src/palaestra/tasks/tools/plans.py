"""Plans: calls of tools whose arguments are values, or results of calls before them.

A plan is written as the program that it is, `weekday(add_days(date, days))`, and read from that. The last call gives
the answer, and every other call flows into it.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from palaestra.tasks.tools.library import LIBRARY

_ENCODER = json.JSONEncoder(ensure_ascii=False, default=repr)
VARIABLES = "abcd"
MOST_CALLS_A_PLAN = len(VARIABLES)


@dataclass(frozen=True, slots=True)
class CallResult:
    """Stands for what an earlier call gave; the first call is 0."""

    call: int


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a plan. An argument is a value, a `CallResult`, or a list with results in it."""

    tool: str
    arguments: Mapping[str, Any]

    def needs(self) -> set[int]:
        """The calls whose results it takes."""
        return {
            part.call for value in self.arguments.values() for part in _parts(value) if isinstance(part, CallResult)
        }


@dataclass(frozen=True, slots=True)
class ExecutedCall:
    """A call that was made, and what came of it.

    Arguments:
        arguments: by name and with defaults, if they fit the tool; else as they were given.
        error: what was wrong with it; empty if nothing was.
    """

    tool: str
    arguments: Mapping[str, Any]
    value: Any = None
    error: str = ""

    def __str__(self) -> str:
        inside = ", ".join(f"{name}={brief(value)}" for name, value in self.arguments.items())
        return f"{self.tool}({inside[:200]}) -> {'error' if self.error else brief(self.value)}"


@dataclass(frozen=True, slots=True)
class Plan:
    """Calls in an order in which they can be made."""

    calls: tuple[Call, ...]

    @property
    def shape(self) -> str:
        """`single`; `chain`, where each call takes the result of the one before; else `join`, where results meet."""
        if len(self.calls) == 1:
            return "single"
        chain = all(call.needs() == {place - 1} for place, call in enumerate(self.calls) if place)
        return "chain" if chain else "join"

    def execute(self) -> tuple[ExecutedCall, ...]:
        """Make the calls here: for plans of ours, never for those of a model."""
        executed: list[ExecutedCall] = []
        for call in self.calls:
            tool = LIBRARY[call.tool]
            given = {
                name: resolve(value, [earlier.value for earlier in executed]) for name, value in call.arguments.items()
            }
            bound = tool.bind((), given)
            executed.append(ExecutedCall(call.tool, bound, tool.function(**bound)))
        return tuple(executed)

    def to_data(self) -> list[dict[str, Any]]:
        """Plain data, as short tool calls."""
        return [{"name": call.tool, "arguments": refer(call.arguments)} for call in self.calls]

    @classmethod
    def from_data(cls, data: Sequence[Mapping[str, Any]]) -> Plan:
        return cls(tuple(Call(call["name"], _dereference(call["arguments"])) for call in data))

    def canonical(self) -> str:
        """The same for all plans that mean the same, whatever the order of what has none: decides the split."""
        return json.dumps(self._expression(CallResult(len(self.calls) - 1)), sort_keys=True)

    def _expression(self, value: Any) -> Any:
        """A value with the whole calls, tool and arguments, in the places of their results."""
        if isinstance(value, list):
            return [self._expression(item) for item in value]
        if not isinstance(value, CallResult):
            return value
        call = self.calls[value.call]
        tool = LIBRARY[call.tool]
        given = {name: self._expression(argument) for name, argument in call.arguments.items()}
        given.update(zip(tool.alike, sorted((given[name] for name in tool.alike), key=json.dumps), strict=True))
        for name in tool.unordered:
            given[name] = sorted(given[name], key=json.dumps) if given[name][0] != "call" else given[name]
        return ["call", call.tool, given]

    def program(self) -> str:
        """As a short program, a line a call."""
        lines = []
        for name, call in zip(VARIABLES, self.calls, strict=False):
            order = list(call.arguments)
            known = [parameter.name for parameter in LIBRARY[call.tool].parameters]
            plain = order == known[: len(order)]
            inside = [_format(v) if plain else f"{k}={_format(v)}" for k, v in call.arguments.items()]
            lines.append(f"{name} = {call.tool}({', '.join(inside)})")
        return "\n".join([*lines, f"answer({VARIABLES[len(self.calls) - 1]})"]) + "\n"


def read_plan(source: str, values: Mapping[str, Any]) -> Plan:
    """The plan that a program of ours describes.

    Arguments:
        source: calls, in each other or assigned to names; the last one gives the answer.
        values: what the other names stand for.
    """
    calls: list[Call] = []
    names: dict[str, Any] = dict(values)

    def read_value(node: ast.expr) -> Any:
        if isinstance(node, ast.Name):
            return names[node.id]
        if isinstance(node, ast.List):
            return [read_value(item) for item in node.elts]
        if isinstance(node, ast.JoinedStr):
            return "".join(str(read_value(part)) for part in node.values)
        if isinstance(node, ast.FormattedValue):
            return read_value(node.value)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            known = [parameter.name for parameter in LIBRARY[node.func.id].parameters]
            arguments = {name: read_value(argument) for name, argument in zip(known, node.args, strict=False)}
            arguments.update({argument.arg or "": read_value(argument.value) for argument in node.keywords})
            calls.append(Call(node.func.id, arguments))
            return CallResult(len(calls) - 1)
        return ast.literal_eval(node)

    for line in _parse(source):
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
            names[line.targets[0].id] = read_value(line.value)
        elif isinstance(line, ast.Expr):
            read_value(line.value)
    return Plan(tuple(calls))


@cache
def _parse(source: str) -> list[ast.stmt]:
    return ast.parse(source).body


def resolve(value: Any, results: Sequence[Any]) -> Any:
    """A value with the results in the places that stand for them."""
    if isinstance(value, CallResult):
        return results[value.call]
    if isinstance(value, list):
        return [resolve(item, results) for item in value]
    return value


def refer(value: Any) -> Any:
    """A value as JSON, where `{"$result": "call_1"}` stands for the result of the first call."""
    if isinstance(value, CallResult):
        return {"$result": f"call_{value.call + 1}"}
    if isinstance(value, Mapping):
        return {name: refer(inner) for name, inner in value.items()}
    return [refer(item) for item in value] if isinstance(value, list) else value


def _dereference(value: Any) -> Any:
    if isinstance(value, Mapping):
        if "$result" in value:
            return CallResult(int(value["$result"].removeprefix("call_")) - 1)
        return {name: _dereference(inner) for name, inner in value.items()}
    return [_dereference(item) for item in value] if isinstance(value, list) else value


def _parts(value: Any) -> list[Any]:
    return [part for item in value for part in _parts(item)] if isinstance(value, list) else [value]


def _format(value: Any) -> str:
    if isinstance(value, CallResult):
        return VARIABLES[value.call]
    if isinstance(value, list):
        return f"[{', '.join(map(_format, value))}]"
    return json.dumps(value, ensure_ascii=False)


def brief(value: Any, most: int = 40) -> str:
    """A value as JSON in one short line, whatever it is."""
    text = ""
    try:
        for part in _ENCODER.iterencode(value):  # No more of it is written than is shown.
            text += part[: most + 1]
            if len(text) > most:
                break
    except (ValueError, RecursionError):
        text = f"a {type(value).__name__}"
    return text if len(text) <= most else f"{text[: most - 3]}..."
