"""Actions in fenced blocks: the last one, or exactly one."""

from __future__ import annotations

import re
from typing import NamedTuple

from palaestra.core.records import Message
from palaestra.research.workspace.parsing.base import Action, FormatError, join_parts, split_thinking

_HEREDOC = re.compile(r"<<-?[ \t]*+(?:'([^'\n]+)'|\"([^\"\n]+)\"|\\?([A-Za-z_][A-Za-z0-9_]*+))")
_ENDS = {"edit": "end_of_edit", "insert": "end_of_insert", "create": "end_of_file"}


class LastBlock:
    """The last fenced block is the action; the text around it is thought."""

    instructions = (
        "Think first, then give one command in a fenced block at the end of your message:\n```\nls -la\n```\n"
        "Of several blocks only the last one is run."
    )

    def __call__(self, message: Message) -> Action | FormatError:
        thinking, text = split_thinking(message)
        fenced, opened = blocks(text)
        return _action(text, thinking, fenced[-1:], opened)


class OneBlock:
    """The only fenced block is the action."""

    instructions = (
        "Think first, then give one command in a fenced block:\n```\nls -la\n```\n"
        "Your message must hold exactly one such block."
    )

    def __call__(self, message: Message) -> Action | FormatError:
        thinking, text = split_thinking(message)
        fenced, opened = blocks(text)
        if len(fenced) > 1 and not opened:
            return FormatError(
                f"Exactly one fenced block is expected, and your message has {len(fenced)}. Nothing was run. Send it again with the one "
                "command that you want to be run now in a block, and nothing else in one.",
                thinking,
            )
        return _action(text, thinking, fenced, opened)


class Block(NamedTuple):
    """A fenced block: its text, and where its fences begin and end in the message."""

    text: str
    start: int
    end: int


class Fence(NamedTuple):
    """A line that opens or closes a block."""

    sign: str
    length: int
    indent: int
    language: str


def blocks(text: str) -> tuple[list[Block], bool]:
    """Return the outermost fenced blocks of a text, and whether the last one is unclosed.

    A fence within a here-document or the text of an edit is text. Otherwise a fence with a language opens a nested
    block, which the next bare fence closes.
    """
    lines = text.split("\n")
    places, at = [], 0
    for line in lines:
        places.append(at)
        at += len(line) + 1
    last_of = {line.strip(): number for number, line in enumerate(lines)}
    fenced: list[Block] = []
    number = 0
    while number < len(lines):
        fence = _fence(lines[number])
        if fence is None:
            number += 1
            continue
        closing = _closing(lines, last_of, number, fence)
        if closing is None:
            return fenced, True
        inner = "\n".join(lines[number + 1 : closing])
        fenced.append(Block(inner, places[number], places[closing] + len(lines[closing])))
        number = closing + 1
    return fenced, False


def _fence(line: str) -> Fence | None:
    bare = line.strip()
    sign = bare[:1]
    if sign not in ("`", "~") or bare[:3] != sign * 3:
        return None
    language = bare.lstrip(sign)
    if "`" in language:
        return None
    return Fence(sign, len(bare) - len(language), len(line) - len(line.lstrip()), language.strip())


def _closing(lines: list[str], last_of: dict[str, int], opening: int, fence: Fence) -> int | None:
    """Return the number of the line that closes the block."""
    level, until = 1, ""
    for number in range(opening + 1, len(lines)):
        line = lines[number]
        if until:
            until = "" if line.strip() == until else until
            continue
        here = _fence(line)
        if here is None or here.sign != fence.sign or here.length < fence.length or here.indent > fence.indent + 3:
            until = _text_until(line, last_of, number, first=number == opening + 1)
        elif not here.language:
            level -= 1
            if level == 0:
                return number
        else:
            level += 1
    return None


def _text_until(line: str, last_of: dict[str, int], number: int, first: bool) -> str:
    """Return the line that ends a here-document or edit that begins here, if it exists further down."""
    words = line.split(None, 1)
    end = _ENDS.get(words[0], "") if first and words else ""
    if not end and "<<" in line and (heredoc := _HEREDOC.search(line)):
        end = (heredoc[1] or heredoc[2] or heredoc[3]).strip()
    return end if end and last_of.get(end, -1) > number else ""


def _action(text: str, thinking: str, fenced: list[Block], opened: bool) -> Action | FormatError:
    if opened:
        return FormatError(
            "The last fenced block is not closed, so nothing was run. Send the whole command again, with ``` on a line of its own "
            "behind it; shorter, if your message was cut off.",
            thinking,
        )
    if not fenced:
        return FormatError(
            "A command in a fenced block is expected, and your message has none. Nothing was run. For example:\n```\nls -la\n```",
            thinking,
        )
    block = fenced[0]
    if not block.text.strip():
        return FormatError("The fenced block is empty. Put the command that is to be run in it.", thinking)
    return Action(block.text, thought=join_parts(thinking, text[: block.start], text[block.end :]))
