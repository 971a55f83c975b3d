"""Calls between special tokens: DeepSeek V3, V3.1 and R1."""

from __future__ import annotations

import re

from palaestra.core.records import ToolCall
from palaestra.engines.tool_formats.base import ParsedMessage, Schemas, ToolFormat, cut_blocks, split_reasoning

_FENCE = re.compile(r"^```(?:json)?\s*|\s*```$")


def parse_deepseek(text: str, schemas: Schemas) -> ParsedMessage:
    """Parse a message. V3 writes `function`, the name and a fenced block, V3.1 the name and the arguments.

    >>> written = '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    >>> parse_deepseek(written, {}).calls
    (ToolCall(name='add', arguments='{"a": 1}', id=''),)
    """
    reasoning, rest = split_reasoning(text)
    outside, blocks = cut_blocks(rest, "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")
    if not blocks:
        return ParsedMessage(text)
    before = outside.partition("<｜tool▁calls▁begin｜>")[0]
    return ParsedMessage(reasoning + before.rstrip(), tuple(map(_read_block, blocks)))


def _read_block(block: str) -> ToolCall:
    name, separator, arguments = block.partition("<｜tool▁sep｜>")
    if name.strip() == "function":
        name, _, arguments = arguments.partition("\n")
    if not separator:
        return ToolCall("", block.strip())
    return ToolCall(name.strip(), _FENCE.sub("", arguments.strip()))


FORMAT = ToolFormat("<｜tool▁call▁begin｜>", parse_deepseek)
