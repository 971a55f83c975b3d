"""Calls after `[TOOL_CALLS]`: a JSON list, or in later versions a name, `[ARGS]` and a JSON object."""

from __future__ import annotations

from palaestra.core.records import ToolCall
from palaestra.engines.tool_formats.base import ParsedMessage, Schemas, ToolFormat, decode_objects, to_call

_MARK = "[TOOL_CALLS]"


def parse_mistral(text: str, schemas: Schemas) -> ParsedMessage:
    """Parse a message.

    >>> parse_mistral('[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}]', {}).calls
    (ToolCall(name='add', arguments='{"a": 1}', id=''),)
    >>> parse_mistral('[TOOL_CALLS]add[ARGS]{"a": 1}', {}).calls
    (ToolCall(name='add', arguments='{"a": 1}', id=''),)
    """
    before, *parts = text.split(_MARK)
    calls = [call for part in parts for call in _read_part(part)]
    return ParsedMessage(before.rstrip(), tuple(calls)) if calls else ParsedMessage(text)


def _read_part(part: str) -> list[ToolCall]:
    name, arguments_mark, arguments = part.partition("[ARGS]")
    if arguments_mark:
        return [ToolCall(name.partition("[CALL_ID]")[0].strip(), _cut_object(arguments))]
    values, _ = decode_objects(part)
    items = [item for value in values for item in (value if isinstance(value, list) else [value])]
    calls = [to_call(item) or ToolCall("", str(item)) for item in items]
    return calls or [ToolCall("", part.strip())]


def _cut_object(text: str) -> str:
    """Cut off the text after a JSON object."""
    values, rest = decode_objects(text)
    return text.strip().removesuffix(rest).strip() if values else text.strip()


FORMAT = ToolFormat(_MARK, parse_mistral)
