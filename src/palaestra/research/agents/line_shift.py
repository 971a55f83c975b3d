"""Line numbers of a published trajectory, fitted to files that have changed since.

MLGym's checkout has a copyright notice at the head of its starter files that they did not have when its trajectories were
recorded. An edit goes by line numbers, so each is moved by as many lines as the file has more than it had then.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from palaestra.core.records import Message

_SHOWN = re.compile(r"\[[Ff]ile:? (\S+?)(?: \((\d+) lines total\)|, (\d+) lines)\]")
_BLOCK = re.compile(r"```[^\n]*\n(.*?)```", re.DOTALL)
_RANGE = re.compile(r"(?P<word>edit|insert|goto)(?P<space>\s+)(?P<first>\d+)(?::(?P<last>\d+))?(?=\s|\Z)")


def shift_lines(text: str, published: Sequence[str], conversation: Sequence[Message]) -> str:
    """Move the line numbers of an edit, insertion or jump in a message's last block.

    Arguments:
        text: the message, as it was published.
        published: what its environment answered to each message before it.
        conversation: the messages so far, here.
    """
    shift = _find_shift(published, _read_answers(conversation))
    blocks = list(_BLOCK.finditer(text))
    if not shift or not blocks:
        return text
    found = _RANGE.match(text, blocks[-1].start(1))
    if found is None:
        return text
    numbers = [str(int(number) + shift) for number in (found["first"], found["last"]) if number is not None]
    return text[: found.start()] + found["word"] + found["space"] + ":".join(numbers) + text[found.end() :]


def _find_shift(published: Sequence[str], ours: Sequence[str]) -> int:
    """How many lines the open file has more than it had: as it was when both showed it for the first time."""
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
    """What the environment answered to each of the agent's messages."""
    answers: list[str] = []
    for message in conversation:
        if message.role == "assistant":
            answers.append("")
        elif answers:
            answers[-1] += message.text
    return answers
