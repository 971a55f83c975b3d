"""Known operations in new wordings and combinations, which lessons can teach."""

from __future__ import annotations

import numpy as np

from palaestra.tasks.math.base import AnswerKind, Drawer, MathDraft, MathSkill, sort_pair
from palaestra.tasks.sampling import between, pick

NAMES = ("Ada", "Ben", "Cleo", "Dion", "Eva", "Finn")
THINGS = ("figs", "nuts", "pears", "shells", "coins", "beads")
HOLDERS = ("bags", "boxes", "jars", "baskets")


def _missing_addend(rng: np.random.Generator) -> MathDraft:
    a, b = between(rng, 11, 60), between(rng, 5, 39)
    question = pick(rng, ("What must be added to {b} to reach {c}?", "{b} + ? = {c}. Find the missing number.")).format(
        b=b, c=a + b
    )
    return MathDraft(question, (f"{a + b}-{b}={a}",), str(a), (a + b, b))


def _missing_minuend(rng: np.random.Generator) -> MathDraft:
    a, b = between(rng, 11, 60), between(rng, 5, 39)
    question = pick(
        rng, ("From which number can you take {b} and keep {a}?", "? - {b} = {a}. Find the missing number.")
    ).format(a=a, b=b)
    return MathDraft(question, (f"{a}+{b}={a + b}",), str(a + b), (a, b), sort_pair(a, b))


def _missing_factor(rng: np.random.Generator) -> MathDraft:
    a, b = between(rng, 2, 12), between(rng, 2, 9)
    question = pick(
        rng, ("By what must {b} be multiplied to reach {c}?", "{b} * ? = {c}. Find the missing number.")
    ).format(b=b, c=a * b)
    return MathDraft(question, (f"{a * b}/{b}={a}",), str(a), (a * b, b))


MISSING_NUMBER = MathSkill(
    "missing_number", "the number that makes an equation true", AnswerKind.NUMBER,
    {"addend": _missing_addend, "minuend": _missing_minuend, "factor": _missing_factor},
)  # fmt: skip


def _sequence(starts: tuple[int, int], steps: tuple[int, int], sign: str) -> Drawer:
    """Draw a sequence in which every term is the one before plus, minus or times a number."""

    def draw(rng: np.random.Generator) -> MathDraft:
        first, step = between(rng, *starts), between(rng, *steps)
        terms = [first]
        for _ in range(3):
            terms.append({"+": terms[-1] + step, "-": terms[-1] - step, "*": terms[-1] * step}[sign])
        a, b, c, answer = terms
        difference = {"+": f"{b}-{a}={step}", "-": f"{a}-{b}={step}", "*": f"{b}/{a}={step}"}[sign]
        wording = pick(rng, ("What comes next: {t}?", "Continue the sequence {t}.", "Find the next term of {t}."))
        return MathDraft(
            wording.format(t=f"{a}, {b}, {c}"), (difference, f"{c}{sign}{step}={answer}"), str(answer), (a, b, c)
        )

    return draw


SEQUENCES = MathSkill(
    "sequences", "the next term of a sequence", AnswerKind.NUMBER,
    {
        "rising": _sequence((1, 30), (2, 12), "+"),
        "falling": _sequence((45, 90), (2, 12), "-"),
        "multiplying": _sequence((2, 33), (2, 3), "*"),
    },
)  # fmt: skip


def _groups(rng: np.random.Generator) -> MathDraft:
    a, b = between(rng, 2, 9), between(rng, 3, 19)
    question = f"{a} {pick(rng, HOLDERS)} hold {b} {(thing := pick(rng, THINGS))} each. How many {thing}?"
    return MathDraft(question, (f"{a}*{b}={a * b}",), str(a * b), (a, b), sort_pair(a, b))


def _groups_and_more(rng: np.random.Generator) -> MathDraft:
    a, b, c = between(rng, 2, 9), between(rng, 3, 12), between(rng, 2, 20)
    thing = pick(rng, THINGS)
    question = f"{a} {pick(rng, HOLDERS)} hold {b} {thing} each, and {c} {thing} lie beside them. How many {thing}?"
    return MathDraft(
        question, (f"{a}*{b}={a * b}", f"{a * b}+{c}={a * b + c}"), str(a * b + c), (a, b, c), (*sort_pair(a, b), c)
    )


