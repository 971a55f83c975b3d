"""The pretraining corpus of `nano`: the basic operations in many wordings, and a small part of other skills.

Varied wording makes a new wording easy to learn later. So every operation occurs in several dozen phrases, alone and in
chains of two and three steps. The skills that lessons teach are only a small part (`TRACE`): enough to learn the form
of an answer, too little to master them. Only train problems are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from palaestra.core.records import Example, Message, Split
from palaestra.tasks.math.arithmetic import ARITHMETIC, add_draft, divide_draft, multiply_draft, subtract_draft
from palaestra.tasks.math.drafts import MathDraft
from palaestra.tasks.math.pretraining_drills import NOTIONS
from palaestra.tasks.math.task import SKILLS, draft_split
from palaestra.tasks.sampling import between, pick

PEOPLE = ("Tom", "Mia", "Leo", "Zoe", "Max", "Ida", "Sam", "Lea", "Kim", "Jon")
OBJECTS = ("apples", "stones", "cards", "books", "eggs", "stars", "keys", "cups", "balls", "fish")

ADD_WORDS = (
    "{a}+{b}", "{a} + {b} = ?", "{a} and {b} make what?", "Increase {a} by {b}.", "What is {b} more than {a}?",
    "Find the total of {a} and {b}.", "Put {a} and {b} together.", "Count {b} up from {a}.", "{a} more than {b} is what?",
    "{p} has {a} {o} and gets {b} more. How many {o} now?", "There are {a} {o} here and {b} there. How many in all?",
    "{p} saw {a} {o}, then {b} others. How many {o} did {p} see?", "A train with {a} people takes in {b}. How many now?",
    "{p} ran {a} km on Monday and {b} km on Sunday. How far in all?", "Raise {a} by {b}.", "{a} grows by {b}. What is it now?",
    "Which number is {b} above {a}?", "{p} reads {a} pages, then {b} pages. How many pages?", "What do {a} and {b} give together?",
)  # fmt: skip
SUBTRACT_WORDS = (
    "{a}-{b}", "{a} - {b} = ?", "Decrease {a} by {b}.", "What is {b} less than {a}?", "Remove {b} from {a}.", "Lower {a} by {b}.",
    "{p} has {a} {o} and gives away {b}. How many are left?", "Of {a} {o}, {b} are lost. How many are left?",
    "What is the difference of {a} and {b}?", "How much more is {a} than {b}?", "{a} shrinks by {b}. What is it now?",
    "A bus with {a} people lets {b} out. How many stay?", "{p} is {a} and {q} is {b}. How many years apart?",
    "Count {b} down from {a}.", "Which number is {b} below {a}?", "How far is it from {b} to {a}?", "{p} had {a} {o} and sold {b}. How many now?",
    "{a} without {b} leaves what?", "How many more than {b} is {a}?",
)  # fmt: skip
MULTIPLY_WORDS = (
    "{a}*{b}", "{a} * {b} = ?", "{a} times {b}", "{b} taken {a} times is what?", "What are {a} rows of {b}?", "Repeat {b} {a} times and add up.",
    "{p} packs {a} {o} a day for {b} days. How many {o}?", "{a} people have {b} {o} each. How many in all?",
    "{a} {o} cost {b} each. What do they cost?", "A car drives {a} hours at {b} km an hour. How far?",
    "Each of {a} shelves has {b} {o}. How many {o} are there?", "{p} earns {b} an hour. What are {a} hours worth?", "Scale {b} by {a}.",
    "What is {a} fold {b}?", "{b} for each of {a} people makes what?",
)  # fmt: skip
DIVIDE_WORDS = (
    "{a}/{b}", "{a} / {b} = ?", "Share {a} {o} among {b} people.", "Split {a} into {b} equal parts.", "How many times {b} is {a}?",
    "{p} puts {a} {o} in rows of {b}. How many rows?", "{b} people share {a} {o}. How many each?", "{a} {o} fill {b} carts. How many a cart?",
    "Cut {a} into {b} pieces of one size. How large is a piece?", "{p} has {a} days, {b} to a week. How many weeks?",
    "What is one of {b} equal parts of {a}?", "{a} shared by {b} gives what?",
)  # fmt: skip

TRACE: Mapping[str, float] = {
    "missing_number": 0.006, "sequences": 0.04, "groups": 0.003, "change": 0.008, "fractions": 0.015, "average": 0.015,
    "geometry": 0.003, "percent": 0.01, "clock": 0.05, "long_multiplication": 0.01, "number_theory": 0.01,
}  # fmt: skip
"""Percentage of the corpus for each skill that lessons teach."""

_MAKE = {
    "+": (add_draft, ADD_WORDS),
    "-": (subtract_draft, SUBTRACT_WORDS),
    "*": (multiply_draft, MULTIPLY_WORDS),
    "/": (divide_draft, DIVIDE_WORDS),
}
_SKILL_OF = {"+": "addition", "-": "subtraction", "*": "multiplication", "/": "division"}


def corpus(generator: np.random.Generator) -> Iterator[Example]:
    """An endless stream of pretraining examples."""
    trace = sum(TRACE.values()) / 100
    names, shares = list(TRACE), np.array(list(TRACE.values()))
    while True:
        draw = generator.random()
        if draw < trace:
            yield _of_skill(generator, names[int(generator.choice(len(names), p=shares / shares.sum()))])
        elif draw < 0.35:
            yield _of_skill(generator, ARITHMETIC[int(generator.integers(len(ARITHMETIC)))].name)
        elif draw < 0.60:
            yield _drill(generator)
        elif draw < 0.80:
            yield _notion(generator)
        else:
            yield _chain(generator)


def _example(draft: MathDraft, skill: str) -> Example:
    return Example((Message("user", draft.question),), draft.response, skill)


def _of_skill(rng: np.random.Generator, name: str) -> Example:
    drawers = list(SKILLS[name].subskills.values())
    while True:
        draft = drawers[int(rng.integers(len(drawers)))](rng)
        if draft_split(name, draft) is Split.TRAIN:
            return _example(draft, name)


def _words(rng: np.random.Generator, wording: str, **numbers: int) -> str:
    p, q = (str(name) for name in rng.choice(PEOPLE, 2, replace=False))
    return wording.format(p=p, q=q, o=pick(rng, OBJECTS), **numbers)


def _operands(rng: np.random.Generator, sign: str) -> tuple[int, int]:
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


def _drill(rng: np.random.Generator) -> Example:
    """One operation in one of its wordings."""
    sign = "+-*/"[int(rng.integers(4))]
    make, wordings = _MAKE[sign]
    while True:
        a, b = _operands(rng, sign)
        draft = make(a, b, _words(rng, pick(rng, wordings), a=a, b=b))
        if draft_split(_SKILL_OF[sign], draft) is Split.TRAIN:
            return _example(draft, f"drill {_SKILL_OF[sign]}")


def _notion(rng: np.random.Generator) -> Example:
    """A drill of a small concept: parts, positions in a list, hours and minutes."""
    question, steps, answer = NOTIONS[int(rng.integers(len(NOTIONS)))](rng)
    return _example(MathDraft(question, steps, answer, ()), "notion")


def _chain(rng: np.random.Generator) -> Example:
    """A text with two or three operations in sequence."""
    value, steps = between(rng, 2, 40), []
    words = [f"Start with {value}."] if rng.random() < 0.7 else [f"Think of {value}."]
    for _ in range(between(rng, 2, 3)):
        sign = _possible(rng, value)
        b = _second_operand(rng, sign, value)
        result = {"+": value + b, "-": value - b, "*": value * b, "/": value // b}[sign]
        phrase = {
            "+": ("Add {b}.", "Then add {b}.", "Put {b} to it.", "{b} more come."),
            "-": ("Subtract {b}.", "Take away {b}.", "Then take {b} off.", "{b} are lost."),
            "*": ("Multiply by {b}.", "Take it {b} times.", "Then times {b}."),
            "/": ("Divide by {b}.", "Split it by {b}.", "Share it among {b}."),
        }[sign]
        words.append(pick(rng, phrase).format(b=b))
        steps.append(f"{value}{sign}{b}={result}")
        value = result
    return _example(MathDraft(" ".join(words), tuple(steps), str(value), ()), "chain")


def _possible(rng: np.random.Generator, value: int) -> str:
    signs = ["+", "-"] if value > 2 else ["+"]
    signs += ["*"] if value <= 250 else []
    signs += ["/"] if any(value % b == 0 and value // b <= 40 for b in range(2, 13)) and value > 3 else []
    return signs[int(rng.integers(len(signs)))]


def _second_operand(rng: np.random.Generator, sign: str, value: int) -> int:
    if sign == "+":
        return between(rng, 1, 99)
    if sign == "-":
        return between(rng, 1, min(99, value - 1))
    if sign == "*":
        return between(rng, 2, 12 if value <= 45 else 3)
    divisors = [b for b in range(2, 13) if value % b == 0 and value // b <= 40]
    return divisors[int(rng.integers(len(divisors)))]
