"""Intervals, paired tests, reports of attempts, and comparisons of two models on the same problems.

The first half is about numbers, the second half about `Attempt` records.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from palaestra.core.records import Attempt, Failure, Majority, Problem, Report

_Z95 = 1.959963984540054
_METADATA_SLICES = ("level", "type")
"""Metadata of a problem by which reports are sliced across skills."""
_YES_NO = ("yes", "no"), ("true", "false")
"""References that count as a closed set of answers, if the problem's metadata have no `choices`."""
_MAX_DENOMINATOR = 5040
"""Resolution of `sign_flip_test`. Fractions of up to ten answers are exact."""
_T95_SMALL = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706)


# Intervals


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean with its 95 % interval over `count` values. The interval of fewer than two values is unbounded."""

    value: float
    low: float
    high: float
    count: int


def wilson_interval(correct: float, count: float) -> tuple[float, float]:
    """The 95 % Wilson interval of a rate; (0, 1) for a count of 0.

    >>> low, high = wilson_interval(8, 10)
    >>> round(low, 3), round(high, 3)
    (0.49, 0.943)
    """
    if count == 0:
        return 0.0, 1.0
    rate, z2 = correct / count, _Z95**2
    center = (rate + z2 / (2 * count)) / (1 + z2 / count)
    half = _Z95 * math.sqrt(rate * (1 - rate) / count + z2 / (4 * count**2)) / (1 + z2 / count)
    # Rounding must not push a rate of 0 or 1 out of its own interval.
    return max(0.0, min(rate, center - half)), min(1.0, max(rate, center + half))


def cluster_interval(counts: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """The 95 % interval of a rate over clusters of answers, given `(correct, answers)` of each cluster.

    A cluster contains the answers to one problem and to its rewordings, which are not independent. The interval is Wilson's
    at the effective count: the number of independent answers with the same variance, at least the number of clusters and
    at most the number of answers.

    >>> cluster_interval([(1, 1), (0, 1), (1, 1)]) == wilson_interval(2, 3)
    True
    """
    correct, count = sum(c for c, _ in counts), sum(n for _, n in counts)
    clusters = sum(1 for _, n in counts if n)
    if count == clusters:
        return wilson_interval(correct, count)
    rate = correct / count
    spread = math.fsum((c - rate * n) ** 2 for c, n in counts)
    effective = float(clusters)
    if 0 < rate < 1 and clusters > 1:
        variance = spread / count**2 * clusters / (clusters - 1)
        effective = min(max(rate * (1 - rate) / variance, clusters), count) if variance else float(count)
    return wilson_interval(rate * effective, effective)


def mean_interval(
    values: Sequence[float], low: float = -math.inf, high: float = math.inf, clusters: Sequence[str] = ()
) -> Mean:
    """The mean of `values` with Student's 95 % interval.

    Arguments:
        low, high: the range of the values; the interval does not leave it.
        clusters: the cluster of each value, if some are not independent; as in `compute_paired_gain`.

    >>> mean = mean_interval([1.0, 2.0, 3.0, 4.0])
    >>> round(mean.value, 2), round(mean.low, 2), round(mean.high, 2)
    (2.5, 0.45, 4.55)
    """
    count = len(values)
    if count == 0:
        return Mean(math.nan, low, high, 0)
    mean = math.fsum(values) / count
    freedom = (len(set(clusters)) if clusters else count) - 1
    if freedom == 0:
        return Mean(mean, low, high, count)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    factor = _design_effect(values, clusters) if clusters else 1.0
    half = _t95(freedom) * deviation * math.sqrt(factor / count)
    return Mean(mean, max(low, mean - half), min(high, mean + half), count)


def rate_interval(values: Sequence[float], clusters: Sequence[str] = ()) -> Mean:
    """The mean of `values` from 0 to 1, with a 95 % interval within 0 and 1.

    The interval of zeros and ones is Wilson's. Values between 0 and 1 vary less; their interval is Wilson's at the count
    of zeros and ones with the same variance of the mean.

    Arguments:
        clusters: the cluster of each value, if some are not independent; as in `compute_paired_gain`.
    """
    count = len(values)
    if count == 0:
        return Mean(math.nan, 0.0, 1.0, 0)
    mean = math.fsum(values) / count
    variance = math.fsum((value - mean) ** 2 for value in values) / count
    effective = max(mean * (1 - mean) / variance, 1.0) * count if variance > 0 else float(count)
    effective /= _design_effect(values, clusters) if clusters else 1.0
    low, high = wilson_interval(mean * effective, effective)
    return Mean(mean, low, high, count)


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """The probability that at least one of `k` answers is right, given that `passed` of `samples` were.

    This is the unbiased estimate of Chen et al. (2021).

    >>> pass_at_k(10, 3, 1), round(pass_at_k(10, 3, 5), 4)
    (0.3, 0.9167)
    """
    if not 0 <= passed <= samples or not 1 <= k <= samples:
        raise ValueError(f"pass@k needs 0 <= passed <= samples and 1 <= k <= samples; got {passed}, {samples}, {k}")
    draws = math.comb(samples, k)
    return (draws - math.comb(samples - passed, k)) / draws


def mean_pass_at_k(counts: Sequence[tuple[int, int]], k: int, clusters: Sequence[str] = ()) -> Mean:
    """Pass@k over problems, given `(passed, samples)` of each. Problems with fewer than `k` samples are left out.

    Arguments:
        clusters: see `rate_interval`.

    Raises:
        ValueError: more passed than samples, or a negative count.
    """
    enough = [place for place, (_, samples) in enumerate(counts) if samples >= k]
    values = [pass_at_k(counts[place][1], counts[place][0], k) for place in enough]
    return rate_interval(values, [clusters[place] for place in enough] if clusters else ())


def _design_effect(values: Sequence[float], clusters: Sequence[str]) -> float:
    """The variance of the mean relative to independent values: from 1 to the mean size of a cluster."""
    mean = math.fsum(values) / len(values)
    sums: dict[str, float] = {}
    for value, cluster in zip(values, clusters, strict=True):
        sums[cluster] = sums.get(cluster, 0.0) + value - mean
    largest = len(values) / len(sums)
    spread = math.fsum((value - mean) ** 2 for value in values)
    return min(max(math.fsum(s * s for s in sums.values()) / spread, 1.0), largest) if spread > 0 else largest


def _t95(freedom: int) -> float:
    """The 97.5 % quantile of Student's t: a table for the first values, then the expansion in 1/freedom."""
    if freedom <= len(_T95_SMALL):
        return _T95_SMALL[freedom - 1]
    z, v = _Z95, freedom
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    )