def _groups_and_fewer(rng: np.random.Generator) -> MathDraft:
    a, b = between(rng, 2, 9), between(rng, 3, 12)
    c = between(rng, 1, a * b - 1)
    thing = pick(rng, THINGS)
    question = (
        f"{a} {pick(rng, HOLDERS)} hold {b} {thing} each. {pick(rng, NAMES)} takes {c} out. How many {thing} remain?"
    )
    # Some share numbers and answer with a problem of `more`, for example 3*8-4 and 3*4+8; both are in the same split.
    with_more = [(*sort_pair(x, c), y) for x, y in ((a, b), (b, a)) if x * c + y == a * b - c]
    like = with_more[0] if with_more else (*sort_pair(a, b), c)
    return MathDraft(question, (f"{a}*{b}={a * b}", f"{a * b}-{c}={a * b - c}"), str(a * b - c), (a, b, c), like)


GROUPS = MathSkill(
    "groups", "word problems about equal groups, in one and two steps", AnswerKind.NUMBER,
    {"equal": _groups, "with_more": _groups_and_more, "with_fewer": _groups_and_fewer},
)  # fmt: skip


def _change_one(rng: np.random.Generator) -> MathDraft:
    price, note = between(rng, 3, 48), (20, 50, 100)[int(rng.integers(3))]
    price = min(price, note - 1)
    question = f"{pick(rng, NAMES)} buys a book for {price} and pays with {note}. How much change is due?"
    return MathDraft(question, (f"{note}-{price}={note - price}",), str(note - price), (price, note))


def _change_several(rng: np.random.Generator) -> MathDraft:
    count, price = between(rng, 2, 9), between(rng, 3, 10)
    question = f"{pick(rng, NAMES)} buys {count} pens at {price} each and pays with 100. How much change is due?"
    cost = count * price
    steps = (f"{count}*{price}={cost}", f"100-{cost}={100 - cost}")
    return MathDraft(question, steps, str(100 - cost), (count, price), sort_pair(count, price))


def _change_two(rng: np.random.Generator) -> MathDraft:
    first, second = between(rng, 5, 45), between(rng, 5, 45)
    question = (
        f"{pick(rng, NAMES)} buys a hat for {first} and a scarf for {second} and pays with 100. How much change is due?"
    )
    cost = first + second
    return MathDraft(
        question, (f"{first}+{second}={cost}", f"100-{cost}={100 - cost}"), str(100 - cost), sort_pair(first, second)
    )


CHANGE = MathSkill(
    "change", "the change after a purchase", AnswerKind.NUMBER,
    {"one_item": _change_one, "two_items": _change_two, "several_items": _change_several},
)  # fmt: skip


def _draw_fraction(rng: np.random.Generator, *, unit: bool) -> MathDraft:
    bottom = between(rng, 3, 9)
    top = 1 if unit else between(rng, 2, bottom - 1)
    part = between(rng, 2, 15)
    whole = bottom * part
    question = pick(rng, ("What is {t}/{b} of {w}?", "Find {t}/{b} of {w}.", "How much is {t}/{b} of {w}?")).format(
        t=top, b=bottom, w=whole
    )
    steps = (f"{whole}/{bottom}={part}",) + (() if unit else (f"{part}*{top}={part * top}",))
    return MathDraft(question, steps, str(part * top), (top, bottom, whole))


def _fraction_sum(rng: np.random.Generator) -> MathDraft:
    bottom = between(rng, 5, 19)
    a, b = between(rng, 1, bottom - 2), 0
    b = between(rng, 1, bottom - 1 - a)
    question = pick(rng, ("What is {a}/{d} + {b}/{d}?", "Add {a}/{d} and {b}/{d}.")).format(a=a, b=b, d=bottom)
    return MathDraft(question, (f"{a}+{b}={a + b}",), f"{a + b}/{bottom}", (*sort_pair(a, b), bottom))


