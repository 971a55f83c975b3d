"""Known operations in new wordings and combinations, which lessons can teach."""

from __future__ import annotations

import numpy as np

from palaestra.tasks.math.base import AnswerKind, Drawer, MathDraft, add_up, calculate, make_skill, sort_pair
from palaestra.tasks.procedural import between, phrase, pick

_NAMES = ("Ada", "Ben", "Cleo", "Dion", "Eva", "Finn")
_THINGS = ("figs", "nuts", "pears", "shells", "coins", "beads")
_HOLDERS = ("bags", "boxes", "jars", "baskets")


def _missing_addend(rng: np.random.Generator) -> MathDraft:
    a, b = between(rng, 11, 60), between(rng, 5, 39)
    wordings = ("What must be added to {b} to reach {c}?", "{b} + ? = {c}. Find the missing number.")
    return MathDraft(phrase(rng, wordings, b=b, c=a + b), (f"{a + b}-{b}={a}",), str(a), (a + b, b))


def _missing_minuend(rng: np.random.Generator) -> MathDraft:
    a, b = between(rng, 11, 60), between(rng, 5, 39)
    wordings = ("From which number can you take {b} and keep {a}?", "? - {b} = {a}. Find the missing number.")
    question = phrase(rng, wordings, a=a, b=b)
    return MathDraft(question, (f"{a}+{b}={a + b}",), str(a + b), (a, b), sort_pair(a, b))


def _missing_factor(rng: np.random.Generator) -> MathDraft:
    a, b = between(rng, 2, 12), between(rng, 2, 9)
    wordings = ("By what must {b} be multiplied to reach {c}?", "{b} * ? = {c}. Find the missing number.")
    return MathDraft(phrase(rng, wordings, b=b, c=a * b), (f"{a * b}/{b}={a}",), str(a), (a * b, b))


def _sequence(starts: tuple[int, int], steps: tuple[int, int], sign: str) -> Drawer:
    """Draw a sequence in which every term is the one before plus, minus or times a number."""

    def draw(rng: np.random.Generator) -> MathDraft:
        a, step = between(rng, *starts), between(rng, *steps)
        b = calculate(sign, a, step)
        c = calculate(sign, b, step)
        answer = calculate(sign, c, step)
        difference = {"+": f"{b}-{a}={step}", "-": f"{a}-{b}={step}", "*": f"{b}/{a}={step}"}[sign]
        wordings = ("What comes next: {t}?", "Continue the sequence {t}.", "Find the next term of {t}.")
        question = phrase(rng, wordings, t=f"{a}, {b}, {c}")
        return MathDraft(question, (difference, f"{c}{sign}{step}={answer}"), str(answer), (a, b, c))

    return draw


def _groups(rng: np.random.Generator) -> MathDraft:
    a, b = between(rng, 2, 9), between(rng, 3, 19)
    holder, thing = pick(rng, _HOLDERS), pick(rng, _THINGS)
    question = f"{a} {holder} hold {b} {thing} each. How many {thing}?"
    return MathDraft(question, (f"{a}*{b}={a * b}",), str(a * b), (a, b), sort_pair(a, b))


def _groups_and_more(rng: np.random.Generator) -> MathDraft:
    a, b, c = between(rng, 2, 9), between(rng, 3, 12), between(rng, 2, 20)
    thing, holder = pick(rng, _THINGS), pick(rng, _HOLDERS)
    question = f"{a} {holder} hold {b} {thing} each, and {c} {thing} lie beside them. How many {thing}?"
    steps = (f"{a}*{b}={a * b}", f"{a * b}+{c}={a * b + c}")
    return MathDraft(question, steps, str(a * b + c), (a, b, c), (*sort_pair(a, b), c))


