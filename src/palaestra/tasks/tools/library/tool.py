"""A tool: a plain typed function with a docstring.

Its name, description, JSON schema and argument checks come from the signature and the docstring. The first line of the
docstring describes the result, and `Arguments:` describes each argument in one line.
"""

from __future__ import annotations

import inspect
import json
import math
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

MAX_TEXT, MAX_ITEMS, MAX_NUMBER = 2000, 100, 1e12
"""Limits of a text in characters, of a list, and of a number. They bound the cost of a call."""
ALIKE = {"product": ("a", "b"), "distance": ("town", "other")}
"""Tools with arguments that can be exchanged."""
UNORDERED = ("total", "mean", "median", "largest", "smallest", "count_above", "top")
"""Tools for which the order of the list `numbers` does not matter."""
REQUIRED = inspect.Parameter.empty
_TYPES: dict[object, tuple[str, dict[str, Any]]] = {
    str: ("str", {"type": "string"}),
    int: ("int", {"type": "integer"}),
    float: ("float", {"type": "number"}),
    list[float]: ("list[float]", {"type": "array", "items": {"type": "number"}}),
}
"""The name and the JSON schema of each type of an argument or result."""


class ArgumentError(ValueError):
    """The arguments do not fit the tool."""


@dataclass(frozen=True, slots=True)
class ToolParameter:
    """An argument of a tool.

    Arguments:
        kind: one of `_TYPES`, or a `Literal` of texts.
        default: `REQUIRED` if there is none.
    """

    name: str
    kind: object
    description: str
    default: object = REQUIRED

    @property
    def choices(self) -> tuple[str, ...]:
        return typing.get_args(self.kind) if typing.get_origin(self.kind) is Literal else ()

    def schema(self) -> dict[str, Any]:
        kind = {"type": "string", "enum": list(self.choices)} if self.choices else _TYPES[self.kind][1]
        schema = {**kind, "description": self.description}
        return schema if self.default is REQUIRED else {**schema, "default": self.default}

    def __str__(self) -> str:
        word = "|".join(map(repr, self.choices)) if self.choices else _TYPES[self.kind][0]
        return f"{self.name}: {word}" + ("" if self.default is REQUIRED else f" = {self.default!r}")


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may call.

    Arguments:
        alike: arguments that can be exchanged.
        unordered: arguments that are lists without order.
    """

    name: str
    function: Callable[..., Any]
    domain: str
    description: str
    parameters: tuple[ToolParameter, ...]
    returns: object
    alike: tuple[str, ...]
    unordered: tuple[str, ...]

    @property
    def signature(self) -> str:
        """The signature in a prompt: `add_days(date: str, days: int) -> str`."""
        return f"{self.name}({', '.join(map(str, self.parameters))}) -> {_TYPES[self.returns][0]}"

    @property
    def short_signature(self) -> str:
        """The signature with the names of the arguments alone."""
        return f"{self.name}({', '.join(parameter.name for parameter in self.parameters)})"

    def schema(self) -> dict[str, Any]:
        """The tool in OpenAI's format."""
        parameters = {
            "type": "object",
            "properties": {parameter.name: parameter.schema() for parameter in self.parameters},
            "required": [parameter.name for parameter in self.parameters if parameter.default is REQUIRED],
            "additionalProperties": False,
        }
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}

    def bind(self, args: Sequence[object] = (), kwargs: Mapping[str, object] = {}) -> dict[str, Any]:
        """The arguments of a call by name, converted to their types, with defaults.

        Raises:
            ArgumentError: there are too many, too few or unknown arguments, or one has the wrong type.
        """
        try:
            bound = inspect.signature(self.function).bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentError(f"expected {self.signature}; {error}"[:500]) from None
        bound.apply_defaults()
        return {
            parameter.name: _convert(f"{self.name}: {parameter.name}", parameter, bound.arguments[parameter.name])
            for parameter in self.parameters
        }

    def canonical(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Bound arguments in a fixed order where order does not matter. Equivalent calls have equal arguments."""
        normal = dict(arguments)
        for name in self.unordered:
            normal[name] = sorted(normal[name])
        normal.update(zip(self.alike, sorted(normal[name] for name in self.alike), strict=True))
        return normal


def make_tool(function: Callable[..., Any], domain: str) -> Tool:
    """The tool of a function."""
    name, hints = function.__name__, typing.get_type_hints(function)
    summary, _, rest = inspect.cleandoc(function.__doc__ or "").partition("\n")
    lines = (line.partition(":") for line in rest.splitlines())
    descriptions = {argument.strip(): text.strip() for argument, _, text in lines}
    parameters = tuple(
        ToolParameter(parameter.name, hints[parameter.name], descriptions[parameter.name], parameter.default)
        for parameter in inspect.signature(function).parameters.values()
    )
    unordered = ("numbers",) if name in UNORDERED else ()
    return Tool(
        name, function, domain, summary.rstrip("."), parameters, hints["return"], ALIKE.get(name, ()), unordered
    )


def _convert(where: str, parameter: ToolParameter, value: object) -> object:
    if parameter.choices:
        if not isinstance(value, str) or value not in parameter.choices:
            raise ArgumentError(f"{where} is one of {', '.join(parameter.choices)}; got {_shorten(value)}")
        return value
    if parameter.kind != list[float]:
        return _convert_scalar(where, parameter.kind, value)
    if not isinstance(value, list | tuple) or not 0 < len(value) <= MAX_ITEMS:
        raise ArgumentError(f"{where} is a list of 1 to {MAX_ITEMS} numbers; got {_shorten(value)}")
    return [_convert_scalar(f"an item of {where}", float, item) for item in value]


def _convert_scalar(where: str, kind: object, value: object) -> object:
    if kind is str and isinstance(value, str):
        if len(value) > MAX_TEXT:
            raise ArgumentError(f"{where} has at most {MAX_TEXT} characters; got {len(value)}")
        return str(value)
    if kind is not str and isinstance(value, int | float) and not isinstance(value, bool):
        if not abs(value) <= MAX_NUMBER or not math.isfinite(value):
            raise ArgumentError(f"{where} lies between {-MAX_NUMBER:.0e} and {MAX_NUMBER:.0e}; got {_shorten(value)}")
        if kind is float:
            return float(value)
        if value == int(value):  # JSON does not distinguish 3 and 3.0.
            return int(value)
    raise ArgumentError(f"{where} is of type {_TYPES[kind][0]}; got {_shorten(value)}")


def _shorten(value: object) -> str:
    """The type of a value and its start as JSON."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        text = "that is not JSON"
    return f"{type(value).__name__} {text[:60]}"
