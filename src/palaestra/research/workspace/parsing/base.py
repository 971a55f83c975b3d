"""What an output parser is, and what it gives."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from palaestra.core.records import Message, ToolCall
from palaestra.core.registry import Registry

PARSERS = Registry("output parser", "palaestra.output_parsers")

MOST_STARTS = 32
"""Places in a text at which JSON is tried, so that the work stays linear in its length."""
_DECODER = json.JSONDecoder(strict=False)


@dataclass(frozen=True, slots=True)
class Action:
    """What an assistant wants to be done: a text for `Session.run`, or calls for `Session.call`; and why."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    thought: str = ""


@dataclass(frozen=True, slots=True)
class FormatError:
    """A message without an action that can be read. The text is for the model: what was wrong, and what to do."""

    message: str
    thought: str = ""


class Parser(Protocol):
    """Reads an assistant's messages; `instructions` tell the model how to write them, for the prompt.

    It does not raise, whatever comes, and takes a time that is linear in the length of the text.
    """

    instructions: str

    def __call__(self, message: Message) -> Action | FormatError: ...


def make_parser(name: str) -> Parser:
    """The output parser that is registered under `name`.

    Raises:
        UnknownNameError: there is none; names the nearest one.
    """
    parser: Parser = PARSERS.get(name)()
    return parser


def split_thinking(message: Message) -> tuple[str, str]:
    """What a reasoning model thought before it spoke, and what it said. The tag that opens may stand in the prompt."""
    text = message.text.replace("\r\n", "\n")
    thinking, closed, said = text.partition("</think>")
    if thinking.lstrip().startswith("<think>"):
        return thinking.lstrip().removeprefix("<think>").strip(), said
    if closed and "<think>" not in thinking:
        return thinking.strip(), said
    return "", text


def join_parts(*parts: str) -> str:
    """The parts of a thought as one."""
    return "\n\n".join(part.strip() for part in parts if part.strip())


def objects(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects in a text, those in lists among them. Where one cannot be read, the next brace is tried."""
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
    """JSON text of what was read from some; what is nested too deep for that becomes an empty object."""
    try:
        return json.dumps(value)
    except RecursionError:
        return "{}"


def call_in(value: dict[str, Any]) -> ToolCall | None:
    """The call that a JSON object is, in any of the forms that makers of models have given it."""
    inner = value.get("function", value)
    name = inner.get("name") if isinstance(inner, dict) else None
    if not isinstance(inner, dict) or not isinstance(name, str) or not name:
        return None
    arguments = inner.get("arguments", inner.get("parameters", {}))
    return ToolCall(name, arguments if isinstance(arguments, str) else dump_json(arguments))