# Paired differences


@dataclass(frozen=True, slots=True)
class Gain:
    """A change of accuracy in percentage points on the same problems, with its 95 % interval."""

    points: float
    low: float
    high: float
    count: int


def compute_paired_gain(before: Sequence[float], after: Sequence[float], clusters: Sequence[str] = ()) -> Gain:
    """Compute how much `after` is above `before`, problem by problem, with a 95 % interval.

    A value is whether the problem was solved, or the fraction of its answers that were right. The interval is Agresti
    and Min's, which adds half a problem to each of the four cells of the paired table. This keeps the coverage right for
    small counts and for changes near 0 or 100 %.

    Arguments:
        clusters: the cluster of each problem, if some differ only in wording. The interval then uses the
            number of independent problems with the same variance, at least the number of clusters.

    Raises:
        ValueError: the lengths differ.
    """
    if len(before) != len(after):
        raise ValueError(f"paired gains need equal lengths; got {len(before)} and {len(after)}")
    count = len(before)
    if count == 0:
        return Gain(0.0, -100.0, 100.0, 0)
    changes = [float(a) - float(b) for b, a in zip(before, after, strict=True)]
    points = 100.0 * math.fsum(changes) / count
    factor = _design_effect(changes, clusters) if clusters else 1.0
    change, squares = math.fsum(changes) / factor, math.fsum(c * c for c in changes) / factor + 1.0
    total = count / factor + 2.0
    center = change / total
    half = _Z95 * math.sqrt(squares - change**2 / total) / total
    low, high = 100.0 * (center - half), 100.0 * (center + half)
    return Gain(points, max(-100.0, min(points, low)), min(100.0, max(points, high)), count)


