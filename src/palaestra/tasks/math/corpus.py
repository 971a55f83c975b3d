"""The pretraining corpus of `nano`: the basic operations in many wordings, and a small part of other skills.

Varied wording makes a new wording easy to learn later. So every operation occurs in several dozen phrases, alone and in
chains of two and three steps. The skills that lessons teach are only a small part (`TRACE`): enough to learn the form
of an answer, too little to master them. Only train problems are used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from palaestra.core.records import Example, Message, Split
from palaestra.tasks.content import read_content
from palaestra.tasks.math.arithmetic import ARITHMETIC, make_operation_draft
from palaestra.tasks.math.base import MathDraft, add_up, calculate
from palaestra.tasks.math.task import SKILLS, draft_split
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
    operations = list(ARITHMETIC)
    while True:
        draw = generator.random()
        if draw < trace:
            yield _draw_skill(generator, names[int(generator.choice(len(names), p=shares / shares.sum()))])
        elif draw < 0.35:
            yield _draw_skill(generator, operations[int(generator.integers(len(operations)))])
        elif draw < 0.60:
            yield _draw_operation(generator)
        elif draw < 0.80:
            question, steps, answer = _NOTIONS[int(generator.integers(len(_NOTIONS)))](generator)
            yield _example(MathDraft(question, steps, answer, ()), "notion")
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


_Drill = tuple[str, tuple[str, ...], str]
"""Question, steps and answer of a drill of a small concept, which word problems need: parts, lists, hours, money."""

_PARTS = (
    ("half", 2), ("a third", 3), ("a quarter", 4), ("a fifth", 5), ("a sixth", 6), ("an eighth", 8), ("a tenth", 10),
)  # fmt: skip
_TIMES = (("double", 2), ("twice", 2), ("triple", 3), ("three times", 3), ("ten times", 10))


def _part(rng: np.random.Generator) -> _Drill:
    name, size = _PARTS[int(rng.integers(len(_PARTS)))]
    part = between(rng, 2, 50)
    wordings = ("What is {n} of {w}?", "Find {n} of {w}.", "How much is {n} of {w}?", "Take {n} of {w}.")
    return phrase(rng, wordings, n=name, w=part * size), (f"{part * size}/{size}={part}",), str(part)


def _parts(rng: np.random.Generator) -> _Drill:
    names = (("thirds", 3), ("quarters", 4), ("fifths", 5), ("sixths", 6), ("eighths", 8), ("tenths", 10))
    name, size = names[int(rng.integers(6))]
    part, count = between(rng, 2, 15), between(rng, 2, size - 1)
    steps = (f"{part * size}/{size}={part}", f"{part}*{count}={part * count}")
    return f"Take {count} {name} of {part * size}.", steps, str(part * count)


def _times(rng: np.random.Generator) -> _Drill:
    name, factor = _TIMES[int(rng.integers(len(_TIMES)))]
    number = between(rng, 2, 60)
    question = phrase(rng, ("What is {n} {x}?", "Find {n} {x}.", "Say {n} {x}."), n=name, x=number)
    return question, (f"{number}*{factor}={number * factor}",), str(number * factor)


def _list_sum(rng: np.random.Generator) -> _Drill:
    numbers = [between(rng, 1, 60) for _ in range(between(rng, 2, 4))]
    wordings = ("Add up {n}.", "What is the total of {n}?", "Sum the list {n}.")
    return phrase(rng, wordings, n=", ".join(map(str, numbers))), add_up(numbers), str(sum(numbers))


def _list_sum_shared(rng: np.random.Generator) -> _Drill:
    parts, share = between(rng, 2, 6), between(rng, 4, 30)
    total = parts * share
    first = between(rng, 1, total - 1)
    steps = (f"{first}+{total - first}={total}", f"{total}/{parts}={share}")
    return f"Add up {first}, {total - first}, then split by {parts}.", steps, str(share)


def _list_place(rng: np.random.Generator) -> _Drill:
    numbers = [between(rng, 1, 99) for _ in range(3)]
    place = int(rng.integers(3))
    wordings = ("Name the {p} of {n}.", "Which is the {p} in the list {n}?", "Say the {p} term of {n}.")
    question = phrase(rng, wordings, p=("first", "second", "last")[place], n=", ".join(map(str, numbers)))
    return question, (), str(numbers[place])


def _list_gap(rng: np.random.Generator) -> _Drill:
    low, gap, last = between(rng, 1, 60), between(rng, 1, 20), between(rng, 1, 90)
    numbers, verb = (f"{low}, {low + gap}", "rise") if rng.random() < 0.5 else (f"{low + gap}, {low}", "fall")
    return f"How much does the list {numbers}, {last} {verb} at first?", (f"{low + gap}-{low}={gap}",), str(gap)


def _list_last_changed(rng: np.random.Generator) -> _Drill:
    a, b, last, change = between(rng, 1, 90), between(rng, 1, 90), between(rng, 20, 90), between(rng, 1, 19)
    verb, sign, result = ("Raise", "+", last + change) if rng.random() < 0.5 else ("Lower", "-", last - change)
    return f"{verb} the last of {a}, {b}, {last} by {change}.", (f"{last}{sign}{change}={result}",), str(result)


def _to_minutes(rng: np.random.Generator) -> _Drill:
    hours, minutes = between(rng, 1, 12), between(rng, 10, 59)
    if rng.random() < 0.5:
        return f"How many minutes past the hour is {hours}:{minutes:02d}?", (), str(minutes)
    return f"Which hour is it at {hours}:{minutes:02d}?", (), str(hours)


def _to_clock(rng: np.random.Generator) -> _Drill:
    hours, minutes = between(rng, 1, 12), between(rng, 0, 59)
    return f"Write {minutes} minutes past {hours} as a time.", (), f"{hours}:{minutes:02d}"


def _past_sixty(rng: np.random.Generator) -> _Drill:
    total = between(rng, 61, 118)
    wordings = ("{t} minutes are one hour and how many minutes?", "How many minutes over an hour are {t} minutes?")
    return phrase(rng, wordings, t=total), (f"{total}-60={total - 60}",), str(total - 60)


def _next_hour(rng: np.random.Generator) -> _Drill:
    hours = between(rng, 1, 11)
    return f"Which hour comes after {hours}?", (f"{hours}+1={hours + 1}",), str(hours + 1)


def _subtract_from_hundred(rng: np.random.Generator) -> _Drill:
    whole, spent = (20, 50, 100)[int(rng.integers(3))], between(rng, 1, 19)
    spent = min(whole - 1, spent + (whole - 20) * between(rng, 0, 4) // 4)
    wordings = (
        "{s} of {w} is spent. What is left?",
        "What is missing from {s} to {w}?",
        "You own {w} and spend {s}. How much is left?",
    )
    return phrase(rng, wordings, s=spent, w=whole), (f"{whole}-{spent}={whole - spent}",), str(whole - spent)


def _two_costs(rng: np.random.Generator) -> _Drill:
    first, second = between(rng, 2, 45), between(rng, 2, 45)
    wordings = (
        "A cup costs {a} and a plate costs {b}. What do both cost?",
        "One pays {a} for bread and {b} for milk. How much in all?",
    )
    return phrase(rng, wordings, a=first, b=second), (f"{first}+{second}={first + second}",), str(first + second)


def _rows_and_rest(rng: np.random.Generator) -> _Drill:
    rows, seats, rest = between(rng, 2, 9), between(rng, 3, 12), between(rng, 1, 20)
    product, question = rows * seats, f"{rows} rows of {seats} seats"
    if rng.random() < 0.5:
        question, sign, result = f"{question} and {rest} more seats. How many seats?", "+", product + rest
    else:
        rest = min(rest, product - 1)
        question, sign, result = f"{question}, {rest} of them taken. How many are free?", "-", product - rest
    return question, (f"{rows}*{seats}={product}", f"{product}{sign}{rest}={result}"), str(result)


_NOTIONS: tuple[Callable[[np.random.Generator], _Drill], ...] = (
    _part, _parts, _times, _list_sum, _list_sum_shared, _list_place, _list_gap, _list_last_changed,
    _to_minutes, _to_clock, _past_sixty, _next_hour, _subtract_from_hundred, _two_costs, _rows_and_rest,
)  # fmt: skip