def _groups_and_fewer(rng: np.random.Generator) -> MathDraft:
    a, b = between(rng, 2, 9), between(rng, 3, 12)
    c = between(rng, 1, a * b - 1)
    thing, holder, name = pick(rng, _THINGS), pick(rng, _HOLDERS), pick(rng, _NAMES)
    question = f"{a} {holder} hold {b} {thing} each. {name} takes {c} out. How many {thing} remain?"
    # Some share numbers and answer with a problem of `more`, for example 3*8-4 and 3*4+8; both are in the same split.
    with_more = [(*sort_pair(x, c), y) for x, y in ((a, b), (b, a)) if x * c + y == a * b - c]
    like = with_more[0] if with_more else (*sort_pair(a, b), c)
    return MathDraft(question, (f"{a}*{b}={a * b}", f"{a * b}-{c}={a * b - c}"), str(a * b - c), (a, b, c), like)


def _change_one(rng: np.random.Generator) -> MathDraft:
    price, note = between(rng, 3, 48), (20, 50, 100)[int(rng.integers(3))]
    price = min(price, note - 1)
    question = f"{pick(rng, _NAMES)} buys a book for {price} and pays with {note}. How much change is due?"
    return MathDraft(question, (f"{note}-{price}={note - price}",), str(note - price), (price, note))


def _change_several(rng: np.random.Generator) -> MathDraft:
    count, price = between(rng, 2, 9), between(rng, 3, 10)
    question = f"{pick(rng, _NAMES)} buys {count} pens at {price} each and pays with 100. How much change is due?"
    cost = count * price
    steps = (f"{count}*{price}={cost}", f"100-{cost}={100 - cost}")
    return MathDraft(question, steps, str(100 - cost), (count, price), sort_pair(count, price))


def _change_two(rng: np.random.Generator) -> MathDraft:
    hat, scarf, name = between(rng, 5, 45), between(rng, 5, 45), pick(rng, _NAMES)
    question = f"{name} buys a hat for {hat} and a scarf for {scarf} and pays with 100. How much change is due?"
    cost = hat + scarf
    steps = (f"{hat}+{scarf}={cost}", f"100-{cost}={100 - cost}")
    return MathDraft(question, steps, str(100 - cost), sort_pair(hat, scarf))


def _take_fraction(rng: np.random.Generator, *, unit: bool) -> MathDraft:
    bottom = between(rng, 3, 9)
    top = 1 if unit else between(rng, 2, bottom - 1)
    part = between(rng, 2, 15)
    whole = bottom * part
    wordings = ("What is {t}/{b} of {w}?", "Find {t}/{b} of {w}.", "How much is {t}/{b} of {w}?")
    question = phrase(rng, wordings, t=top, b=bottom, w=whole)
    steps = (f"{whole}/{bottom}={part}",) + (() if unit else (f"{part}*{top}={part * top}",))
    return MathDraft(question, steps, str(part * top), (top, bottom, whole))


def _fraction_sum(rng: np.random.Generator) -> MathDraft:
    bottom = between(rng, 5, 19)
    a = between(rng, 1, bottom - 2)
    b = between(rng, 1, bottom - 1 - a)
    question = phrase(rng, ("What is {a}/{d} + {b}/{d}?", "Add {a}/{d} and {b}/{d}."), a=a, b=b, d=bottom)
    return MathDraft(question, (f"{a}+{b}={a + b}",), f"{a + b}/{bottom}", (*sort_pair(a, b), bottom))


def _average(rng: np.random.Generator, count: int) -> MathDraft:
    mean, last = between(rng, 6, 30), 0
    while not 1 <= last <= 99:
        numbers = [between(rng, 2, 2 * mean - 2) for _ in range(count - 1)]
        last = mean * count - sum(numbers)
    numbers.append(last)
    steps = (*add_up(numbers), f"{sum(numbers)}/{count}={mean}")
    question = phrase(rng, ("What is the average of {n}?", "Find the mean of {n}."), n=", ".join(map(str, numbers)))
    return MathDraft(question, steps, str(mean), tuple(sorted(numbers)))


