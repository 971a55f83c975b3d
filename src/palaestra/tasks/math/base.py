"""The parts of `math-skills`: drafts of problems, the extraction and comparison of answers, the data of a language model.

Every kind of answer has its own grammar. The answer follows the last "Answer:" (or "answer is"). Without one, the last
part of the response that matches the grammar is used. Answers are compared exactly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

import numpy as np
from pydantic import BaseModel, Field

from palaestra.tasks.base import UnusableError
from palaestra.tasks.procedural import format_response


@dataclass(frozen=True, slots=True)
class MathDraft:
    """A drawn problem.

    Arguments:
        question: the prompt.
        steps: the worked reasoning, one equation or remark per step.
        answer: the exact answer.
        key: identifies the problem under any wording. Its hash decides the split.
        like: the key of the problem that represents all problems of the skill with the same numbers, in any order, and
            the same answer; empty if it is this one.
    """

    question: str
    steps: tuple[str, ...]
    answer: str
    key: tuple[int | str, ...]
    like: tuple[int | str, ...] = ()

    @property
    def response(self) -> str:
        """The worked reasoning and the answer, as a student should write them."""
        return format_response(self.steps, self.answer)


Drawer = Callable[[np.random.Generator], MathDraft]


@dataclass(frozen=True, slots=True)
class MathSkill:
    """The subskills of a skill, each of which draws problems of one difficulty."""

    kind: AnswerKind
    subskills: Mapping[str, Drawer]


def sort_pair(a: int, b: int) -> tuple[int, int]:
    """The two operands of a commutative operation in their canonical order."""
    return (a, b) if a <= b else (b, a)


class AnswerKind(StrEnum):
    """The grammar of an answer."""

    NUMBER = "number"
    """A whole or decimal number or a fraction, compared by value."""
    CLOCK = "clock"
    """A time of day such as 4:05."""
    LIST = "list"
    """Numbers in order, separated by commas."""


def calculate(sign: str, a: int, b: int) -> int:
    """The result of one operation. Divisions are exact."""
    return {"+": a + b, "-": a - b, "*": a * b, "/": a // b}[sign]


_MAX_LENGTH = 400
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
    """The answer in `response`, or `None` if it has none.

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
    """Whether two answers of one kind are equal. An answer longer than `_MAX_LENGTH` is wrong.

    >>> equal("0.5", "1/2", AnswerKind.NUMBER), equal("04:05", "4:05", AnswerKind.CLOCK)
    (True, True)
    """
    return len(given) <= _MAX_LENGTH and _value(given, kind) == _value(expected, kind)


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


class MathDatum(BaseModel):
    """A problem with its solution."""

    question: str = Field(min_length=1, description="The problem, complete in itself; it has exactly one answer.")
    reasoning: str = Field(min_length=1, description="The working, step by step and short, without the final answer.")
    answer: str = Field(min_length=1, description="The final answer alone: a number or an expression, no sentence.")


def plain(answer: str) -> str:
    """An answer without a box and white space around it."""
    text = answer.strip().removeprefix("\\boxed{").removesuffix("}").strip() if "\\boxed" in answer else answer.strip()
    if "\n" in text:
        raise UnusableError("the answer has several lines; give the final answer alone")
    return text
