"""JSON objects between `<tool_call>` tags: Hermes, Qwen2.5, Qwen3, and models whose template does not support tools."""

from __future__ import annotations

from palaestra.engines.tool_formats.base import (
    ParsedMessage,
    Schemas,
    ToolFormat,
    cut_blocks,
    read_json_call,
    split_reasoning,
)


def parse_hermes(text: str, schemas: Schemas) -> ParsedMessage:
    """Parse a message.

    >>> parse_hermes('Look.<tool_call>{"name": "ls", "arguments": {"all": true}}</tool_call>', {})
    ParsedMessage(text='Look.', calls=(ToolCall(name='ls', arguments='{"all": true}', id=''),))
    """
    reasoning, rest = split_reasoning(text)
    outside, blocks = cut_blocks(rest, "<tool_call>", "</tool_call>")
    if not blocks:
        return ParsedMessage(text)
    return ParsedMessage(reasoning + outside.rstrip(), tuple(map(read_json_call, blocks)))


FORMAT = ToolFormat("<tool_call>", parse_hermes)