def t_test(differences: Sequence[float]) -> float | None:
    """The two-sided p-value of Student's paired t-test; `None` for fewer than two differences.

    It is below 0.05 exactly if the interval of `mean_interval` excludes 0.

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
    return max(0.0, 1.0 - _t_probability_within(abs(mean) / error, count - 1))


def _t_probability_within(t: float, freedom: int) -> float:
    """The probability that Student's t is between -t and t, by the finite series for integer degrees of freedom."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    # Terms in cos^2: 1, 1/2, 1*3/(2*4), ... for even degrees; cos, 2/3 cos^3, ... for odd ones.
    term, total = (cosine, 0.0) if odd else (1.0, 0.0)
    for k in range(freedom // 2):
        total += term
        term *= cosine**2 * ((2 * k + 2) / (2 * k + 3) if odd else (2 * k + 1) / (2 * k + 2))
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def sign_flip_test(changes: Sequence[Fraction]) -> float:
    """The two-sided p-value of paired changes under the null hypothesis that each change had a random sign.

    The test is exact: the whole distribution of the sum is computed. For changes of -1, 0 and 1 it is McNemar's exact
    test.

    >>> sign_flip_test([Fraction(1)] * 6)
    0.03125
    >>> sign_flip_test([Fraction(1), Fraction(-1), Fraction(0)])
    1.0
    """
    scale = min(math.lcm(*(change.denominator for change in changes)), _MAX_DENOMINATOR) if changes else 1
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


def fisher_test(first: tuple[int, int], second: tuple[int, int]) -> float:
    """The one-sided p-value of Fisher's exact test that the first rate is higher, given `(successes, count)` of both.

    >>> round(fisher_test((3, 3), (0, 3)), 3), fisher_test((0, 5), (2, 5))
    (0.05, 1.0)
    """
    (a, n), (b, m) = first, second
    ways = [math.comb(n, k) * math.comb(m, a + b - k) for k in range(min(n, a + b) + 1)]
    return sum(ways[a:]) / math.comb(n + m, a + b)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust the p-values of several tests for multiple comparisons (Holm, 1979).

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    adjusted, minimum = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        minimum = max(minimum, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = minimum
    return adjusted


# Reports of attempts


def report_on(attempts: Sequence[Attempt], name: str = "all") -> Report:
    """Report the accuracy of `attempts`, sliced by skill and subskill."""
    return _report(attempts, name, ("skill", "subskill"))


def slice_by_metadata(attempts: Sequence[Attempt]) -> Mapping[str, tuple[Report, ...]]:
    """Report the accuracy by level and by type, if the problems' metadata contain them."""
    slices: dict[str, tuple[Report, ...]] = {}
    for name in _METADATA_SLICES:
        groups: dict[str, list[Attempt]] = {}
        for attempt in attempts:
            if (value := attempt.problem.metadata.get(name)) is not None:
                groups.setdefault(str(value), []).append(attempt)
        if groups:
            slices[name] = tuple(_report(group, key, ()) for key, group in sorted(groups.items()))
    return slices


def get_cluster(problem: Problem) -> str:
    """The cluster of a problem in an interval. Problems that differ only in wording share one."""
    return str(problem.metadata.get("content") or problem.id)


def count_by_problem(attempts: Iterable[Attempt]) -> Mapping[str, tuple[int, int]]:
    """Count `(correct, answers)` of every problem that has a scored answer."""
    return _count_by(attempts, lambda problem: problem.id)


def _count_by(attempts: Iterable[Attempt], key: Callable[[Problem], str]) -> Mapping[str, tuple[int, int]]:
    counts: dict[str, tuple[int, int]] = {}
    for attempt in attempts:
        if attempt.correct is not None:
            correct, count = counts.get(key(attempt.problem), (0, 0))
            counts[key(attempt.problem)] = correct + attempt.correct, count + 1
    return counts


def find_majority(problems: Collection[Problem]) -> Majority | None:
    """Find the most common reference of `problems`; `None` if one of them has an open answer.

    The possible answers of a problem are its metadata's `choices`, or yes and no, or true and false.
    """
    kinds: dict[tuple[str, ...], Counter[str]] = {}
    for problem in problems:
        reference = problem.reference.strip().lower()
        choices = tuple(problem.metadata.get("choices") or next((pair for pair in _YES_NO if reference in pair), ()))
        if not choices:
            return None
        kinds.setdefault(choices, Counter())[reference] += 1
    if not kinds:
        return None
    common = [counter.most_common(1)[0] for counter in kinds.values()]
    return Majority(common[0][0] if len(common) == 1 else "", sum(count for _, count in common), len(problems))


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
    low, high = cluster_interval(list(_count_by(attempts, get_cluster).values()))
    return Report(
        name=name,
        accuracy=correct / len(scored) if scored else None,
        low=low,
        high=high,
        count=len(scored),
        correct=correct,
        failures=dict(sorted(failures.items())),
        slices=slices,
        majority=find_majority({a.problem.id: a.problem for a in attempts if a.correct is not None}.values()),
    )


def first_failures(attempts: Iterable[Attempt]) -> dict[str, str]:
    """Return the message of the first failure of each cause."""
    messages: dict[str, str] = {}
    for attempt in attempts:
        if isinstance(attempt.outcome, Failure):
            messages.setdefault(str(attempt.outcome.cause), attempt.outcome.message)
    return dict(sorted(messages.items()))


# Two or more measurements on the same problems


def measure_gain(before: Iterable[Attempt], after: Iterable[Attempt]) -> Gain:
    """Measure the paired gain over the problems that were scored both times."""
    first = {a.problem.id: a for a in before if a.correct is not None}
    second = {a.problem.id: a.correct for a in after if a.correct is not None}
    shared = [attempt for key, attempt in first.items() if key in second]
    return compute_paired_gain(
        [bool(attempt.correct) for attempt in shared],
        [bool(second[attempt.problem.id]) for attempt in shared],
        [get_cluster(attempt.problem) for attempt in shared],
    )


def is_better(attempts: Sequence[Attempt], best: Sequence[Attempt]) -> bool:
    """Whether `attempts` have a higher accuracy than `best` over the problems that were scored both times.

    Problems that failed in one measurement are left out, so losing hard problems does not make a measurement better. A
    measurement with scores is better than one without.
    """
    gain = measure_gain(best, attempts)
    if gain.count:
        return gain.points > 0
    return any(a.correct is not None for a in attempts) and all(a.correct is None for a in best)


def find_best(measurements: Sequence[Sequence[Attempt]]) -> int:
    """Return the index of the best of several measurements; the first in a tie."""
    best = 0
    for index, attempts in enumerate(measurements):
        if index and is_better(attempts, measurements[best]):
            best = index
    return best


@dataclass(frozen=True, slots=True)
class Comparison:
    """Compares a second model with a first, over the problems that both have a score for.

    Arguments:
        first, second: the reports of those problems.
        gain: the second's accuracy minus the first's, in points.
        p_value: the result of `sign_flip_test`.
        better, worse: number of problems that the second solved more often, and less often.
        parts: the same for each skill.
        unpaired: number of problems with a score of one model only, by reason.
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
    """Compare two sets of attempts problem by problem. A problem that failed in one set is left out of both."""
    shared = set(count_by_problem(first)) & set(count_by_problem(second))
    left = [attempt for attempt in first if attempt.problem.id in shared]
    right = [attempt for attempt in second if attempt.problem.id in shared]
    skills = sorted({attempt.problem.skill for attempt in left} - {""})
    parts: tuple[Comparison, ...] = ()
    if len(skills) > 1:
        parts = tuple(_compare(_select(left, skill), _select(right, skill), skill) for skill in skills)
    return _compare(left, right, name, parts, _count_unpaired(first, second, shared))


@dataclass(frozen=True, slots=True)
class SkillChange:
    """The change of one skill between two measurements, tested together with the other skills.

    Arguments:
        gain: in points, paired by problem.
        p_value: the result of `sign_flip_test`.
        adjusted: the p-value adjusted for the number of skills (Holm).
    """

    skill: str
    gain: Gain
    p_value: float
    adjusted: float

    @property
    def fell(self) -> bool:
        """Whether the skill is lower than before, beyond chance at the 5 % level over all skills."""
        return self.gain.points < 0 and self.adjusted < 0.05


def measure_changes(before: Sequence[Attempt], after: Sequence[Attempt]) -> list[SkillChange]:
    """Measure the change of every skill, sorted from the largest fall to the largest gain."""
    whole = compare(before, after)
    parts = [part for part in whole.parts or (whole,) if part.gain.count]
    adjusted = holm([part.p_value for part in parts])
    name = next((attempt.problem.skill for attempt in before), "")
    changes = [
        SkillChange(part.name if whole.parts else name, part.gain, part.p_value, p)
        for part, p in zip(parts, adjusted, strict=True)
    ]
    return sorted(changes, key=lambda change: change.gain.points)


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
    by_cluster: dict[str, Fraction] = {}
    for cluster, change in zip(clusters, changes, strict=True):
        by_cluster[cluster] = by_cluster.get(cluster, Fraction(0)) + change
    return Comparison(
        name=name,
        first=report_on(first, name),
        second=report_on(second, name),
        gain=compute_paired_gain([float(rate) for rate in before], [float(rate) for rate in after], clusters),
        p_value=sign_flip_test(list(by_cluster.values())),  # Rewordings of one problem flip their sign together.
        better=sum(change > 0 for change in changes),
        worse=sum(change < 0 for change in changes),
        parts=parts,
        unpaired=unpaired or {},
    )


def _select(attempts: Iterable[Attempt], skill: str) -> list[Attempt]:
    return [attempt for attempt in attempts if attempt.problem.skill == skill]


def _count_unpaired(first: Sequence[Attempt], second: Sequence[Attempt], shared: set[str]) -> dict[str, int]:
    """Count the problems without a pair by reason: asked of one model only, or failed."""
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
