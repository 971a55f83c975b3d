"""Plans: tool calls whose arguments are values or results of earlier calls.

A plan is written as an expression such as `weekday(add_days(date, days))`. The result of the last call is the answer, and
all other calls contribute to it.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from palaestra.core.records import Json
from palaestra.tasks.content import read_brief
from palaestra.tasks.tools.library import LIBRARY

_VARIABLES = "abcd"
MAX_CALLS_IN_PLAN = len(_VARIABLES)


@dataclass(frozen=True, slots=True)
class CallResult:
    """A reference to the result of an earlier call, by index."""

    call: int


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a plan. An argument is a value, a `CallResult`, or a list of these."""

    tool: str
    arguments: Mapping[str, object]

    def needs(self) -> set[int]:
        """The indices of the calls whose results it uses."""
        return {leaf.call for leaf in iterate_leaves(self.arguments) if isinstance(leaf, CallResult)}


@dataclass(frozen=True, slots=True)
class ExecutedCall:
    """An executed call with its result.

    Arguments:
        arguments: by name and with defaults if they are valid; otherwise as given.
        error: the error message; empty if the call succeeded.
    """

    tool: str
    arguments: Mapping[str, object]
    value: Any = None
    error: str = ""

    def __str__(self) -> str:
        inside = ", ".join(f"{name}={brief(value)}" for name, value in self.arguments.items())
        return f"{self.tool}({inside[:200]}) -> {'error' if self.error else brief(self.value)}"


@dataclass(frozen=True, slots=True)
class Plan:
    """Calls in an executable order."""

    calls: tuple[Call, ...]

    @property
    def shape(self) -> str:
        """`single`; `chain` if each call uses exactly the result of the previous one; otherwise `join`."""
        if len(self.calls) == 1:
            return "single"
        chain = all(call.needs() == {place - 1} for place, call in enumerate(self.calls) if place)
        return "chain" if chain else "join"

    def execute(self) -> tuple[ExecutedCall, ...]:
        """Execute the calls in this process. Only for our own plans, never for those of a model."""
        executed: list[ExecutedCall] = []
        for call in self.calls:
            tool = LIBRARY[call.tool]
            known = map_leaves(
                call.arguments, lambda leaf: executed[leaf.call].value if isinstance(leaf, CallResult) else leaf
            )
            bound = tool.bind((), known)
            executed.append(ExecutedCall(call.tool, bound, tool.function(**bound)))
        return tuple(executed)

    def to_data(self) -> list[Json]:
        """The plan as JSON data."""
        return [{"name": call.tool, "arguments": _refer(call.arguments)} for call in self.calls]

    @classmethod
    def from_data(cls, data: Sequence[Json]) -> Plan:
        return cls(tuple(Call(call["name"], _dereference(call["arguments"])) for call in data))

    def canonical(self) -> str:
        """A text that is the same for equivalent plans, independent of irrelevant order. It decides the split."""
        return json.dumps(self._expression(CallResult(len(self.calls) - 1)), sort_keys=True)

    def _expression(self, value: Any) -> Any:
        """A value in which results are replaced by their calls."""
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
        """The plan as a program with a call on each line."""
        lines = []
        for name, call in zip(_VARIABLES, self.calls, strict=False):
            known = [parameter.name for parameter in LIBRARY[call.tool].parameters]
            in_order = list(call.arguments) == known[: len(call.arguments)]
            inside = [_format(v) if in_order else f"{k}={_format(v)}" for k, v in call.arguments.items()]
            lines.append(f"{name} = {call.tool}({', '.join(inside)})")
        return "\n".join([*lines, f"answer({_VARIABLES[len(self.calls) - 1]})"]) + "\n"


def read_plan(source: str, values: Mapping[str, object]) -> Plan:
    """Parse a plan.

    Arguments:
        source: calls, nested or assigned to names; the result of the last one is the answer.
        values: the values of the other names.
    """
    calls: list[Call] = []
    names = dict(values)

    def read_value(node: ast.expr) -> object:
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


def map_leaves(value: Any, change: Callable[[Any], object]) -> Any:
    """A copy of a JSON value with `change` applied to everything that is not a list or an object."""
    if isinstance(value, list):
        return [map_leaves(item, change) for item in value]
    if isinstance(value, Mapping):
        return {name: map_leaves(inner, change) for name, inner in value.items()}
    return change(value)


