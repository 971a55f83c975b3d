"""Performance profiles and the area under them (AUP): one number per method over many tasks.

Scores of different tasks have different units, so a method is measured on each task by its ratio to the best method.
Its profile gives, for every threshold, the fraction of tasks on which it is within that factor of the best (Dolan and
Moré, 2002). The conventions are those of MLGym (arXiv 2502.14499), so that results are comparable:

- The baseline is one of the methods.
- A method is feasible on a task if its score is not worse than the baseline. A negative score is never feasible, even
if it beats a negative baseline, because it has no ratio. Use metrics that are not negative: only if the baseline itself
is feasible can a better score never reduce the area.
- An infeasible method, or one without a score, gets 1.05 times the worst feasible ratio.
- Thresholds are common logarithms of ratios. They end at the largest of these penalties over all tasks, rounded up to a
whole number; its logarithm is rounded up to a tenth.
- The area is the sum over 500 equally spaced thresholds, each with the height at its left end.

Where MLGym divides by zero: a score of 0 has a ratio only to another 0 (it is 1). Otherwise it is infeasible if higher
is better, and makes all others infeasible if lower is better. On a task without a feasible method, all ratios are
infinite; the task counts in the fraction and moves no threshold.

An area depends on the set of tasks and methods that are compared; it means nothing by itself.

Axes: T tasks, M methods, P thresholds. Functions of scores or ratios accept further leading axes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Marks = NDArray[np.bool_]

PENALTY = 1.05
"""The factor on the worst feasible ratio for infeasible methods."""
POINTS = 500
"""Thresholds of the published area. The sum is below the exact area by at most one threshold distance."""


class Ratios(NamedTuple):
    """How many times worse than the best each method is.

    Arguments:
        ratios_TM: 1 for the best, larger for the others; infinite on a task without a feasible method.
        feasible_TM: whether the ratio is the method's own rather than the penalty.
        penalty_T: the ratio of infeasible methods, whether or not there is one.
    """

    ratios_TM: Floats
    feasible_TM: Marks
    penalty_T: Floats


def performance_ratios(scores_TM: Floats, baseline_T: Floats, higher_T: Marks) -> Ratios:
    """Return the ratio of every method to the best feasible one of each task.

    Arguments:
        scores_TM: NaN for a method without a score. Include the baseline as a method to compare with it.
        baseline_T: the scores that feasible methods must reach.
        higher_T: whether higher scores are better.

    >>> scores = np.array([[0.9, 0.6, 0.3, np.nan]])
    >>> result = performance_ratios(scores, np.array([0.5]), np.array([True]))
    >>> result.ratios_TM.round(3).tolist(), result.feasible_TM.tolist()
    ([[1.0, 1.5, 1.575, 1.575]], [[True, True, False, False]])
    """
    higher, baseline = higher_T[:, None], baseline_T[:, None]
    allowed = np.where(higher, scores_TM >= baseline, scores_TM <= baseline) & (scores_TM >= 0)
    outside = np.where(higher, -np.inf, np.inf)
    candidates = np.where(allowed, scores_TM, outside)
    best = np.where(higher, candidates.max(-1, keepdims=True), candidates.min(-1, keepdims=True))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratios = np.where(higher, best / scores_TM, scores_TM / best)
    ratios = np.where(scores_TM == best, 1.0, ratios)
    feasible = allowed & np.isfinite(ratios)
    worst = np.where(feasible, ratios, -np.inf).max(-1)
    penalty = np.where(np.isfinite(worst), PENALTY * worst, np.inf)
    return Ratios(np.where(feasible, ratios, penalty[..., None]), feasible, penalty)


def threshold_limit(penalty_T: Floats) -> float:
    """Return the end of the thresholds (`tau_max`) from the penalties of all tasks of the profiles that share an axis.

    >>> threshold_limit(np.array([1.2, 14.07]))
    1.2
    """
    known = penalty_T[np.isfinite(penalty_T)]
    largest = math.ceil(known.max()) if known.size else math.ceil(PENALTY)
    return math.ceil(math.log10(largest) * 10) / 10


def profile(ratios_TM: Floats, thresholds_P: Floats) -> Floats:
    """Return the fraction of tasks on which each method is within `10 ** threshold` of the best, as `fractions_MP`.

    >>> profile(np.array([[1.0, 2.0], [1.0, 1.0]]), np.array([0.0, 0.5])).tolist()
    [[1.0, 1.0], [0.5, 1.0]]
    """
    fractions: Floats = (np.log10(ratios_TM)[..., None] <= thresholds_P).mean(-3)
    return fractions


def area_under_profile(ratios_TM: Floats, limit: float, points: int | None = POINTS) -> Floats:
    """Return the area under each method's profile from 0 to `limit`, as `areas_M`. It is at most `limit`.

    Arguments:
        limit: the end of the thresholds (`threshold_limit`).
        points: the number of thresholds of the sum; `None` for the exact area.

    >>> area_under_profile(np.array([[1.0, 10.0]]), 2.0, points=None).tolist()
    [2.0, 1.0]
    """
    logarithms = np.log10(ratios_TM)
    areas: Floats
    if points is None:
        areas = np.maximum(limit - logarithms, 0.0).mean(-2)
        return areas
    # A task counts from the first threshold that covers its ratio; the last threshold begins no step.
    first = np.searchsorted(np.linspace(0.0, limit, points), logarithms.ravel(), side="left").reshape(logarithms.shape)
    steps = np.maximum(points - 1 - first, 0)
    areas = steps.mean(-2) * (limit / (points - 1))
    return areas
