"""A message that is JSON with a name and parameters: Llama 3.1 and later, and xLAM, which writes a list."""

from __future__ import annotations

import re

from palaestra.core.records import ToolCall
from palaestra.engines.tool_formats.base import ParsedMessage, Schemas, ToolFormat, decode_objects, to_call

_TAG = "<|python_tag|>"
_START = re.compile(r"\[?\s*\{\s*\"(name|type|function)\"")


def parse_llama3(text: str, schemas: Schemas) -> ParsedMessage:
    """Parse a message. JSON that does not begin like a call is an answer.

    >>> parse_llama3('{"name": "add", "parameters": {"a": 1}}', {}).calls
    (ToolCall(name='add', arguments='{"a": 1}', id=''),)
    """
    before, tag, body = text.partition(_TAG)
    if not tag:
        before, body = "", text
        if not _START.match(text.lstrip()):
            return ParsedMessage(text)
    values, rest = decode_objects(body)
    calls = [to_call(item) for value in values for item in (value if isinstance(value, list) else [value])]
    if not calls or None in calls:
        return ParsedMessage(before.rstrip(), (ToolCall("", body.strip()),))
    return ParsedMessage((before + rest).rstrip(), tuple(call for call in calls if call))


FORMAT = ToolFormat(_TAG, parse_llama3)
