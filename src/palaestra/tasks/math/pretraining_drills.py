"""Drills of the small concepts in word problems, for the pretraining of `nano`.

They are not skills of the task, but prerequisites: parts of a whole, positions in a list, sums of several numbers, hours
and minutes, remaining money.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from palaestra.tasks.sampling import between, pick

Notion = Callable[[np.random.Generator], tuple[str, tuple[str, ...], str]]

PARTS = (
    ("half", 2),
    ("a third", 3),
    ("a quarter", 4),
    ("a fifth", 5),
    ("a sixth", 6),
    ("an eighth", 8),
    ("a tenth", 10),
)
TIMES = (("double", 2), ("twice", 2), ("triple", 3), ("three times", 3), ("ten times", 10))


def _part(rng: np.random.Generator) -> tuple[str, tuple[str, ...], str]:
    name, size = PARTS[int(rng.integers(len(PARTS)))]
    part = between(rng, 2, 50)
    wording = pick(rng, ("What is {n} of {w}?", "Find {n} of {w}.", "How much is {n} of {w}?", "Take {n} of {w}."))
    return wording.format(n=name, w=part * size), (f"{part * size}/{size}={part}",), str(part)


def _parts(rng: np.random.Generator) -> tuple[str, tuple[str, ...], str]:
    name, size = (("thirds", 3), ("quarters", 4), ("fifths", 5), ("sixths", 6), ("eighths", 8), ("tenths", 10))[
        int(rng.integers(6))
    ]
    part, count = between(rng, 2, 15), between(rng, 2, size - 1)
    steps = (f"{part * size}/{size}={part}", f"{part}*{count}={part * count}")
    return f"Take {count} {name} of {part * size}.", steps, str(part * count)


def _times(rng: np.random.Generator) -> tuple[str, tuple[str, ...], str]:
    name, factor = TIMES[int(rng.integers(len(TIMES)))]
    number = between(rng, 2, 60)
    wording = pick(rng, ("What is {n} {x}?", "Find {n} {x}.", "Say {n} {x}."))
    return wording.format(n=name, x=number), (f"{number}*{factor}={number * factor}",), str(number * factor)


def _list_sum(rng: np.random.Generator) -> tuple[str, tuple[str, ...], str]:
    numbers = [between(rng, 1, 60) for _ in range(between(rng, 2, 4))]
    steps, total = [], numbers[0]
    for number in numbers[1:]:
        steps.append(f"{total}+{number}={total + number}")
        total += number
    wording = pick(rng, ("Add up {n}.", "What is the total of {n}?", "Sum the list {n}."))
    return wording.format(n=", ".join(map(str, numbers))), tuple(steps), str(total)


def _list_sum_shared(rng: np.random.Generator) -> tuple[str, tuple[str, ...], str]:
    parts, share = between(rng, 2, 6), between(rng, 4, 30)
    first = between(rng, 1, parts * share - 1)
    numbers = (first, parts * share - first)
    steps = (f"{numbers[0]}+{numbers[1]}={parts * share}", f"{parts * share}/{parts}={share}")
    return f"Add up {numbers[0]}, {numbers[1]}, then split by {parts}.", steps, str(share)


def _list_place(rng: np.random.Generator) -> tuple[str, tuple[str, ...], str]:
    numbers = [between(rng, 1, 99) for _ in range(3)]
    place = int(rng.integers(3))
    wording = pick(rng, ("Name the {p} of {n}.", "Which is the {p} in the list {n}?", "Say the {p} term of {n}."))
    text = wording.format(p=("first", "second", "last")[place], n=", ".join(map(str, numbers)))
    return text, (), str(numbers[place])


def _list_gap(rng: np.random.Generator) -> tuple[str, tuple[str, ...], str]:
    first, gap, last = between(rng, 1, 60), between(rng, 1, 20), between(rng, 1, 90)
    if rng.random() < 0.5:
        return (
            f"How much does the list {first}, {first + gap}, {last} rise at first?",
            (f"{first + gap}-{first}={gap}",),
            str(gap),
        )
    return (
        f"How much does the list {first + gap}, {first}, {last} fall at first?",
        (f"{first + gap}-{first}={gap}",),
        str(gap),
    )


def _list_last_changed(rng: np.random.Generator) -> tuple[str, tuple[str, ...], str]:
    a, b, last, change = between(rng, 1, 90), between(rng, 1, 90), between(rng, 20, 90), between(rng, 1, 19)
    if rng.random() < 0.5:
        return (
            f"Raise the last of {a}, {b}, {last} by {change}.",
            (f"{last}+{change}={last + change}",),
            str(last + change),
        )
    return f"Lower the last of {a}, {b}, {last} by {change}.", (f"{last}-{change}={last - change}",), str(last - change)


def _to_minutes(rng: np.random.Generator) -> tuple[str, tuple[str, ...], str]:
    hours, minutes = between(rng, 1, 12), between(rng, 10, 59)
    if rng.random() < 0.5:
        return f"How many minutes past the hour is {hours}:{minutes:02d}?", (), str(minutes)
    return f"Which hour is it at {hours}:{minutes:02d}?", (), str(hours)


def _to_clock(rng: np.random.Generator) -> tuple[str, tuple[str, ...], str]:
    hours, minutes = between(rng, 1, 12), between(rng, 0, 59)
    return f"Write {minutes} minutes past {hours} as a time.", (), f"{hours}:{minutes:02d}"


def _past_sixty(rng: np.random.Generator) -> tuple[str, tuple[str, ...], str]:
    total = between(rng, 61, 118)
    wording = pick(
        rng, ("{t} minutes are one hour and how many minutes?", "How many minutes over an hour are {t} minutes?")
    )
    return wording.format(t=total), (f"{total}-60={total - 60}",), str(total - 60)


def _next_hour(rng: np.random.Generator) -> tuple[str, tuple[str, ...], str]:
    hours = between(rng, 1, 11)
    return f"Which hour comes after {hours}?", (f"{hours}+1={hours + 1}",), str(hours + 1)


def _subtract_from_hundred(rng: np.random.Generator) -> tuple[str, tuple[str, ...], str]:
    whole, spent = (20, 50, 100)[int(rng.integers(3))], between(rng, 1, 19)
    spent = min(whole - 1, spent + (whole - 20) * between(rng, 0, 4) // 4)
    wording = pick(
        rng,
        (
            "{s} of {w} is spent. What is left?",
            "What is missing from {s} to {w}?",
            "You own {w} and spend {s}. How much is left?",
        ),
    )
    return wording.format(s=spent, w=whole), (f"{whole}-{spent}={whole - spent}",), str(whole - spent)


def _two_costs(rng: np.random.Generator) -> tuple[str, tuple[str, ...], str]:
    first, second = between(rng, 2, 45), between(rng, 2, 45)
    wording = pick(
        rng,
        (
            "A cup costs {a} and a plate costs {b}. What do both cost?",
            "One pays {a} for bread and {b} for milk. How much in all?",
        ),
    )
    return wording.format(a=first, b=second), (f"{first}+{second}={first + second}",), str(first + second)


def _rows_and_rest(rng: np.random.Generator) -> tuple[str, tuple[str, ...], str]:
    rows, seats, rest = between(rng, 2, 9), between(rng, 3, 12), between(rng, 1, 20)
    product = rows * seats
    if rng.random() < 0.5:
        return (
            f"{rows} rows of {seats} seats and {rest} more seats. How many seats?",
            (f"{rows}*{seats}={product}", f"{product}+{rest}={product + rest}"),
            str(product + rest),
        )
    rest = min(rest, product - 1)
    return (
        f"{rows} rows of {seats} seats, {rest} of them taken. How many are free?",
        (f"{rows}*{seats}={product}", f"{product}-{rest}={product - rest}"),
        str(product - rest),
    )


NOTIONS: tuple[Notion, ...] = (
    _part, _parts, _times, _list_sum, _list_sum_shared, _list_place, _list_gap, _list_last_changed,
    _to_minutes, _to_clock, _past_sixty, _next_hour, _subtract_from_hundred, _two_costs, _rows_and_rest,
)  # fmt: skip
