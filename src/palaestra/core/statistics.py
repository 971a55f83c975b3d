"""Intervals for rates and for paired gains, and the report of a set of attempts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from palaestra.core.records import Attempt, Failure, Report

Z95 = 1.959963984540054


def wilson_interval(correct: int, count: int) -> tuple[float, float]:
    """The 95 % Wilson interval of a rate. With nothing counted, everything is possible.

    >>> low, high = wilson_interval(8, 10)
    >>> round(low, 3), round(high, 3)
    (0.49, 0.943)
    """
    if count == 0:
        return 0.0, 1.0
    rate, z2 = correct / count, Z95**2
    centre = (rate + z2 / (2 * count)) / (1 + z2 / count)
    half = Z95 * math.sqrt(rate * (1 - rate) / count + z2 / (4 * count**2)) / (1 + z2 / count)
    # The rounding of the last bit must not push a rate of 0 or 1 out of its own interval.
    return max(0.0, min(rate, centre - half)), min(1.0, max(rate, centre + half))


@dataclass(frozen=True, slots=True)
class Gain:
    """A change of accuracy in points (percent), measured on the same problems, with its interval."""

    points: float
    low: float
    high: float
    count: int


def paired_gain(before: Sequence[bool], after: Sequence[bool]) -> Gain:
    """How much `after` is above `before`, problem by problem, with a 95 % interval.

    The interval is Agresti and Min's: half a problem is added to each of the four cells of the
    paired table, which keeps the coverage right for small counts and for changes near 0 or 100 %.

    Raises:
        ValueError: the two do not have the same length.
    """
    if len(before) != len(after):
        raise ValueError(f"paired gains need equal lengths; got {len(before)} and {len(after)}")
    count = len(before)
    if count == 0:
        return Gain(0.0, -100.0, 100.0, 0)
    gained = sum(1 for b, a in zip(before, after, strict=True) if a and not b)
    lost = sum(1 for b, a in zip(before, after, strict=True) if b and not a)
    up, down, total = gained + 0.5, lost + 0.5, count + 2.0
    centre = (up - down) / total
    half = Z95 * math.sqrt((up + down) - (up - down) ** 2 / total) / total
    points = 100.0 * (gained - lost) / count
    return Gain(
        points,
        max(-100.0, min(points, 100.0 * (centre - half))),
        min(100.0, max(points, 100.0 * (centre + half))),
        count,
    )


def gain_between(before: Iterable[Attempt], after: Iterable[Attempt]) -> Gain:
    """The paired gain over the problems that were scored both times."""
    first = {a.problem.id: a.correct for a in before if a.correct is not None}
    second = {a.problem.id: a.correct for a in after if a.correct is not None}
    shared = [key for key in first if key in second]
    return paired_gain([first[key] for key in shared], [second[key] for key in shared])


def report_on(attempts: Sequence[Attempt], name: str = "all") -> Report:
    """Accuracy over `attempts`, sliced by skill and below that by subskill."""
    return _report(attempts, name, ("skill", "subskill"))


def _report(attempts: Sequence[Attempt], name: str, levels: tuple[str, ...]) -> Report:
    scored = [a.correct for a in attempts if a.correct is not None]
    failures = Counter(str(a.outcome.cause) for a in attempts if isinstance(a.outcome, Failure))
    slices: tuple[Report, ...] = ()
    if levels:
        groups: dict[str, list[Attempt]] = {}
        for attempt in attempts:
            groups.setdefault(getattr(attempt.problem, levels[0]), []).append(attempt)
        if set(groups) != {""}:
            slices = tuple(_report(group, key, levels[1:]) for key, group in sorted(groups.items()))
    correct = sum(scored)
    low, high = wilson_interval(correct, len(scored))
    return Report(
        name=name,
        accuracy=correct / len(scored) if scored else None,
        low=low,
        high=high,
        count=len(scored),
        correct=correct,
        failures=dict(sorted(failures.items())),
        slices=slices,
    )


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean with its 95 % interval over `count` values; the interval of fewer than two is unbounded."""

    value: float
    low: float
    high: float
    count: int


def mean_interval(values: Sequence[float]) -> Mean:
    """The mean of `values` with Student's 95 % interval.

    >>> found = mean_interval([1.0, 2.0, 3.0, 4.0])
    >>> round(found.value, 2), round(found.low, 2), round(found.high, 2)
    (2.5, 0.45, 4.55)
    """
    count = len(values)
    if count == 0:
        return Mean(math.nan, -math.inf, math.inf, 0)
    mean = math.fsum(values) / count
    if count == 1:
        return Mean(mean, -math.inf, math.inf, 1)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    half = _t95(count - 1) * deviation / math.sqrt(count)
    return Mean(mean, mean - half, mean + half, count)


_T95_SMALL = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706)


def _t95(freedom: int) -> float:
    """The 97.5 % quantile of Student's t: a table for the first, then the expansion in 1/freedom."""
    if freedom <= len(_T95_SMALL):
        return _T95_SMALL[freedom - 1]
    z, v = Z95, freedom
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    )
