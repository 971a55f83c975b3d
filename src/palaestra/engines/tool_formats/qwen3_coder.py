"""`<function=NAME>` with a `<parameter=NAME>` for each argument: Qwen3-Coder, Qwen3.5, Nemotron 3."""

from __future__ import annotations

import re

from palaestra.core.records import ToolCall
from palaestra.engines.tool_formats.base import (
    ParsedMessage,
    Schemas,
    ToolFormat,
    cut_blocks,
    find_pairs,
    read_tagged_values,
    split_reasoning,
)

_PARAMETER = re.compile(r"<parameter=([^>]*)>\n?(.*?)\n?</parameter>", re.DOTALL)


def parse_qwen3_coder(text: str, schemas: Schemas) -> ParsedMessage:
    """Parse a message.

    >>> written = "<tool_call>\\n<function=add>\\n<parameter=a>\\n1\\n</parameter>\\n</function>\\n</tool_call>"
    >>> parse_qwen3_coder(written, {}).calls
    (ToolCall(name='add', arguments='{"a": 1}', id=''),)
    """
    reasoning, rest = split_reasoning(text)
    outside, blocks = cut_blocks(rest, "<function=", "</function>")
    outside, broken = cut_blocks(outside, "<tool_call>", "</tool_call>")
    calls = [_read_function(block, schemas) for block in blocks]
    calls += [ToolCall("", block.strip()) for block in broken if block.strip()]
    if not calls:
        return ParsedMessage(text)
    return ParsedMessage(reasoning + outside.rstrip(), tuple(calls))


def _read_function(block: str, schemas: Schemas) -> ToolCall:
    name, separator, body = block.partition(">")
    pairs, rest = find_pairs(_PARAMETER, body)
    if not separator or rest:
        return ToolCall(name.strip() if separator else "", f"<function={block}".strip())
    return ToolCall(name.strip(), read_tagged_values(pairs, schemas.get(name.strip(), {})))


FORMAT = ToolFormat("<function=", parse_qwen3_coder)
