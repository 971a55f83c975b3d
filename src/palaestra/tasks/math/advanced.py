"""Operations that a nano-sized student cannot learn from a few hundred examples.

They make the choices of a teacher matter: a good teacher spends its data on other skills.
"""

from __future__ import annotations

import numpy as np

from palaestra.tasks.math.answers import AnswerKind
from palaestra.tasks.math.drafts import MathDraft, MathSkill, sort_pair
from palaestra.tasks.sampling import between, pick


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
