"""Conversations as rows of a table: plain values with the same fields and types in every row, as column-based readers require."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from palaestra.core.records import ImagePart, Message


def to_chat_rows(conversations: Sequence[Sequence[Message]]) -> list[list[dict[str, Any]]]:
    """Convert conversations to lists of messages with `role` and `content`.

    If any message has images, every content is a list of parts. If any has tool calls, every message has `tool_calls` and
    `tool_call_id`.

    >>> to_chat_rows([[Message("user", "1 + 1?")]])
    [[{'role': 'user', 'content': '1 + 1?'}]]
    """
    messages = [message for conversation in conversations for message in conversation]
    in_parts = any(not isinstance(message.content, str) for message in messages)
    with_calls = any(message.tool_calls or message.tool_call_id for message in messages)
    return [[_to_row(message, in_parts, with_calls) for message in conversation] for conversation in conversations]


def _to_row(message: Message, in_parts: bool, with_calls: bool) -> dict[str, Any]:
    content: Any = message.content
    if in_parts:
        parts = message.content if not isinstance(message.content, str) else ()
        content = [
            {"type": "image", "text": None, "url": part.url}
            if isinstance(part, ImagePart)
            else {"type": "text", "text": part.text, "url": None}
            for part in parts
        ] or [{"type": "text", "text": message.text, "url": None}]
    row = {"role": message.role, "content": content}
    if with_calls:
        row["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
        row["tool_call_id"] = message.tool_call_id
    return row
