"""A name with `<arg_key>` and `<arg_value>` pairs between `<tool_call>` tags: GLM-4.5 and later."""

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

_ARGUMENT = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)


def parse_glm(text: str, schemas: Schemas) -> ParsedMessage:
    """Parse a message.

    >>> parse_glm("<tool_call>add\\n<arg_key>a</arg_key>\\n<arg_value>1</arg_value>\\n</tool_call>", {}).calls
    (ToolCall(name='add', arguments='{"a": 1}', id=''),)
    """
    reasoning, rest = split_reasoning(text)
    outside, blocks = cut_blocks(rest, "<tool_call>", "</tool_call>")
    if not blocks:
        return ParsedMessage(text)
    return ParsedMessage(reasoning + outside.rstrip(), tuple(_read_block(block, schemas) for block in blocks))


def _read_block(block: str, schemas: Schemas) -> ToolCall:
    pairs, name = find_pairs(_ARGUMENT, block)
    if not re.fullmatch(r"[\w.-]+", name):  # Anything else besides the name is a broken argument.
        return ToolCall("", block.strip())
    return ToolCall(name, read_tagged_values(pairs, schemas.get(name, {})))


FORMAT = ToolFormat("<arg_key>", parse_glm)
