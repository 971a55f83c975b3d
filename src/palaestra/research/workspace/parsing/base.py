"""The output parser interface and its helpers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from palaestra.core.records import Message, ToolCall
from palaestra.core.registry import Registry

PARSERS = Registry("output parser", "palaestra.output_parsers")

MOST_STARTS = 32
"""The maximum number of places where JSON is tried, so that the work stays linear."""
_DECODER = json.JSONDecoder(strict=False)


@dataclass(frozen=True, slots=True)
class Action:
    """What an assistant wants to do: a text for `Session.run`, or calls for `Session.call`; and its reasoning."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    thought: str = ""


@dataclass(frozen=True, slots=True)
class FormatError:
    """A message without a readable action. The text tells the model what is wrong and what to do."""

    message: str
    thought: str = ""


class Parser(Protocol):
    """Reads an assistant's messages; `instructions` describe the format for the prompt.

    A parser must not raise and must run in time linear in the length of the text.
    """

    instructions: str

    def __call__(self, message: Message) -> Action | FormatError: ...


def make_parser(name: str) -> Parser:
    """Make the output parser that is registered under `name`.

    Raises:
        UnknownNameError: there is none; suggests the nearest one.
    """
    parser: Parser = PARSERS.get(name)()
    return parser


def split_thinking(message: Message) -> tuple[str, str]:
    """Split a message into the reasoning before `</think>` and the answer. The opening tag may be part of the prompt."""
    text = message.text.replace("\r\n", "\n")
    thinking, closed, answer = text.partition("</think>")
    if thinking.lstrip().startswith("<think>"):
        return thinking.lstrip().removeprefix("<think>").strip(), answer
    if closed and "<think>" not in thinking:
        return thinking.strip(), answer
    return "", text


def join_parts(*parts: str) -> str:
    """Join the parts of a thought."""
    return "\n\n".join(part.strip() for part in parts if part.strip())


def objects(text: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects in a text, including those in lists. After an unreadable one the next brace is tried."""
    at = 0
    for _ in range(MOST_STARTS):
        at = text.find("{", at)
        if at < 0:
            return
        try:
            value, at = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            at += 1
            continue
        if isinstance(value, dict):
            yield value


def dump_json(value: Any) -> str:
    """Dump a parsed value as JSON; a value that is nested too deep becomes an empty object."""
    try:
        return json.dumps(value)
    except RecursionError:
        return "{}"


def call_in(value: dict[str, Any]) -> ToolCall | None:
    """Return the tool call in a JSON object, in any of the common formats."""
    inner = value.get("function", value)
    name = inner.get("name") if isinstance(inner, dict) else None
    if not isinstance(inner, dict) or not isinstance(name, str) or not name:
        return None
    arguments = inner.get("arguments", inner.get("parameters", {}))
    return ToolCall(name, arguments if isinstance(arguments, str) else dump_json(arguments))