def iterate_leaves(value: object) -> Iterator[object]:
    """Everything in a JSON value that is not a list or an object."""
    if isinstance(value, list | Mapping):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from iterate_leaves(inner)
    else:
        yield value


def _refer(value: Any, show: Callable[[str], object] = lambda name: {"$result": name}) -> Any:
    """A value as JSON, with `{"$result": "call_1"}`, or what `show` returns, for the result of the first call."""
    return map_leaves(value, lambda leaf: show(f"call_{leaf.call + 1}") if isinstance(leaf, CallResult) else leaf)


def _dereference(value: Any) -> Any:
    if isinstance(value, Mapping):
        if "$result" in value:
            return CallResult(int(value["$result"].removeprefix("call_")) - 1)
        return {name: _dereference(inner) for name, inner in value.items()}
    return [_dereference(item) for item in value] if isinstance(value, list) else value


def _format(value: object) -> str:
    if isinstance(value, CallResult):
        return _VARIABLES[value.call]
    if isinstance(value, list):
        return f"[{', '.join(map(_format, value))}]"
    return json.dumps(value, ensure_ascii=False)


def brief(value: object, most: int = 40) -> str:
    """A value as short JSON on one line."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=repr)
    except (ValueError, RecursionError):
        text = f"a {type(value).__name__}"
    return text if len(text) <= most else f"{text[: most - 3]}..."


FORMS = ("program", "calls")
PROMPTS = ("full", "short")

_HOW = {form: read_brief(f"tools-{form}") for form in FORMS}
_SHORT = {"program": "Program:", "calls": "Calls:"}
_TOKENS = {
    ("program", "short"): (36, 28),
    ("calls", "short"): (32, 64),
    ("program", "full"): (256, 64),
    ("calls", "full"): (256, 128),
}


def longest(form: str, prompt: str, most_calls: int) -> int:
    """Maximum length of an answer in tokens: that of lessons with the smallest tokenizer; for a full prompt, with room for reasoning."""
    start, each = _TOKENS[form, prompt]
    return start + each * most_calls


def format_prompt(question: str, offered: Sequence[str], form: str, prompt: str) -> str:
    """The prompt: the tools, the request, and the form of the answer."""
    tools = [LIBRARY[name] for name in offered]
    if prompt == "short":
        return f"{', '.join(tool.short_signature for tool in tools)}\n{question}\n{_SHORT[form]}"
    lines = "\n".join(f"{tool.signature}: {tool.description}" for tool in tools)
    return f"Tools:\n{lines}\n\n{question}\n\n{_HOW[form]}"


def read_prompt(text: str, form: str, prompt: str) -> str:
    """The request in a prompt of `format_prompt`."""
    if prompt == "short":
        return text.partition("\n")[2].removesuffix(f"\n{_SHORT[form]}")
    return text.partition("\n\n")[2].removesuffix(f"\n\n{_HOW[form]}")


def response(plan: Plan, form: str, prompt: str) -> str:
    """The worked answer: the tools with their purpose, then the plan."""
    if prompt == "short":
        if form == "program":
            return plan.program().rstrip("\n")
        return json.dumps(short_calls(plan), ensure_ascii=False, separators=(",", ":"))
    program = f"python\n{plan.program()}"
    calls = f"json\n{json.dumps(openai_calls(plan), ensure_ascii=False)}\n"
    return f"{_reasoning(plan)}\n\n```{program if form == 'program' else calls}```"


def _reasoning(plan: Plan) -> str:
    """A line for each call: the tool, its result, and its inputs."""
    lines = []
    for place, call in enumerate(plan.calls, 1):
        steps = [str(need + 1) for need in sorted(call.needs())]
        source = f", given the result of step {' and step '.join(steps)}" if steps else ""
        description = LIBRARY[call.tool].description
        lines.append(f"{place}. {call.tool} gives {description[0].lower()}{description[1:]}{source}.")
    return "\n".join(lines)


def openai_calls(plan: Plan) -> list[Json]:
    """The plan as OpenAI's tool calls."""
    return [
        {
            "id": f"call_{place}",
            "type": "function",
            "function": {"name": call.tool, "arguments": json.dumps(_refer(call.arguments), ensure_ascii=False)},
        }
        for place, call in enumerate(plan.calls, 1)
    ]


def short_calls(plan: Plan) -> list[Json]:
    """The plan as calls with names and arguments alone, and `"$call_1"` for the result of the first."""
    return [{"name": call.tool, "arguments": _refer(call.arguments, "${}".format)} for call in plan.calls]
