"""A tool: a plain typed function with a docstring, and all that follows from these.

Its name, description, JSON schema and the check of its arguments come from the signature and the docstring, whose
first line says what comes back, and whose `Arguments:` say each argument in one line.
"""

from __future__ import annotations

import inspect
import json
import math
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

MOST_TEXT, MOST_ITEMS, MOST_NUMBER = 2000, 100, 1e12
"""Characters of a text, items of a list, size of a number: no call can then be dear."""

REQUIRED = inspect.Parameter.empty
_WORDS = {str: "str", int: "int", float: "float", bool: "bool", list[float]: "list[float]", list[str]: "list[str]"}
_SCHEMAS: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    list[float]: {"type": "array", "items": {"type": "number"}},
    list[str]: {"type": "array", "items": {"type": "string"}},
}


class ArgumentError(ValueError):
    """Arguments that a tool does not take. It is the caller's mistake, and says which."""


@dataclass(frozen=True, slots=True)
class ToolParameter:
    """An argument of a tool.

    Arguments:
        kind: a type that JSON knows, or a `Literal` of texts.
        default: `REQUIRED` where there is none.
    """

    name: str
    kind: Any
    description: str
    default: Any = REQUIRED

    @property
    def choices(self) -> tuple[str, ...]:
        return typing.get_args(self.kind) if typing.get_origin(self.kind) is Literal else ()

    def schema(self) -> dict[str, Any]:
        kind = {"type": "string", "enum": list(self.choices)} if self.choices else dict(_SCHEMAS[self.kind])
        schema = {**kind, "description": self.description}
        return schema if self.default is REQUIRED else {**schema, "default": self.default}

    def __str__(self) -> str:
        word = "|".join(map(repr, self.choices)) if self.choices else _WORDS[self.kind]
        return f"{self.name}: {word}" + ("" if self.default is REQUIRED else f" = {self.default!r}")


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may call.

    Arguments:
        domain: the file that it comes from.
        alike: arguments that may change places.
        unordered: arguments that are lists whose order means nothing.
    """

    name: str
    function: Callable[..., Any]
    domain: str
    description: str
    parameters: tuple[ToolParameter, ...]
    returns: Any
    alike: tuple[str, ...] = ()
    unordered: tuple[str, ...] = ()

    @property
    def signature(self) -> str:
        """As it stands in a prompt: `add_days(date: str, days: int) -> str`."""
        return f"{self.name}({', '.join(map(str, self.parameters))}) -> {_WORDS[self.returns]}"

    @property
    def short_signature(self) -> str:
        """With the names of the arguments alone."""
        return f"{self.name}({', '.join(parameter.name for parameter in self.parameters)})"

    def schema(self) -> dict[str, Any]:
        """Return the tool in OpenAI's format."""
        parameters = {
            "type": "object",
            "properties": {parameter.name: parameter.schema() for parameter in self.parameters},
            "required": [parameter.name for parameter in self.parameters if parameter.default is REQUIRED],
            "additionalProperties": False,
        }
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}

    def bind(self, args: Sequence[Any] = (), kwargs: Mapping[str, Any] = {}) -> dict[str, Any]:
        """The arguments of a call by name, each of its type, defaults filled in.

        Raises:
            ArgumentError: too many, too few, unknown, or of another type.
        """
        names = [parameter.name for parameter in self.parameters]
        if len(args) > len(names):
            raise ArgumentError(f"{self.name} takes {len(names)} arguments, {', '.join(names)}; got {len(args)}")
        given = dict(zip(names, args, strict=False))
        for name, value in kwargs.items():
            if name not in names:
                raise ArgumentError(f"{self.name} has no argument {name[:40]!r}; it takes {', '.join(names)}")
            if name in given:
                raise ArgumentError(f"{self.name} got {name} twice; give it once")
            given[name] = value
        bound = {}
        for parameter in self.parameters:
            if parameter.name in given:
                bound[parameter.name] = self._check_value(parameter, given[parameter.name])
            elif parameter.default is REQUIRED:
                raise ArgumentError(f"{self.name} needs {parameter.name}; give it as {parameter}")
            else:
                bound[parameter.name] = parameter.default
        return bound

    def canonical(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Bound arguments, those whose order means nothing in a fixed one: equal for calls that mean the same."""
        normal = dict(arguments)
        for name in self.unordered:
            normal[name] = sorted(normal[name])
        normal.update(zip(self.alike, sorted(normal[name] for name in self.alike), strict=True))
        return normal

    def _check_value(self, parameter: ToolParameter, value: Any) -> Any:
        where = f"{self.name}: {parameter.name}"
        if parameter.choices:
            if not isinstance(value, str) or value not in parameter.choices:
                raise ArgumentError(f"{where} is one of {', '.join(parameter.choices)}; got {_shorten(value)}")
            return value
        if parameter.kind in (list[float], list[str]):
            if not isinstance(value, list | tuple):
                raise ArgumentError(f"{where} is a {_WORDS[parameter.kind]}; got {_shorten(value)}")
            if not 0 < len(value) <= MOST_ITEMS:
                raise ArgumentError(f"{where} has 1 to {MOST_ITEMS} items; got {len(value)}")
            (kind,) = typing.get_args(parameter.kind)
            return [_scalar(f"an item of {where}", kind, item) for item in value]
        return _scalar(where, parameter.kind, value)


def collect_tools(domain: ModuleType) -> list[Tool]:
    """The tools of a file: its public functions."""
    own = [f for name, f in vars(domain).items() if inspect.isfunction(f) and not name.startswith("_")]
    return [make_tool(function) for function in own if function.__module__ == domain.__name__]


def make_tool(function: Callable[..., Any]) -> Tool:
    """The tool that a function is.

    Raises:
        TypeError: a type that JSON does not know, or an argument without its line in the docstring: a fault of ours.
    """
    name = function.__name__
    hints = typing.get_type_hints(function)
    summary, _, rest = inspect.cleandoc(function.__doc__ or "").partition("\n")
    descriptions = {name.strip(): text.strip() for name, _, text in (line.partition(":") for line in rest.splitlines())}
    parameters = []
    for parameter in inspect.signature(function).parameters.values():
        kind = hints.get(parameter.name)
        if kind not in _SCHEMAS and typing.get_origin(kind) is not Literal:
            raise TypeError(
                f"tool {name}: {parameter.name} has type {kind}; expected one of {', '.join(_WORDS.values())}"
            )
        if not descriptions.get(parameter.name):
            raise TypeError(f"tool {name}: expected a line on {parameter.name} below 'Arguments:' in its docstring")
        parameters.append(ToolParameter(parameter.name, kind, descriptions[parameter.name], parameter.default))
    if not summary or hints.get("return") not in _SCHEMAS:
        raise TypeError(f"tool {name}: expected a docstring and a return type, one of {', '.join(_WORDS.values())}")
    return Tool(
        name, function, function.__module__.rpartition(".")[2], summary.rstrip("."), tuple(parameters), hints["return"],
        getattr(function, "alike", ()), getattr(function, "unordered", ()),
    )  # fmt: skip


def _scalar(where: str, kind: Any, value: Any) -> Any:
    if kind is str and isinstance(value, str):
        if len(value) > MOST_TEXT:
            raise ArgumentError(f"{where} has at most {MOST_TEXT} characters; got {len(value)}")
        return str(value)
    if kind is bool and isinstance(value, bool):
        return value
    if kind in (int, float) and isinstance(value, int | float) and not isinstance(value, bool):
        if not abs(value) <= MOST_NUMBER or not math.isfinite(value):
            raise ArgumentError(f"{where} lies between {-MOST_NUMBER:.0e} and {MOST_NUMBER:.0e}; got {_shorten(value)}")
        if kind is float:
            return float(value)
        if value == int(value):  # JSON does not tell 3 from 3.0.
            return int(value)
    raise ArgumentError(f"{where} is of type {_WORDS[kind]}; got {_shorten(value)}")


def _shorten(value: Any) -> str:
    """A value and its type, short, whatever it is."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        text = "something that is no JSON"
    return f"{type(value).__name__} {text[:60]}"
