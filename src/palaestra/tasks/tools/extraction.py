"""Extract the plan from a response: a program, or tool calls as JSON.

A program is the last block that calls `answer`, with the earlier blocks that define the names it uses. Calls are the
last JSON list of calls, or all single calls if there is no list.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from palaestra.core.records import Json, ToolCall
from palaestra.tasks.code.extraction import assemble, find_fenced, is_program, longest_part
from palaestra.tasks.tools.matching import MAX_CALLS

MAX_TEXT = 50_000
"""Maximum length of the end of a response that is searched for calls, and of a response with a program."""
_MAX_BARE_TEXT, _MAX_BARE_LINES = 8_000, 200
"""Maximum length and number of lines of a response with a program without fences."""
_MAX_STARTS, _MAX_DEPTH = 400, 12
"""Maximum number of brackets that are tried as the start of JSON, and maximum depth of the arguments of a call."""
_ARGUMENT_KEYS = ("arguments", "parameters", "input")
"""Keys of the arguments of a call in the formats of OpenAI, Llama and Anthropic."""
_REFERENCE = re.compile(r"\$(call_\d+)")
_LINE = re.compile(r"^[A-Za-z_#]", re.MULTILINE)
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class CallReference:
    """A reference to the result of the call with this name."""

    name: str


@dataclass(frozen=True, slots=True)
class Asked:
    """A call as a model wrote it.

    Arguments:
        name: its id, or `call_1` and so on by its position.
        arguments: JSON values, with `CallReference`s.
    """

    name: str
    tool: str
    arguments: Json


def extract_program(text: str) -> str:
    """The program in a response that calls `answer`; empty if there is none, or if the response is too long."""
    if len(text) > MAX_TEXT:
        return ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # For example about invalid escapes in the program.
        blocks = [block for block in find_fenced(text) if is_program(block)]
        last = max((place for place, block in enumerate(blocks) if _answers(block)), default=-1)
        if last >= 0:  # Earlier answers are not part of the program.
            return assemble([*(b for b in blocks[:last] if not _answers(b)), blocks[last]], _answers)
        lines = text[:_MAX_BARE_TEXT].split("\n")[:_MAX_BARE_LINES]
        while lines and "answer" not in lines[-1]:
            lines.pop()
        return longest_part("\n".join(lines), _answers, start=_LINE)


def extract_calls(text: str) -> list[Asked]:
    """The tool calls in a response, at most one more than allowed; empty if there are none.

    A call is `{"name": ..., "arguments": {...}}`, or the same below `"function"` as in OpenAI's format, where the arguments
    may be a JSON text. `parameters` and `input` are accepted instead of `arguments`. `{"$result": "call_1"}` or `"$call_1"` as an
    argument, or as an item of a list, refers to the result of an earlier call.
    """
    alone: list[Json] = []
    listed: list[Json] = []
    for value in find_json(text[-MAX_TEXT:]):
        if isinstance(value, dict) and isinstance(value.get("tool_calls"), list):
            value = value["tool_calls"]
        if isinstance(value, list) and value and all(map(_is_call, value)):
            listed = value
        elif _is_call(value):
            alone.append(value)
    return _name_calls(listed or alone)


def read_native_calls(calls: Sequence[ToolCall]) -> list[Asked] | None:
    """The tool calls of an API response; `None` if the arguments of a call are not a JSON object."""
    plain = [
        {"id": call.id, "name": call.name, "arguments": call.arguments[:MAX_TEXT]} for call in calls[: MAX_CALLS + 1]
    ]
    return _name_calls(plain) if all(map(_is_call, plain)) else None


def _name_calls(calls: Sequence[Json]) -> list[Asked]:
    """Name every call by its id or its position, and resolve references to these names."""
    calls = calls[: MAX_CALLS + 1]
    ids = [entry.get("id") for entry in calls]
    names = [own if isinstance(own, str) and own else f"call_{place}" for place, own in enumerate(ids, 1)]
    by_place = {f"call_{place}": own for place, own in enumerate(names, 1)}
    named = []
    for call, name in zip(calls, names, strict=True):
        function = call.get("function", call)
        arguments = {key: _read(value, names, by_place) for key, value in _arguments(function).items()}
        named.append(Asked(name, function["name"], arguments))
    return named


def _arguments(function: Json) -> Any:
    """The arguments of a call. They are not an object if the value is not a call."""
    given: Any = next((function[key] for key in _ARGUMENT_KEYS if key in function), {})
    return _load_json(given) if isinstance(given, str) else given


def _read(value: object, names: list[str], by_place: Mapping[str, str]) -> object:
    if isinstance(value, list):
        return [_read(item, names, by_place) for item in value]
    name = None
    if isinstance(value, dict) and set(value) == {"$result"}:
        name = str(value["$result"]).removeprefix("$")
    elif isinstance(value, str) and (match := _REFERENCE.fullmatch(value.strip())):
        name = match[1]
    elif isinstance(value, str) and value.startswith("$") and value[1:] in names:
        name = value[1:]
    if name is None:
        return value
    return CallReference(name if name in names else by_place.get(name, name))


def _is_call(value: object) -> bool:
    """Whether a JSON value is a call: it has a name, and arguments that are an object or a JSON text with one."""
    if not isinstance(value, dict):
        return False
    function = value.get("function", value)
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return False
    arguments = _arguments(function)
    if not isinstance(arguments, dict) or _depth(arguments) > _MAX_DEPTH:
        return False
    # A tool description that the model repeats is not a call.
    return "arguments" in function or not {"type", "properties"} <= arguments.keys()


def find_json(text: str) -> list[Any]:
    """The outermost JSON objects and lists in a text."""
    values, place = [], 0
    for _ in range(_MAX_STARTS):
        start = re.compile(r"[\[{]").search(text, place)
        if start is None:
            break
        try:
            value, place = _DECODER.raw_decode(text, start.start())
        except RecursionError:
            break  # No answer is nested so deeply, and parsing it is slow.
        except ValueError:
            place = start.start() + 1
        else:
            values.append(value)
    return values


def _load_json(text: str) -> Any:
    try:
        return json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return None


def _depth(value: object, so_far: int = 0) -> int:
    """The nesting depth of lists and objects; counting stops above the limit."""
    if so_far > _MAX_DEPTH or not isinstance(value, dict | list):
        return so_far
    inner = value.values() if isinstance(value, dict) else value
    return max((_depth(item, so_far + 1) for item in inner), default=so_far + 1)


def _answers(block: str) -> bool:
    calls = (node.func for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Call))
    return any(isinstance(function, ast.Name) and function.id == "answer" for function in calls)
