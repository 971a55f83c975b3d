"""The lessons of a run as JSON Lines, for other trainers and for readers of data sets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from palaestra.core.records import Example, ImagePart, Message
from palaestra.runs.files import write_text
from palaestra.runs.run import Run

LESSONS = "lessons.jsonl"


def write_lessons(run: Run) -> Path:
    """Write every example that was taught to `lessons.jsonl` in the run folder, one object a line; returns its path.

    Each line has `messages` (roles and contents, the response as the last message of the assistant), `round`, `position`,
    `skill`, `subskill`, `reference`, and `metadata` as JSON text. All lines have the same fields with the same types, as
    column-based readers need them. Where one example has images, every content is a list of parts.
    """
    rows: list[tuple[int, int, Example]] = []
    for round_ in run.store.lesson_rounds():
        lesson = run.store.lesson(round_)
        rows += [(round_, position, example) for position, example in enumerate(lesson.examples if lesson else ())]
    every = [message for _, _, example in rows for message in example.messages]
    in_parts = any(not isinstance(message.content, str) for message in every)
    with_calls = any(message.tool_calls or message.tool_call_id for message in every)
    lines = [
        json.dumps(
            {
                "messages": [
                    _plain(message, in_parts, with_calls)
                    for message in (*example.messages, Message("assistant", example.response))
                ],
                "round": round_,
                "position": position,
                "skill": example.skill,
                "subskill": example.subskill,
                "reference": example.reference,
                "metadata": json.dumps(dict(example.metadata), ensure_ascii=False, default=str),
            },
            ensure_ascii=False,
        )
        for round_, position, example in rows
    ]
    path = run.folder / LESSONS
    write_text(path, "".join(f"{line}\n" for line in lines))
    return path


def _plain(message: Message, in_parts: bool, with_calls: bool) -> dict[str, Any]:
    content: Any = message.content
    if in_parts:
        parts = message.content if not isinstance(message.content, str) else ()
        content = [
            {"type": "image", "text": None, "url": part.url}
            if isinstance(part, ImagePart)
            else {"type": "text", "text": part.text, "url": None}
            for part in parts
        ] or [{"type": "text", "text": message.text, "url": None}]
    plain = {"role": message.role, "content": content}
    if with_calls:
        plain["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
        plain["tool_call_id"] = message.tool_call_id
    return plain
