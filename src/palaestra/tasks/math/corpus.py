"""The pretraining corpus of `nano`: the basic operations in many wordings, and a small part of other skills.

Varied wording makes a new wording easy to learn later. So every operation occurs in several dozen phrases, alone and in
chains of two and three steps. The skills that lessons teach are only a small part (`TRACE`): enough to learn the form
of an answer, too little to master them. Only train problems are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from palaestra.core.records import Example, Message, Split
from palaestra.tasks.content import read_content
from palaestra.tasks.math.base import MathDraft, calculate
from palaestra.tasks.math.recipes import DRILLS, SKILLS, make_operation_draft
from palaestra.tasks.math.task import draft_split
from palaestra.tasks.procedural import between, phrase, pick

_CONTENT: Mapping[str, Any] = read_content("math")["corpus"]
TRACE: Mapping[str, float] = {
    "missing_number": 0.006, "sequences": 0.04, "groups": 0.003, "change": 0.008, "fractions": 0.015, "average": 0.015,
    "geometry": 0.003, "percent": 0.01, "clock": 0.05, "long_multiplication": 0.01, "number_theory": 0.01,
}  # fmt: skip
"""Percentage of the corpus for each skill that lessons teach."""

_SKILLS = {"+": "addition", "-": "subtraction", "*": "multiplication", "/": "division"}


def corpus(generator: np.random.Generator) -> Iterator[Example]:
    """An endless stream of pretraining examples."""
    trace = sum(TRACE.values()) / 100
    names, shares = list(TRACE), np.array(list(TRACE.values()))
    operations = [name for name in SKILLS if name not in TRACE]
    while True:
        draw = generator.random()
        if draw < trace:
            yield _draw_skill(generator, names[int(generator.choice(len(names), p=shares / shares.sum()))])
        elif draw < 0.35:
            yield _draw_skill(generator, operations[int(generator.integers(len(operations)))])
        elif draw < 0.60:
            yield _draw_operation(generator)
        elif draw < 0.80:
            yield _example(DRILLS[int(generator.integers(len(DRILLS)))](generator), "notion")
        else:
            yield _draw_chain(generator)


def _example(draft: MathDraft, skill: str) -> Example:
    return Example((Message("user", draft.question),), draft.response, skill)


def _draw_skill(rng: np.random.Generator, name: str) -> Example:
    drawers = list(SKILLS[name].subskills.values())
    while True:
        draft = drawers[int(rng.integers(len(drawers)))](rng)
        if draft_split(name, draft) is Split.TRAIN:
            return _example(draft, name)


def _draw_operands(rng: np.random.Generator, sign: str) -> tuple[int, int]:
    if sign == "+":
        return between(rng, 1, 99), between(rng, 1, 99)
    if sign == "-":
        high = between(rng, 3, 120)
        return high, between(rng, 1, high - 1)
    if sign == "*":
        pair = (between(rng, 2, 12), between(rng, 2, 40))
        return pair if rng.random() < 0.5 else (pair[1], pair[0])
    divisor = between(rng, 2, 12)
    return divisor * between(rng, 2, 40 if divisor > 5 else 60), divisor


def _draw_operation(rng: np.random.Generator) -> Example:
    """One operation in one of its wordings."""
    sign = "+-*/"[int(rng.integers(4))]
    skill, wordings = _SKILLS[sign], _CONTENT["operations"][sign]
    while True:
        a, b = _draw_operands(rng, sign)
        wording = pick(rng, wordings)
        p, q = (str(name) for name in rng.choice(_CONTENT["people"], 2, replace=False))
        question = wording.format(p=p, q=q, o=pick(rng, _CONTENT["objects"]), a=a, b=b)
        draft = make_operation_draft(sign, a, b, question)
        if draft_split(skill, draft) is Split.TRAIN:
            return _example(draft, f"drill {skill}")


def _draw_chain(rng: np.random.Generator) -> Example:
    """A text with two or three operations in sequence."""
    value, steps = between(rng, 2, 40), []
    words = [f"Start with {value}."] if rng.random() < 0.7 else [f"Think of {value}."]
    for _ in range(between(rng, 2, 3)):
        sign, b = _draw_next(rng, value)
        words.append(phrase(rng, _CONTENT["chained"][sign], b=b))
        result = calculate(sign, value, b)
        steps.append(f"{value}{sign}{b}={result}")
        value = result
    return _example(MathDraft(" ".join(words), tuple(steps), str(value), ()), "chain")


def _draw_next(rng: np.random.Generator, value: int) -> tuple[str, int]:
    """An operation that is possible with `value`, and its second operand."""
    divisors = [b for b in range(2, 13) if value % b == 0 and value // b <= 40] if value > 3 else []
    signs = ["+", "-"] if value > 2 else ["+"]
    signs += ["*"] if value <= 250 else []
    signs += ["/"] if divisors else []
    sign = signs[int(rng.integers(len(signs)))]
    if sign == "+":
        return sign, between(rng, 1, 99)
    if sign == "-":
        return sign, between(rng, 1, min(99, value - 1))
    if sign == "*":
        return sign, between(rng, 2, 12 if value <= 45 else 3)
    return sign, divisors[int(rng.integers(len(divisors)))]
