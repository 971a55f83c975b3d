"""The contract of a tool format, and what the parsers share."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from palaestra.core.records import ToolCall

Schemas = Mapping[str, Mapping[str, Any]]
"""The JSON schemas of the parameters of each tool, by name."""
DECODER = json.JSONDecoder(strict=False)
"""Accepts line breaks inside of strings, which models often write."""


@dataclass(frozen=True, slots=True)
class ParsedMessage:
    """A message of a model.

    Arguments:
        text: its text without calls. Reasoning stays in it, up to `</think>`.
        calls: its calls. A call that cannot be read has the text that the model wrote as its arguments, and no name if
            the name cannot be read either (see `is_malformed`).
    """

    text: str
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """A format of tool calls.

    Arguments:
        mark: a text that begins a call, or is part of it. The chat template of a model with this format contains it.
        parse: reads a message, with special tokens in it. A text without calls is returned unchanged. It never raises.
        has_channels: whether the text of a message is in channels, so that it must be parsed even without tools.
    """

    mark: str
    parse: Callable[[str, Schemas], ParsedMessage]
    has_channels: bool = False


def read_schemas(tools: str) -> dict[str, Mapping[str, Any]]:
    """Return the schemas of the parameters of each tool.

    Arguments:
        tools: JSON text of a list of tools in OpenAI's format.
    """
    functions = [tool.get("function", tool) for tool in json.loads(tools)] if tools else []
    return {function["name"]: function.get("parameters", {}).get("properties", {}) for function in functions}


def is_malformed(call: ToolCall) -> bool:
    """Whether a call cannot be executed because it has no name, or its arguments are not a JSON object.

    >>> is_malformed(ToolCall("add", '{"a": 1}')), is_malformed(ToolCall("add", '{"a": 1'))
    (False, True)
    """
    try:
        return not call.name or not isinstance(json.loads(call.arguments), dict)
    except (ValueError, RecursionError):
        return True


def remove_tokens(text: str, tokens: Iterable[str]) -> str:
    """Remove special tokens from a text.

    >>> remove_tokens("words<|end|>", ["<|end|>"])
    'words'
    """
    for token in tokens:
        text = text.replace(token, "")
    return text


def split_reasoning(text: str) -> tuple[str, str]:
    """Split a message after its reasoning. Calls inside of the reasoning are not calls.

    >>> split_reasoning("<think>two</think>words")
    ('<think>two</think>', 'words')
    """
    reasoning, tag, rest = text.partition("</think>")
    if tag:
        return reasoning + tag, rest
    return (text, "") if text.lstrip().startswith("<think>") else ("", text)


def cut_blocks(text: str, start: str, end: str) -> tuple[str, list[str]]:
    """Cut the blocks between two marks out of a text. A block without an end reaches to the next one.

    >>> cut_blocks("Look. <a>1</a><a>2", "<a>", "</a>")
    ('Look. ', ['1', '2'])
    """
    outside, *parts = text.split(start)
    blocks = []
    for part in parts:
        block, _, rest = part.partition(end)
        blocks.append(block)
        outside += rest
    return outside, blocks


def read_json_call(text: str) -> ToolCall:
    """Read a call that is one JSON object: a name, and `arguments` or `parameters`."""
    try:
        value = DECODER.decode(text.strip())
    except (ValueError, RecursionError):
        return ToolCall("", text.strip())
    return to_call(value) or ToolCall("", text.strip())


def to_call(value: Any) -> ToolCall | None:
    """Return the call in a JSON value; `None` if it is no call."""
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return ToolCall(value["name"], text)


def decode_objects(text: str) -> tuple[list[Any], str]:
    """Decode the JSON values at the start of a text, one after the other. Returns the values and the rest of the text.

    >>> decode_objects('{"a": 1}; {"b": 2} words')
    ([{'a': 1}, {'b': 2}], 'words')
    """
    values = []
    rest = text.lstrip()
    while rest.startswith(("{", "[")):
        try:
            value, length = DECODER.raw_decode(rest)
        except (ValueError, RecursionError):
            break
        values.append(value)
        rest = rest[length:].lstrip("; ,\n")
    return values, rest


def read_tagged_values(pairs: Sequence[tuple[str, str]], properties: Mapping[str, Any]) -> str:
    """Return arguments that are written in tags as JSON text.

    A value is JSON, and a text if the schema of the tool says so or it is not JSON.

    >>> read_tagged_values([("n", "3"), ("code", "3")], {"code": {"type": "string"}})
    '{"n": 3, "code": "3"}'
    """
    values: dict[str, Any] = {}
    for name, text in pairs:
        values[name] = text
        if properties.get(name, {}).get("type") != "string":
            try:
                values[name] = json.loads(text)
            except (ValueError, RecursionError):
                continue
    return json.dumps(values, ensure_ascii=False)


def find_pairs(pattern: re.Pattern[str], text: str) -> tuple[list[tuple[str, str]], str]:
    """Find the names and values of tagged arguments. Returns them, and the text that is not part of any."""
    return [(match[1].strip(), match[2]) for match in pattern.finditer(text)], pattern.sub("", text).strip()