def _perimeter(rng: np.random.Generator) -> MathDraft:
    a, b = between(rng, 2, 40), between(rng, 2, 40)
    question = f"A field is {a} long and {b} wide. What is its perimeter?"
    return MathDraft(question, (f"{a}+{b}={a + b}", f"{a + b}*2={2 * (a + b)}"), str(2 * (a + b)), sort_pair(a, b))


def _area(rng: np.random.Generator) -> MathDraft:
    a, b = between(rng, 2, 9), between(rng, 3, 25)
    question = f"A field is {b} long and {a} wide. What is its area?"
    return MathDraft(question, (f"{b}*{a}={a * b}",), str(a * b), (a, b), sort_pair(a, b))


def _side(rng: np.random.Generator) -> MathDraft:
    a, b = between(rng, 2, 9), between(rng, 3, 25)
    question = f"A field of area {a * b} is {a} wide. How long is it?"
    return MathDraft(question, (f"{a * b}/{a}={b}",), str(b), (a, b))


def _percent(percent: int, divisor: int, high: int) -> Drawer:
    def draw(rng: np.random.Generator) -> MathDraft:
        part = between(rng, 2, high)
        whole = part * divisor
        wordings = ("What is {p}% of {w}?", "Find {p} percent of {w}.", "How much is {p}% of {w}?")
        question, step = phrase(rng, wordings, p=percent, w=whole), f"{whole}/{divisor}={part}"
        return MathDraft(question, (step,), str(part), (percent, whole), sort_pair(percent, whole))

    return draw


def _later(rng: np.random.Generator, *, past_hour: bool) -> MathDraft:
    if past_hour:
        hours, minutes = between(rng, 1, 11), between(rng, 25, 55)
        wait = between(rng, 61 - minutes, 59)
    else:
        hours, minutes = between(rng, 1, 12), between(rng, 10, 48)
        wait = between(rng, 2, 59 - minutes)
    total = minutes + wait
    steps, answer = [f"{minutes}+{wait}={total}"], f"{hours}:{total:02d}"
    if past_hour:
        steps += [f"{total}-60={total - 60}", f"{hours}+1={hours + 1}"]
        answer = f"{hours + 1}:{total - 60:02d}"
    question = f"It is {hours}:{minutes:02d}. What time is it {wait} minutes later?"
    return MathDraft(question, tuple(steps), answer, (hours, minutes, wait), (hours, *sort_pair(minutes, wait)))


REASONING = {
    "missing_number": make_skill(addend=_missing_addend, minuend=_missing_minuend, factor=_missing_factor),
    "sequences": make_skill(
        rising=_sequence((1, 30), (2, 12), "+"),
        falling=_sequence((45, 90), (2, 12), "-"),
        multiplying=_sequence((2, 33), (2, 3), "*"),
    ),
    "groups": make_skill(equal=_groups, with_more=_groups_and_more, with_fewer=_groups_and_fewer),
    "change": make_skill(one_item=_change_one, two_items=_change_two, several_items=_change_several),
    "fractions": make_skill(
        unit_of_quantity=lambda rng: _take_fraction(rng, unit=True),
        part_of_quantity=lambda rng: _take_fraction(rng, unit=False),
        like_sum=_fraction_sum,
    ),
    "average": make_skill(of_two=lambda rng: _average(rng, 2), of_three=lambda rng: _average(rng, 3)),
    "geometry": make_skill(perimeter=_perimeter, area=_area, side=_side),
    "percent": make_skill(
        tenths=_percent(10, 10, 60),
        fifths=_percent(20, 5, 50),
        quarters=_percent(25, 4, 50),
        halves=_percent(50, 2, 90),
    ),
    "clock": make_skill(
        AnswerKind.CLOCK,
        within_hour=lambda rng: _later(rng, past_hour=False),
        past_hour=lambda rng: _later(rng, past_hour=True),
    ),
}
