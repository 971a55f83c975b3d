"""Messages in channels: gpt-oss. Reasoning is in `analysis`, the answer in `final`; a call has a recipient."""

from __future__ import annotations

import re

from palaestra.core.records import ToolCall
from palaestra.engines.tool_formats.base import ParsedMessage, Schemas, ToolFormat

_PART = re.compile(r"(.*?)<\|message\|>(.*?)(?:<\|end\|>|<\|call\|>|<\|return\|>|(?=<\|start\|>)|$)", re.DOTALL)
_RECIPIENT = re.compile(r"to=(?:functions\.)?([^\s<]+)")


def parse_harmony(text: str, schemas: Schemas) -> ParsedMessage:
    """Parse a message. Its reasoning is written between `<think>` tags, as most models do.

    >>> parse_harmony('<|channel|>analysis<|message|>Two.<|end|><|start|>assistant<|channel|>final<|message|>2', {})
    ParsedMessage(text='<think>\\nTwo.\\n</think>\\n\\n2', calls=())
    >>> parse_harmony(' to=functions.add<|channel|>commentary json<|message|>{"a": 1}', {}).calls
    (ToolCall(name='add', arguments='{"a": 1}', id=''),)
    """
    reasoning: list[str] = []
    words: list[str] = []
    calls: list[ToolCall] = []
    parts = _PART.findall(text)
    for header, body in parts:
        if recipient := _RECIPIENT.search(header):
            calls.append(ToolCall(recipient[1], body.strip()))
        elif "<|channel|>analysis" in header:
            reasoning.append(body)
        else:
            words.append(body)
    if not parts:
        return ParsedMessage(text)
    thoughts = "<think>\n" + "\n".join(reasoning) + "\n</think>\n\n" if reasoning else ""
    return ParsedMessage(thoughts + "\n".join(words), tuple(calls))


FORMAT = ToolFormat("<|channel|>", parse_harmony, has_channels=True)