FRACTIONS = MathSkill(
    "fractions", "fractions of a quantity, and sums of like fractions", AnswerKind.NUMBER,
    {
        "unit_of_quantity": lambda rng: _draw_fraction(rng, unit=True),
        "part_of_quantity": lambda rng: _draw_fraction(rng, unit=False),
        "like_sum": _fraction_sum,
    },
)  # fmt: skip


def _average(rng: np.random.Generator, count: int) -> MathDraft:
    mean = between(rng, 6, 30)
    while True:
        numbers = [between(rng, 2, 2 * mean - 2) for _ in range(count - 1)]
        last = mean * count - sum(numbers)
        if 1 <= last <= 99:
            break
    numbers.append(last)
    steps, total = [], numbers[0]
    for number in numbers[1:]:
        steps.append(f"{total}+{number}={total + number}")
        total += number
    steps.append(f"{total}/{count}={mean}")
    question = pick(rng, ("What is the average of {n}?", "Find the mean of {n}.")).format(
        n=", ".join(map(str, numbers))
    )
    return MathDraft(question, tuple(steps), str(mean), tuple(sorted(numbers)))


AVERAGE = MathSkill(
    "average", "the mean of two or three numbers", AnswerKind.NUMBER,
    {"of_two": lambda rng: _average(rng, 2), "of_three": lambda rng: _average(rng, 3)},
)  # fmt: skip


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


GEOMETRY = MathSkill(
    "geometry", "perimeter, area and side of a rectangle", AnswerKind.NUMBER,
    {"perimeter": _perimeter, "area": _area, "side": _side},
)  # fmt: skip


def _percent(rng: np.random.Generator, percent: int, divisor: int, high: int) -> MathDraft:
    part = between(rng, 2, high)
    whole = part * divisor
    question = pick(rng, ("What is {p}% of {w}?", "Find {p} percent of {w}.", "How much is {p}% of {w}?")).format(
        p=percent, w=whole
    )
    return MathDraft(question, (f"{whole}/{divisor}={part}",), str(part), (percent, whole), sort_pair(percent, whole))


PERCENT = MathSkill(
    "percent", "10, 20, 25 and 50 percent of a quantity", AnswerKind.NUMBER,
    {
        "tenths": lambda rng: _percent(rng, 10, 10, 60),
        "fifths": lambda rng: _percent(rng, 20, 5, 50),
        "quarters": lambda rng: _percent(rng, 25, 4, 50),
        "halves": lambda rng: _percent(rng, 50, 2, 90),
    },
)  # fmt: skip


def _clock(hours: int, minutes: int) -> str:
    return f"{(hours - 1) % 12 + 1}:{minutes:02d}"


def _later(rng: np.random.Generator) -> MathDraft:
    hours, minutes = between(rng, 1, 12), between(rng, 10, 48)
    wait = between(rng, 2, 59 - minutes)
    question = f"It is {_clock(hours, minutes)}. What time is it {wait} minutes later?"
    answer = _clock(hours, minutes + wait)
    return MathDraft(
        question,
        (f"{minutes}+{wait}={minutes + wait}",),
        answer,
        (hours, minutes, wait),
        (hours, *sort_pair(minutes, wait)),
    )


def _past_the_hour(rng: np.random.Generator) -> MathDraft:
    hours, minutes = between(rng, 1, 11), between(rng, 25, 55)
    wait = between(rng, 61 - minutes, 59)
    total = minutes + wait
    question = f"It is {_clock(hours, minutes)}. What time is it {wait} minutes later?"
    steps = (f"{minutes}+{wait}={total}", f"{total}-60={total - 60}", f"{hours}+1={hours + 1}")
    like = (hours, *sort_pair(minutes, wait))
    return MathDraft(question, steps, _clock(hours + 1, total - 60), (hours, minutes, wait), like)


CLOCK = MathSkill(
    "clock", "the time some minutes later", AnswerKind.CLOCK,
    {"within_hour": _later, "past_hour": _past_the_hour},
)  # fmt: skip

REASONING = (MISSING_NUMBER, SEQUENCES, GROUPS, CHANGE, FRACTIONS, AVERAGE, GEOMETRY, PERCENT, CLOCK)
