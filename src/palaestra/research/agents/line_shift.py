"""Adapts the line numbers of a published trajectory to files that have changed since.

MLGym's starter files now begin with a copyright notice that they lacked when its trajectories were recorded. Edits use
line numbers, so each is shifted by the growth of its file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from palaestra.core.records import Message

_SHOWN = re.compile(r"\[[Ff]ile:? (\S+?)(?: \((\d+) lines total\)|, (\d+) lines)\]")
_BLOCK = re.compile(r"```[^\n]*\n(.*?)```", re.DOTALL)
_RANGE = re.compile(r"(?P<word>edit|insert|goto)(?P<space>\s+)(?P<first>\d+)(?::(?P<last>\d+))?(?=\s|\Z)")


def shift_lines(text: str, published: Sequence[str], conversation: Sequence[Message]) -> str:
    """Shift the line numbers of an edit, insert or goto in a message's last block.

    Arguments:
        text: the published message.
        published: the published answers to earlier messages.
        conversation: our messages so far.
    """
    shift = _find_shift(published, _read_answers(conversation))
    blocks = list(_BLOCK.finditer(text))
    if not shift or not blocks:
        return text
    command = _RANGE.match(text, blocks[-1].start(1))
    if command is None:
        return text
    numbers = [str(int(number) + shift) for number in (command["first"], command["last"]) if number is not None]
    return text[: command.start()] + command["word"] + command["space"] + ":".join(numbers) + text[command.end() :]


def _find_shift(published: Sequence[str], ours: Sequence[str]) -> int:
    """Return by how many lines the open file has grown, from the first time that both sides showed it."""
    shifts: dict[str, int] = {}
    file = ""
    for then, now in zip(published, ours, strict=False):
        before, after = _SHOWN.search(then), _SHOWN.search(now)
        if before is not None:
            file = before[1]
        if before is not None and after is not None and before[1] == after[1]:
            shifts.setdefault(before[1], int(after[2] or after[3]) - int(before[2] or before[3]))
    return shifts.get(file, 0)


def _read_answers(conversation: Sequence[Message]) -> list[str]:
    """Return the environment's answer to each of the agent's messages."""
    answers: list[str] = []
    for message in conversation:
        if message.role == "assistant":
            answers.append("")
        elif answers:
            answers[-1] += message.text
    return answers
