"""The problems of `math-skills` and the drills of its corpus, from `recipes.yaml`."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from palaestra.tasks.math.base import AnswerKind, MathDraft, MathSkill, calculate, sort_pair
from palaestra.tasks.procedural import between
from palaestra.tasks.recipes import RecipeBook


def add_up(numbers: Sequence[int]) -> tuple[str, ...]:
    """The steps of a sum, one number at a time.

    >>> add_up([3, 4, 5])
    ('3+4=7', '7+5=12')
    """
    totals = itertools.accumulate(numbers)
    return tuple(f"{total}+{number}={total + number}" for total, number in zip(totals, numbers[1:], strict=False))


def _draw_distinct(rng: np.random.Generator, low: int, high: int, count: int) -> list[int]:
    return [int(number) for number in rng.choice(np.arange(low, high + 1), count, replace=False)]


def _draw_with_mean(rng: np.random.Generator, mean: int, count: int) -> list[int]:
    while True:
        numbers = [between(rng, 2, 2 * mean - 2) for _ in range(count - 1)]
        last = mean * count - sum(numbers)
        if 1 <= last <= 99:
            return [*numbers, last]


def _multiply_long(a: int, b: int) -> tuple[str, ...]:
    """The steps of a multiplication by a number of two digits."""
    tens, ones = b - b % 10, b % 10
    first = f"{a}*{tens}={a * tens}"
    return (first, f"{a}*{ones}={a * ones}", f"{a * tens}+{a * ones}={a * b}") if ones else (first,)


def _divide_in_turn(a: int, b: int) -> tuple[tuple[str, ...], int]:
    """The steps of Euclid's algorithm, and the greatest common divisor."""
    steps, x, y = [], max(a, b), min(a, b)
    while y:
        steps.append(f"{x}={x // y}*{y}+{x % y}")
        x, y = y, x % y
    return tuple(steps), x


def make_operation_draft(sign: str, a: int, b: int, question: str) -> MathDraft:
    """A draft that asks for `a sign b`. The order of the operands of a sum or product does not matter."""
    answer = calculate(sign, a, b)
    key = sort_pair(a, b) if sign in "+*" else (a, b)
    return MathDraft(question, (f"{a}{sign}{b}={answer}",), str(answer), key)


_BOOK = RecipeBook(__file__, MathDraft, globals(), {"steps": "()", "key": "()", "like": "()"})
SKILLS: Mapping[str, MathSkill] = {
    skill: MathSkill(AnswerKind(_BOOK.table["kinds"].get(skill, "number")), subskills)
    for skill, subskills in _BOOK.read("skills").items()
}
DRILLS = list(_BOOK.read("drills")["notion"].values())
"""Small concepts that word problems need: parts, lists, hours, money."""
