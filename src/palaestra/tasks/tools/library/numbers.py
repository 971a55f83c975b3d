"""Tools for lists of numbers."""

from __future__ import annotations

import statistics

from palaestra.tasks.tools.library.marks import unordered
from palaestra.tasks.tools.library.values import neat


@unordered("numbers")
def mean(numbers: list[float]) -> float:
    """The mean (average) of a list of numbers.

    Arguments:
        numbers: one or more
    """
    return neat(statistics.fmean(numbers))


@unordered("numbers")
def median(numbers: list[float]) -> float:
    """The median of a list of numbers.

    Arguments:
        numbers: one or more
    """
    return neat(statistics.median(numbers))


@unordered("numbers")
def largest(numbers: list[float]) -> float:
    """The largest of a list of numbers.

    Arguments:
        numbers: one or more
    """
    return max(numbers)


@unordered("numbers")
def smallest(numbers: list[float]) -> float:
    """The smallest of a list of numbers.

    Arguments:
        numbers: one or more
    """
    return min(numbers)


@unordered("numbers")
def count_above(numbers: list[float], limit: float) -> int:
    """How many of a list of numbers are above a limit.

    Arguments:
        numbers: one or more
        limit: which does not count itself
    """
    return sum(number > limit for number in numbers)


@unordered("numbers")
def top(numbers: list[float], count: int) -> list[float]:
    """The largest few of a list of numbers, the largest first.

    Arguments:
        numbers: one or more
        count: how many to keep
    """
    if not 1 <= count <= len(numbers):
        raise ValueError(f"top: count lies between 1 and the {len(numbers)} numbers; got {count}")
    return sorted(numbers, reverse=True)[:count]


def scale(numbers: list[float], factor: float) -> list[float]:
    """A list of numbers, each multiplied by a factor.

    Arguments:
        numbers: one or more
        factor: for each of them
    """
    return [neat(number * factor) for number in numbers]


def round_to(value: float, digits: int = 0) -> float:
    """A number rounded to some digits behind the point.

    Arguments:
        value: the number
        digits: 0 to 9
    """
    if not 0 <= digits <= 9:
        raise ValueError(f"round_to: digits lie between 0 and 9; got {digits}")
    return round(value, digits)
