"""Drafts of procedural problems, and the skills that draw them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from palaestra.tasks.math.answers import AnswerKind
from palaestra.tasks.sampling import format_response


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
    """A skill and its subskills, each of which draws problems of one difficulty."""

    name: str
    description: str
    kind: AnswerKind
    subskills: Mapping[str, Drawer]


def sort_pair(a: int, b: int) -> tuple[int, int]:
    """The two operands of a commutative operation in their canonical order."""
    return (a, b) if a <= b else (b, a)
