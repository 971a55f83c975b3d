"""The skills of arithmetic.

`ARITHMETIC` has the basic operations, which the embedded student knows already. `ADVANCED` has operations that a nano-sized
student cannot learn from a few hundred examples. They make the choices of a teacher matter: a good teacher spends its data
on other skills.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from palaestra.tasks.math.base import AnswerKind, Drawer, MathDraft, MathSkill, sort_pair
from palaestra.tasks.sampling import between, pick

Pair = Callable[[np.random.Generator], tuple[int, int]]

SUM = (
    "What is {a} + {b}?",
    "Compute {a}+{b}.",
    "What is {a} plus {b}?",
    "Add {a} and {b}.",
    "What is the sum of {a} and {b}?",
)
DIFFERENCE = (
    "What is {a} - {b}?",
    "Compute {a}-{b}.",
    "What is {a} minus {b}?",
    "Subtract {b} from {a}.",
    "Take {b} away from {a}.",
)
PRODUCT = (
    "What is {a} * {b}?",
    "Compute {a}*{b}.",
    "What is {a} times {b}?",
    "Multiply {a} by {b}.",
    "What is the product of {a} and {b}?",
)
QUOTIENT = (
    "What is {a} / {b}?",
    "Compute {a}/{b}.",
    "What is {a} divided by {b}?",
    "Divide {a} by {b}.",
    "How often does {b} fit into {a}?",
)


def add_draft(a: int, b: int, question: str) -> MathDraft:
    return MathDraft(question, (f"{a}+{b}={a + b}",), str(a + b), sort_pair(a, b))


def subtract_draft(a: int, b: int, question: str) -> MathDraft:
    return MathDraft(question, (f"{a}-{b}={a - b}",), str(a - b), (a, b))


def multiply_draft(a: int, b: int, question: str) -> MathDraft:
    return MathDraft(question, (f"{a}*{b}={a * b}",), str(a * b), sort_pair(a, b))


def divide_draft(a: int, b: int, question: str) -> MathDraft:
    return MathDraft(question, (f"{a}/{b}={a // b}",), str(a // b), (a, b))


def _operation(make: Callable[[int, int, str], MathDraft], wordings: tuple[str, ...], pair: Pair) -> Drawer:
    def draw(rng: np.random.Generator) -> MathDraft:
        a, b = pair(rng)
        return make(a, b, pick(rng, wordings).format(a=a, b=b))

    return draw


def _two_digits(rng: np.random.Generator, *, carry: bool) -> tuple[int, int]:
    while True:
        a, b = between(rng, 11, 89), between(rng, 11, 89)
        if (a % 10 + b % 10 >= 10) == carry:
            return a, b


def _borrowing(rng: np.random.Generator, *, borrow: bool) -> tuple[int, int]:
    while True:
        b, a = sorted((between(rng, 11, 99), between(rng, 11, 99)))
        if a > b and (a % 10 < b % 10) == borrow:
            return a, b


def _exact(rng: np.random.Generator, low: int, high: int) -> tuple[int, int]:
    b = between(rng, 2, 9)
    return b * between(rng, low, high), b


ADDITION = MathSkill(
    "addition", "sums of two numbers", AnswerKind.NUMBER,
    {
        "one_digit": _operation(add_draft, SUM, lambda rng: (between(rng, 1, 9), between(rng, 1, 19))),
        "two_digit": _operation(add_draft, SUM, lambda rng: _two_digits(rng, carry=False)),
        "carry": _operation(add_draft, SUM, lambda rng: _two_digits(rng, carry=True)),
    },
)  # fmt: skip

SUBTRACTION = MathSkill(
    "subtraction", "differences of two numbers", AnswerKind.NUMBER,
    {
        "one_digit": _operation(subtract_draft, DIFFERENCE, lambda rng: (between(rng, 9, 19), between(rng, 1, 9))),
        "two_digit": _operation(subtract_draft, DIFFERENCE, lambda rng: _borrowing(rng, borrow=False)),
        "borrow": _operation(subtract_draft, DIFFERENCE, lambda rng: _borrowing(rng, borrow=True)),
    },
)  # fmt: skip

MULTIPLICATION = MathSkill(
    "multiplication", "products of two numbers, one of them of one digit", AnswerKind.NUMBER,
    {
        "tables": _operation(multiply_draft, PRODUCT, lambda rng: (between(rng, 2, 9), between(rng, 2, 12))),
        "tens": _operation(multiply_draft, PRODUCT, lambda rng: (between(rng, 2, 9), 10 * between(rng, 1, 12))),
        "two_digit": _operation(multiply_draft, PRODUCT, lambda rng: (between(rng, 2, 9), between(rng, 13, 40))),
    },
)  # fmt: skip

DIVISION = MathSkill(
    "division", "quotients without a remainder", AnswerKind.NUMBER,
    {
        "tables": _operation(divide_draft, QUOTIENT, lambda rng: _exact(rng, 2, 12)),
        "two_digit": _operation(divide_draft, QUOTIENT, lambda rng: _exact(rng, 13, 40)),
    },
)  # fmt: skip


def _one_of_two(rng: np.random.Generator, wordings: tuple[str, ...], *, larger: bool) -> MathDraft:
    a, b = (int(n) for n in rng.choice(np.arange(10, 1000), 2, replace=False))
    high, low = max(a, b), min(a, b)
    step, answer = (f"{high}>{low}", high) if larger else (f"{low}<{high}", low)
    return MathDraft(pick(rng, wordings).format(a=a, b=b), (step,), str(answer), (low, high))


LARGER = ("Which is larger, {a} or {b}?", "Which number is greater: {a} or {b}?")
SMALLER = ("Which is smaller, {a} or {b}?", "Which number is less: {a} or {b}?")


def _largest(rng: np.random.Generator) -> MathDraft:
    numbers = [int(n) for n in rng.choice(np.arange(10, 100), 3, replace=False)]
    wording = pick(rng, ("What is the largest of {n}?", "Find the maximum of {n}."))
    text = ", ".join(map(str, numbers))
    return MathDraft(wording.format(n=text), (), str(max(numbers)), tuple(sorted(numbers)))


COMPARISON = MathSkill(
    "comparison", "the larger or smaller of two or three numbers", AnswerKind.NUMBER,
    {
        "larger": lambda rng: _one_of_two(rng, LARGER, larger=True),
        "smaller": lambda rng: _one_of_two(rng, SMALLER, larger=False),
        "largest_of_three": _largest,
    },
)  # fmt: skip


def _make_sorting(rng: np.random.Generator, wordings: tuple[str, ...], *, descending: bool) -> MathDraft:
    numbers = [int(n) for n in rng.choice(np.arange(10, 100), 3, replace=False)]
    text = ", ".join(map(str, numbers))
    answer = ", ".join(map(str, sorted(numbers, reverse=descending)))
    return MathDraft(pick(rng, wordings).format(n=text), (), answer, tuple(sorted(numbers)))


ORDERING = MathSkill(
    "ordering", "three numbers put in order", AnswerKind.LIST,
    {
        "ascending": lambda rng: _make_sorting(rng, ("Sort in ascending order: {n}.", "Sort from smallest to largest: {n}."), descending=False),
        "descending": lambda rng: _make_sorting(rng, ("Sort in descending order: {n}.", "Sort from largest to smallest: {n}."), descending=True),
    },
)  # fmt: skip


_SAME_FACTOR = {
    10: (("centimetres", "millimetres"),),
    60: (("hours", "minutes"), ("minutes", "seconds")),
    100: (("metres", "centimetres"),),
    1000: (("kilometres", "metres"), ("kilograms", "grams"), ("tonnes", "kilograms")),
}
"""Conversions with the same factor: 3 km in m and 3 kg in g have the same numbers. Each represents the others in turn."""


def _convert(rng: np.random.Generator, table: tuple[tuple[str, str, int], ...]) -> MathDraft:
    large, small, factor = table[int(rng.integers(len(table)))]
    count = between(rng, 2, 60)
    wording = pick(
        rng, ("How many {small} are {n} {large}?", "Convert {n} {large} to {small}.", "Write {n} {large} in {small}.")
    )
    question = wording.format(n=count, large=large, small=small)
    steps, answer = (f"{count}*{factor}={count * factor}",), str(count * factor)
    like = _SAME_FACTOR[factor][count % len(_SAME_FACTOR[factor])]
    return MathDraft(question, steps, answer, (large, small, count), (*like, count))


UNITS = MathSkill(
    "units", "a quantity in a smaller unit", AnswerKind.NUMBER,
    {
        "length": lambda rng: _convert(rng, (("metres", "centimetres", 100), ("kilometres", "metres", 1000), ("centimetres", "millimetres", 10))),
        "mass": lambda rng: _convert(rng, (("kilograms", "grams", 1000), ("tonnes", "kilograms", 1000))),
        "time": lambda rng: _convert(rng, (("hours", "minutes", 60), ("minutes", "seconds", 60))),
    },
)  # fmt: skip

ARITHMETIC = (ADDITION, SUBTRACTION, MULTIPLICATION, DIVISION, COMPARISON, ORDERING, UNITS)


def _long_product(rng: np.random.Generator, low: int, high: int) -> MathDraft:
    a, b = between(rng, low, high), between(rng, low, high)
    tens, ones = b - b % 10, b % 10
    steps = [f"{a}*{tens}={a * tens}"]
    if ones:
        steps += [f"{a}*{ones}={a * ones}", f"{a * tens}+{a * ones}={a * b}"]
    question = pick(rng, ("What is {a} * {b}?", "Multiply {a} by {b}.")).format(a=a, b=b)
    return MathDraft(question, tuple(steps), str(a * b), sort_pair(a, b))


LONG_MULTIPLICATION = MathSkill(
    "long_multiplication", "products of two numbers of two digits", AnswerKind.NUMBER,
    {"teens": lambda rng: _long_product(rng, 11, 29), "large": lambda rng: _long_product(rng, 31, 99)},
)  # fmt: skip


def _common_divisor(rng: np.random.Generator) -> MathDraft:
    shared = between(rng, 2, 12)
    a, b = shared * between(rng, 2, 15), shared * between(rng, 2, 15)
    steps, x, y = [], max(a, b), min(a, b)
    while y:
        steps.append(f"{x}={x // y}*{y}+{x % y}")
        x, y = y, x % y
    question = f"What is the greatest common divisor of {a} and {b}?"
    return MathDraft(question, tuple(steps), str(x), sort_pair(a, b))


def _binary(rng: np.random.Generator) -> MathDraft:
    number = between(rng, 16, 1023)
    steps = (f"{number}={'+'.join(str(1 << k) for k in reversed(range(10)) if number >> k & 1)}",)
    return MathDraft(f"Write {number} in binary.", steps, f"{number:b}", (number,))


NUMBER_THEORY = MathSkill(
    "number_theory", "greatest common divisors, and numbers in binary", AnswerKind.NUMBER,
    {"common_divisor": _common_divisor, "binary": _binary},
)  # fmt: skip

ADVANCED = (LONG_MULTIPLICATION, NUMBER_THEORY)
