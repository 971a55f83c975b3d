"""Two models on the same problems: which is better, by how much, and could it be chance?"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from palaestra.core.records import Attempt, Failure, Report
from palaestra.core.statistics import Gain, compute_paired_gain, count_by_problem, get_cluster, report_on

FINEST = 5040
"""The finest part of a problem that the test tells apart: every share of up to ten answers is exact."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The second model against the first, over the problems that both have a score for.

    Arguments:
        first, second: the reports of those problems.
        gain: the second's accuracy less the first's, in points.
        p_value: how often a difference of this size or more comes about if the two are alike (see `sign_flip_test`).
        better, worse: problems that the second solved more often, and less often.
        parts: the same for each skill.
        unpaired: problems that only one of the two has a score for, by the reason.
    """

    name: str
    first: Report
    second: Report
    gain: Gain
    p_value: float
    better: int
    worse: int
    parts: tuple[Comparison, ...] = ()
    unpaired: Mapping[str, int] = field(default_factory=dict)


def compare(first: Sequence[Attempt], second: Sequence[Attempt], name: str = "all") -> Comparison:
    """Compare two sets of attempts, problem by problem. A failure is no zero: its problem is left out of both."""
    left, right = count_by_problem(first), count_by_problem(second)
    shared = set(left) & set(right)
    one = [attempt for attempt in first if attempt.problem.id in shared]
    other = [attempt for attempt in second if attempt.problem.id in shared]
    skills = sorted({attempt.problem.skill for attempt in one} - {""})
    parts = tuple(_compare(_of(one, skill), _of(other, skill), skill) for skill in skills) if len(skills) > 1 else ()
    return _compare(one, other, name, parts, _unpaired(first, second, shared))


def sign_flip_test(changes: Sequence[Fraction]) -> float:
    """The two-sided p-value of paired changes, under the hypothesis that each could as well have had the other sign.

    Exact: the whole distribution of the sum is computed. For changes of -1, 0 and 1 it is McNemar's exact test.

    >>> sign_flip_test([Fraction(1)] * 6)
    0.03125
    >>> sign_flip_test([Fraction(1), Fraction(-1), Fraction(0)])
    1.0
    """
    scale = min(math.lcm(*(change.denominator for change in changes)), FINEST) if changes else 1
    steps = [abs(round(change * scale)) for change in changes if change]
    observed = abs(sum(round(change * scale) for change in changes))
    if not steps:
        return 1.0
    divisor = math.gcd(*steps, observed)
    steps, observed, total = [step // divisor for step in steps], observed // divisor, sum(steps) // divisor
    chances = np.zeros(2 * total + 1)
    chances[total] = 1.0
    reached = 0
    for step in steps:
        low, high = total - reached, total + reached + 1
        spread = np.zeros(high - low + 2 * step)
        spread[: high - low] += 0.5 * chances[low:high]
        spread[2 * step :] += 0.5 * chances[low:high]
        reached += step
        chances[total - reached : total + reached + 1] = spread
    sums = np.abs(np.arange(-total, total + 1))
    return min(1.0, float(chances[sums >= observed].sum()))


def _compare(
    first: Sequence[Attempt],
    second: Sequence[Attempt],
    name: str,
    parts: tuple[Comparison, ...] = (),
    unpaired: Mapping[str, int] | None = None,
) -> Comparison:
    left, right = count_by_problem(first), count_by_problem(second)
    before, after = [Fraction(*left[key]) for key in left], [Fraction(*right[key]) for key in left]
    changes = [a - b for b, a in zip(before, after, strict=True)]
    owners = {attempt.problem.id: get_cluster(attempt.problem) for attempt in first}
    clusters = [owners[key] for key in left]
    together: dict[str, Fraction] = {}
    for cluster, change in zip(clusters, changes, strict=True):
        together[cluster] = together.get(cluster, Fraction(0)) + change
    return Comparison(
        name=name,
        first=report_on(first, name),
        second=report_on(second, name),
        gain=compute_paired_gain([float(share) for share in before], [float(share) for share in after], clusters),
        p_value=sign_flip_test(list(together.values())),  # Rewordings of one problem change their sign together.
        better=sum(change > 0 for change in changes),
        worse=sum(change < 0 for change in changes),
        parts=parts,
        unpaired=unpaired or {},
    )


def _of(attempts: Iterable[Attempt], skill: str) -> list[Attempt]:
    return [attempt for attempt in attempts if attempt.problem.skill == skill]


def _unpaired(first: Sequence[Attempt], second: Sequence[Attempt], shared: set[str]) -> dict[str, int]:
    """Why problems have no pair: asked of one model only, or failed."""
    asked = [{attempt.problem.id for attempt in attempts} for attempts in (first, second)]
    failed = {a.problem.id for a in (*first, *second) if isinstance(a.outcome, Failure)}
    reasons: Counter[str] = Counter()
    for problem in (asked[0] | asked[1]) - shared:
        if problem not in asked[0]:
            reasons["asked of the second only"] += 1
        elif problem not in asked[1]:
            reasons["asked of the first only"] += 1
        elif problem in failed:
            reasons["failed"] += 1
    return dict(sorted(reasons.items()))
