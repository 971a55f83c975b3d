"""The skills of arithmetic.

`ARITHMETIC` has the basic operations, which the embedded student knows already. `ADVANCED` has operations that a nano-sized
student cannot learn from a few hundred examples. They make the choices of a teacher matter: a good teacher spends its data
on other skills.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from palaestra.tasks.content import read_content
from palaestra.tasks.math.base import AnswerKind, Drawer, MathDraft, calculate, make_skill, sort_pair
from palaestra.tasks.procedural import between, phrase

_WORDINGS: Mapping[str, Sequence[str]] = read_content("math")["operations"]


def make_operation_draft(sign: str, a: int, b: int, question: str) -> MathDraft:
    """A draft that asks for `a sign b`. The order of the operands of a sum or product does not matter."""
    answer = calculate(sign, a, b)
    key = sort_pair(a, b) if sign in "+*" else (a, b)
    return MathDraft(question, (f"{a}{sign}{b}={answer}",), str(answer), key)


def _operation(sign: str, draw_pair: Callable[[np.random.Generator], tuple[int, int]]) -> Drawer:
    def draw(rng: np.random.Generator) -> MathDraft:
        a, b = draw_pair(rng)
        return make_operation_draft(sign, a, b, phrase(rng, _WORDINGS[sign], a=a, b=b))

    return draw


def _add_two_digits(rng: np.random.Generator, *, carry: bool) -> tuple[int, int]:
    while True:
        a, b = between(rng, 11, 89), between(rng, 11, 89)
        if (a % 10 + b % 10 >= 10) == carry:
            return a, b


def _subtract_two_digits(rng: np.random.Generator, *, borrow: bool) -> tuple[int, int]:
    while True:
        b, a = sorted((between(rng, 11, 99), between(rng, 11, 99)))
        if a > b and (a % 10 < b % 10) == borrow:
            return a, b


def _divide_exactly(rng: np.random.Generator, low: int, high: int) -> tuple[int, int]:
    b = between(rng, 2, 9)
    return b * between(rng, low, high), b


def _draw_distinct(rng: np.random.Generator, low: int, high: int, count: int) -> list[int]:
    return [int(number) for number in rng.choice(np.arange(low, high + 1), count, replace=False)]


def _join(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))


def _compare_two(rng: np.random.Generator, *, larger: bool) -> MathDraft:
    a, b = _draw_distinct(rng, 10, 999, 2)
    low, high = sort_pair(a, b)
    wordings = ("Which is smaller, {a} or {b}?", "Which number is less: {a} or {b}?")
    step, answer = f"{low}<{high}", low
    if larger:
        wordings = ("Which is larger, {a} or {b}?", "Which number is greater: {a} or {b}?")
        step, answer = f"{high}>{low}", high
    return MathDraft(phrase(rng, wordings, a=a, b=b), (step,), str(answer), (low, high))


def _find_largest(rng: np.random.Generator) -> MathDraft:
    numbers = _draw_distinct(rng, 10, 99, 3)
    question = phrase(rng, ("What is the largest of {n}?", "Find the maximum of {n}."), n=_join(numbers))
    return MathDraft(question, (), str(max(numbers)), tuple(sorted(numbers)))


def _sort(rng: np.random.Generator, *, descending: bool) -> MathDraft:
    numbers = _draw_distinct(rng, 10, 99, 3)
    wordings = ("Sort in ascending order: {n}.", "Sort from smallest to largest: {n}.")
    if descending:
        wordings = ("Sort in descending order: {n}.", "Sort from largest to smallest: {n}.")
    answer = _join(sorted(numbers, reverse=descending))
    return MathDraft(phrase(rng, wordings, n=_join(numbers)), (), answer, tuple(sorted(numbers)))


_SAME_FACTOR = {
    10: (("centimetres", "millimetres"),),
    60: (("hours", "minutes"), ("minutes", "seconds")),
    100: (("metres", "centimetres"),),
    1000: (("kilometres", "metres"), ("kilograms", "grams"), ("tonnes", "kilograms")),
}
"""Conversions with the same factor: 3 km in m and 3 kg in g have the same numbers. Each represents the others in turn."""


def _convert(*units: tuple[str, str, int]) -> Drawer:
    def draw(rng: np.random.Generator) -> MathDraft:
        large, small, factor = units[int(rng.integers(len(units)))]
        count = between(rng, 2, 60)
        wordings = (
            "How many {small} are {n} {large}?",
            "Convert {n} {large} to {small}.",
            "Write {n} {large} in {small}.",
        )
        question = phrase(rng, wordings, n=count, large=large, small=small)
        steps, answer = (f"{count}*{factor}={count * factor}",), str(count * factor)
        like = _SAME_FACTOR[factor][count % len(_SAME_FACTOR[factor])]
        return MathDraft(question, steps, answer, (large, small, count), (*like, count))

    return draw


def _multiply_long(rng: np.random.Generator, low: int, high: int) -> MathDraft:
    a, b = between(rng, low, high), between(rng, low, high)
    tens, ones = b - b % 10, b % 10
    steps = [f"{a}*{tens}={a * tens}"]
    if ones:
        steps += [f"{a}*{ones}={a * ones}", f"{a * tens}+{a * ones}={a * b}"]
    question = phrase(rng, ("What is {a} * {b}?", "Multiply {a} by {b}."), a=a, b=b)
    return MathDraft(question, tuple(steps), str(a * b), sort_pair(a, b))


def _find_common_divisor(rng: np.random.Generator) -> MathDraft:
    shared = between(rng, 2, 12)
    a, b = shared * between(rng, 2, 15), shared * between(rng, 2, 15)
    steps, x, y = [], max(a, b), min(a, b)
    while y:
        steps.append(f"{x}={x // y}*{y}+{x % y}")
        x, y = y, x % y
    question = f"What is the greatest common divisor of {a} and {b}?"
    return MathDraft(question, tuple(steps), str(x), sort_pair(a, b))


def _write_binary(rng: np.random.Generator) -> MathDraft:
    number = between(rng, 16, 1023)
    steps = (f"{number}={'+'.join(str(1 << k) for k in reversed(range(10)) if number >> k & 1)}",)
    return MathDraft(f"Write {number} in binary.", steps, f"{number:b}", (number,))


ARITHMETIC = {
    "addition": make_skill(
        one_digit=_operation("+", lambda rng: (between(rng, 1, 9), between(rng, 1, 19))),
        two_digit=_operation("+", lambda rng: _add_two_digits(rng, carry=False)),
        carry=_operation("+", lambda rng: _add_two_digits(rng, carry=True)),
    ),
    "subtraction": make_skill(
        one_digit=_operation("-", lambda rng: (between(rng, 9, 19), between(rng, 1, 9))),
        two_digit=_operation("-", lambda rng: _subtract_two_digits(rng, borrow=False)),
        borrow=_operation("-", lambda rng: _subtract_two_digits(rng, borrow=True)),
    ),
    "multiplication": make_skill(
        tables=_operation("*", lambda rng: (between(rng, 2, 9), between(rng, 2, 12))),
        tens=_operation("*", lambda rng: (between(rng, 2, 9), 10 * between(rng, 1, 12))),
        two_digit=_operation("*", lambda rng: (between(rng, 2, 9), between(rng, 13, 40))),
    ),
    "division": make_skill(
        tables=_operation("/", lambda rng: _divide_exactly(rng, 2, 12)),
        two_digit=_operation("/", lambda rng: _divide_exactly(rng, 13, 40)),
    ),
    "comparison": make_skill(
        larger=lambda rng: _compare_two(rng, larger=True),
        smaller=lambda rng: _compare_two(rng, larger=False),
        largest_of_three=_find_largest,
    ),
    "ordering": make_skill(
        AnswerKind.LIST,
        ascending=lambda rng: _sort(rng, descending=False),
        descending=lambda rng: _sort(rng, descending=True),
    ),
    "units": make_skill(
        length=_convert(
            ("metres", "centimetres", 100), ("kilometres", "metres", 1000), ("centimetres", "millimetres", 10)
        ),
        mass=_convert(("kilograms", "grams", 1000), ("tonnes", "kilograms", 1000)),
        time=_convert(("hours", "minutes", 60), ("minutes", "seconds", 60)),
    ),
}
ADVANCED = {
    "long_multiplication": make_skill(
        teens=lambda rng: _multiply_long(rng, 11, 29), large=lambda rng: _multiply_long(rng, 31, 99)
    ),
    "number_theory": make_skill(common_divisor=_find_common_divisor, binary=_write_binary),
}
