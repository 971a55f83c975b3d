"""Tests of paired differences over a few runs, such as the seeds of a study."""

from __future__ import annotations

import math
from collections.abc import Sequence


def t_test(differences: Sequence[float]) -> float | None:
    """The two-sided p-value of Student's paired t-test; `None` for fewer than two differences.

    It is below 0.05 exactly where the interval of `mean_interval` excludes 0.

    >>> round(t_test([1.0, 2.0, 3.0, 4.0]), 4)
    0.0305
    >>> t_test([0.0, 0.0]), t_test([1.0, 1.0]), t_test([1.0])
    (1.0, 0.0, None)
    """
    count = len(differences)
    if count < 2:
        return None
    mean = math.fsum(differences) / count
    error = math.sqrt(math.fsum((value - mean) ** 2 for value in differences) / (count - 1) / count)
    if not error:
        return 0.0 if mean else 1.0
    return max(0.0, 1.0 - _within(abs(mean) / error, count - 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values of several tests, adjusted so that all of them together are wrong as rarely as one (Holm, 1979).

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    adjusted, least = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = least
    return adjusted


def _within(t: float, freedom: int) -> float:
    """The chance that Student's t lies between -t and t: the finite series that there is for whole degrees of freedom."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    # Terms in cos^2: 1, 1/2, 1*3/(2*4), ... for even degrees; cos, 2/3 cos^3, ... for odd ones.
    term, total = (cosine, 0.0) if odd else (1.0, 0.0)
    for k in range(freedom // 2):
        total += term
        term *= cosine**2 * ((2 * k + 2) / (2 * k + 3) if odd else (2 * k + 1) / (2 * k + 2))
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
