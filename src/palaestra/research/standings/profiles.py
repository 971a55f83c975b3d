"""Performance profiles and the area under them (AUP): many methods on many tasks, in one figure each.

Scores of different tasks have different units, so a method is judged on each task by its ratio to the best method
there. Its profile says, for every threshold, on which share of the tasks it is within that factor of the best
(Dolan and Moré, 2002). The conventions are those of MLGym (arXiv 2502.14499), so that figures can be compared:

- The baseline is a method among the others.
- A method is feasible on a task if its score is not worse than the baseline. A negative score is never feasible, even
  where it beats a negative baseline: there is no ratio to it. A task for profiles has a metric that is not negative:
  only where the baseline is feasible itself can a better score never make the area smaller.
- A method that is not feasible, or has no score, has 1.05 times the worst ratio of those that are.
- The thresholds end at the largest of those 1.05-fold ratios over all tasks, rounded up to a whole number, of which the
  common logarithm is rounded up to a tenth.
- The area is the sum over 500 thresholds at equal distances, each with the height at its left end.

Where MLGym divides by zero: a score of 0 has a ratio only to another 0 (it is 1); otherwise it is not feasible where
higher is better, and makes all others infeasible where lower is. On a task on which nobody is feasible nobody is
within any factor of the best: its ratios are infinite, it counts in the share, and it moves no threshold.

An area says nothing by itself: it depends on the tasks and on the set of methods that are compared.

Axes: T tasks, M methods, P thresholds. What takes scores or ratios also takes them with further axes before these.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Marks = NDArray[np.bool_]

PENALTY = 1.05
"""What the worst feasible ratio is multiplied with, for those that are not feasible."""
POINTS = 500
"""Thresholds of the published area. The sum over them is below the exact area, by up to one of their distances."""


class Ratios(NamedTuple):
    """How many times worse than the best each method is.

    Arguments:
        ratios_TM: 1 for the best and above it for the others; infinite where nobody is feasible.
        feasible_TM: whether the ratio is the method's own, and not the penalty.
        penalty_T: what those that are not feasible have, whether or not there is one.
    """

    ratios_TM: Floats
    feasible_TM: Marks
    penalty_T: Floats


def performance_ratios(scores_TM: Floats, baseline_T: Floats, higher_T: Marks) -> Ratios:
    """The ratio of every method to the best feasible one of each task.

    Arguments:
        scores_TM: NaN where a method has no score. The baseline is one of the methods if it is to be compared with.
        baseline_T: what a method must not be worse than.
        higher_T: whether a higher score is better.

    >>> scores = np.array([[0.9, 0.6, 0.3, np.nan]])
    >>> found = performance_ratios(scores, np.array([0.5]), np.array([True]))
    >>> found.ratios_TM.round(3).tolist(), found.feasible_TM.tolist()
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
    """Where the thresholds end (`tau_max`), from the penalties of all tasks, and of all profiles that share the axis.

    >>> threshold_limit(np.array([1.2, 14.07]))
    1.2
    """
    known = penalty_T[np.isfinite(penalty_T)]
    largest = math.ceil(known.max()) if known.size else math.ceil(PENALTY)
    return math.ceil(math.log10(largest) * 10) / 10


def profile(ratios_TM: Floats, thresholds_P: Floats) -> Floats:
    """The share of tasks on which each method is within the factor `10 ** threshold` of the best, as `shares_MP`.

    >>> profile(np.array([[1.0, 2.0], [1.0, 1.0]]), np.array([0.0, 0.5])).tolist()
    [[1.0, 1.0], [0.5, 1.0]]
    """
    shares: Floats = (np.log10(ratios_TM)[..., None] <= thresholds_P).mean(-3)
    return shares


def area_under_profile(ratios_TM: Floats, limit: float, points: int | None = POINTS) -> Floats:
    """The area under each method's profile from 0 to `limit`, as `areas_M`: at most `limit`, if always the best.

    Arguments:
        limit: where the thresholds end (`threshold_limit`).
        points: of the sum that stands for the area; `None` for the exact area of the steps.

    >>> area_under_profile(np.array([[1.0, 10.0]]), 2.0, points=None).tolist()
    [2.0, 1.0]
    """
    logarithms = np.log10(ratios_TM)
    areas: Floats
    if points is None:
        areas = np.maximum(limit - logarithms, 0.0).mean(-2)
        return areas
    if points < 2:
        raise ValueError(f"the area is a sum over two thresholds or more; got {points}")
    # A task is counted from the first threshold that its ratio is within; the last one begins no step.
    first = np.searchsorted(np.linspace(0.0, limit, points), logarithms.ravel(), side="left").reshape(logarithms.shape)
    steps = np.maximum(points - 1 - first, 0)
    areas = steps.mean(-2) * (limit / (points - 1))
    return areas
