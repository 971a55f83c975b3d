"""Extract the answers of `math-skills` from responses, and compare them exactly.

Every kind of answer has its own grammar. The answer follows the last "Answer:" (or "answer is"). Without one, the last
part of the response that matches the grammar is taken.
"""

from __future__ import annotations

import re
from enum import StrEnum
from fractions import Fraction


class AnswerKind(StrEnum):
    """The grammar of an answer."""

    NUMBER = "number"
    """A whole or decimal number or a fraction, compared by value."""
    CLOCK = "clock"
    """A time of day such as 4:05."""
    LIST = "list"
    """Numbers in order, separated by commas."""


MAX_LENGTH = 400
"""Longer answers are wrong. Correct answers are much shorter."""
_TAIL = 4000
"""Number of characters that are searched, after the mark or at the end of the response."""
_NUMBER = r"-?\d{1,3}(?:,\d{3})+(?![\d,])(?:\.\d+)?|-?\d+(?:\.\d+)?"
_PATTERNS = {
    AnswerKind.NUMBER: re.compile(rf"(?:{_NUMBER})(?:\s?/\s?\d+)?"),
    AnswerKind.CLOCK: re.compile(r"\d{1,2}:\d{2}(?!\d)"),
    AnswerKind.LIST: re.compile(r"(?:-|(?<!\d))\d+(?:\s?,\s?-?\d+)+"),
}
_MARK = re.compile(r"answer\s{0,9}(?:is|:|=)", re.IGNORECASE)


def extract(response: str, kind: AnswerKind) -> str | None:
    """The answer of `response`, or `None` if it has none.

    >>> extract("3*4=12. 12+5=17. Answer: 17 nuts", AnswerKind.NUMBER)
    '17'
    >>> extract("It is 4:05, I think.", AnswerKind.CLOCK)
    '4:05'
    """
    marks = list(_MARK.finditer(response))
    if marks:
        match = _PATTERNS[kind].search(response, marks[-1].end(), marks[-1].end() + _TAIL)
        return match.group() if match else None
    every = _PATTERNS[kind].findall(response[-_TAIL:])
    return every[-1] if every else None


def equal(given: str, expected: str, kind: AnswerKind) -> bool:
    """Whether two answers of one kind are equal. An answer longer than `MAX_LENGTH` is wrong.

    >>> equal("0.5", "1/2", AnswerKind.NUMBER), equal("04:05", "4:05", AnswerKind.CLOCK)
    (True, True)
    """
    return len(given) <= MAX_LENGTH and _value(given, kind) == _value(expected, kind)


def _value(text: str, kind: AnswerKind) -> object:
    if kind is AnswerKind.NUMBER:
        top, _, bottom = text.replace(",", "").replace(" ", "").partition("/")
        if bottom and int(bottom) == 0:
            return None if top == "" else ("undefined", top)
        return Fraction(top) / int(bottom or 1)
    if kind is AnswerKind.CLOCK:
        hours, _, minutes = text.partition(":")
        return int(hours), int(minutes)
    return tuple(int(part) for part in text.split(","))
