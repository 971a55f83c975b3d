"""Texts of models and programs as they are shown: cut, without control characters, with marked words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from markupsafe import Markup, escape

from palaestra.chat.tool_formats import split_reasoning
from palaestra.core.records import Message
from palaestra.report.parts import read_message

_SHORT, LONG = 300, 50_000
"""Characters of a text in a list, and on a page of its own."""
_FENCE = "```"
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}[@-~]|\][^\x07\x1b]{0,2000}(?:\x07|\x1b\\)|[@-Z\\^_])")
"""Terminal sequences: colors and movements (CSI), titles and links (OSC), and those of one letter."""
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Other control characters, and those that change the direction of the text."""


def make_visible(text: str) -> str:
    """Remove terminal sequences and show other control characters as signs.

    >>> make_visible("\\x1b[31mred\\x1b[0m \\x07 \\u202e")
    'red \\u2407 [U+202E]'
    """
    return _CONTROL.sub(_show_control, _ESCAPE.sub("", text))


def _show_control(match: re.Match[str]) -> str:
    code = ord(match[0])
    return chr(0x2400 + code) if code < 0x20 else "\u2421" if code == 0x7F else f"[U+{code:04X}]"


def mark_words(text: str, wanted: str = "") -> Markup:
    """Escape a text and mark what was searched for.

    >>> mark_words("a <b> A", "a")
    Markup('<mark>a</mark> &lt;b&gt; <mark>A</mark>')
    """
    text = make_visible(text)
    if not wanted:
        return escape(text)
    pieces = re.split(f"({re.escape(wanted)})", text, flags=re.IGNORECASE)
    marked = (
        Markup("<mark>{}</mark>").format(piece) if place % 2 else escape(piece) for place, piece in enumerate(pieces)
    )
    return Markup("").join(marked)


@dataclass(frozen=True, slots=True)
class ShownText:
    """A text, or its beginning.

    Arguments:
        missing: number of characters that are not shown.
        link: the address of the whole text.
    """

    text: str
    missing: int = 0
    link: str = ""


def cut_text(text: str, most: int, link: str = "") -> ShownText:
    """Keep at most `most` characters.

    >>> cut_text("abcdef", 4, "/all.txt")
    ShownText(text='abcd', missing=2, link='/all.txt')
    """
    return ShownText(text[:most], max(0, len(text) - most), link)


class MessagePart(NamedTuple):
    """A part of a model's message: its reasoning, prose or code."""

    kind: Literal["reasoning", "prose", "code"]
    text: str


def split_message(text: str) -> Iterator[MessagePart]:
    """Split a message of a model into reasoning, prose and fenced code.

    >>> [(part.kind, part.text) for part in split_message("<think>hm</think>Look:\\n```bash\\nls\\n```")]
    [('reasoning', 'hm'), ('prose', 'Look:'), ('code', 'ls')]
    """
    reasoning, answer = split_reasoning(text)
    if not reasoning and text.lstrip().startswith("<think>"):
        reasoning, answer = text, ""  # It was cut, or has not ended.
    reasoning = reasoning.strip().removeprefix("<think>").removesuffix("</think>").strip()
    if reasoning:
        yield MessagePart("reasoning", reasoning)
    lines: list[str] = []
    is_code = False
    for line in answer.split("\n"):
        if line.lstrip().startswith(_FENCE):
            yield from _make_part(is_code, lines)
            lines, is_code = [], not is_code
        else:
            lines.append(line)
    yield from _make_part(is_code, lines)


def _make_part(is_code: bool, lines: list[str]) -> Iterator[MessagePart]:
    text = "\n".join(lines) if is_code else "\n".join(lines).strip()
    if text.strip():
        yield MessagePart("code" if is_code else "prose", text)


DiffSign = Literal["+", "-", "@", " "]


def split_diff(diff: str) -> Iterator[tuple[DiffSign, str]]:
    """Yield the lines of a unified diff with their kind: added, removed, place or unchanged."""
    for line in diff.split("\n"):
        sign: DiffSign = (
            "+" if line.startswith("+") else "-" if line.startswith("-") else "@" if line.startswith("@@") else " "
        )
        yield sign, line


def join_messages(messages: tuple[Message, ...]) -> str:
    """The texts of a conversation; with roles if there are several messages."""
    if len(messages) == 1:
        return read_message(messages[0])
    return "\n\n".join(f"{message.role}: {read_message(message)}" for message in messages)


def excerpt(text: str, wanted: str = "", most: int = _SHORT, at_end: bool = False) -> str:
    """Show a part of a text in a list: the place of what was searched for, or the beginning or the end.

    >>> excerpt("0123456789", "56", 4), excerpt("0123456789", "", 4), excerpt("0123456789", "", 4, at_end=True)
    ('… 4567 …', '0123 …', '… 6789')
    """
    if len(text) <= most:
        return text
    place = text.lower().find(wanted.lower()) if wanted else -1
    start = max(0, place + len(wanted) // 2 - most // 2) if place >= 0 else len(text) - most if at_end else 0
    start = min(start, len(text) - most)
    end = start + most
    return f"{'… ' if start else ''}{text[start:end]}{' …' if end < len(text) else ''}"
