"""Intervals for rates, means and paired gains, and the report of a set of attempts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from palaestra.core.records import Attempt, Failure, Majority, Problem, Report

Z95 = 1.959963984540054
CUTS = ("level", "type")
"""What a problem's metadata may say of it, and a report is cut by, across the skills."""
YES_NO = ("yes", "no"), ("true", "false")
"""References that are taken for a closed set of answers, where the problem's metadata name no `choices`."""


def wilson_interval(correct: float, count: float) -> tuple[float, float]:
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


def cluster_interval(counts: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """The 95 % interval of a rate over clusters of answers, given `(correct, answers)` of each.

    A cluster holds the answers to one problem, and to its rewordings. They resemble each other. Wilson's interval is taken
    at the count of independent answers that would vary as much as these do between clusters: at least the number of
    clusters, at most that of answers.

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


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """The chance that at least one of `k` answers is right, from `samples` of which `passed` were.

    Unbiased (Chen et al., 2021): one minus the share of the draws of `k` that hold no right answer.

    >>> pass_at_k(10, 3, 1), round(pass_at_k(10, 3, 5), 4)
    (0.3, 0.9167)
    """
    if not 0 <= passed <= samples or not 1 <= k <= samples:
        raise ValueError(f"pass@k needs 0 <= passed <= samples and 1 <= k <= samples; got {passed}, {samples}, {k}")
    draws = math.comb(samples, k)
    return (draws - math.comb(samples - passed, k)) / draws


def mean_pass_at_k(counts: Sequence[tuple[int, int]], k: int, clusters: Sequence[str] = ()) -> Mean:
    """Pass@k over problems, given `(passed, samples)` of each; those with fewer than `k` samples are left out.

    Arguments:
        clusters: see `rate_interval`.

    Raises:
        ValueError: a count makes no sense.
    """
    enough = [place for place, (_, samples) in enumerate(counts) if samples >= k]
    values = [pass_at_k(counts[place][1], counts[place][0], k) for place in enough]
    return rate_interval(values, [clusters[place] for place in enough] if clusters else ())


@dataclass(frozen=True, slots=True)
class Gain:
    """A change of accuracy in points (percent), measured on the same problems, with its interval."""

    points: float
    low: float
    high: float
    count: int


def compute_paired_gain(before: Sequence[float], after: Sequence[float], clusters: Sequence[str] = ()) -> Gain:
    """How much `after` is above `before`, problem by problem, with a 95 % interval.

    A problem's value is whether it was solved, or the share of its answers that were right. The interval is Agresti
    and Min's: half a problem is added to each of the four cells of the paired table, which keeps the coverage right
    for small counts and for changes near 0 or 100 %. For shares the same sums are taken.

    Arguments:
        clusters: what each problem belongs to, where some differ only in wording. The interval is then that of as many
            independent problems as would vary as much; at least the number of clusters.

    Raises:
        ValueError: the two do not have the same length.
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
    centre = change / total
    half = Z95 * math.sqrt(squares - change**2 / total) / total
    return Gain(
        points,
        max(-100.0, min(points, 100.0 * (centre - half))),
        min(100.0, max(points, 100.0 * (centre + half))),
        count,
    )


def _design_effect(values: Sequence[float], clusters: Sequence[str]) -> float:
    """How many times the variance of the mean is that of independent values: from 1 to the mean size of a cluster."""
    mean = math.fsum(values) / len(values)
    sums: dict[str, float] = {}
    for value, cluster in zip(values, clusters, strict=True):
        sums[cluster] = sums.get(cluster, 0.0) + value - mean
    largest = len(values) / len(sums)
    spread = math.fsum((value - mean) ** 2 for value in values)
    return min(max(math.fsum(s * s for s in sums.values()) / spread, 1.0), largest) if spread > 0 else largest


def measure_gain(before: Iterable[Attempt], after: Iterable[Attempt]) -> Gain:
    """The paired gain over the problems that were scored both times."""
    first = {a.problem.id: a for a in before if a.correct is not None}
    second = {a.problem.id: a.correct for a in after if a.correct is not None}
    shared = [attempt for key, attempt in first.items() if key in second]
    return compute_paired_gain(
        [bool(attempt.correct) for attempt in shared],
        [bool(second[attempt.problem.id]) for attempt in shared],
        [get_cluster(attempt.problem) for attempt in shared],
    )


def report_on(attempts: Sequence[Attempt], name: str = "all") -> Report:
    """Accuracy over `attempts`, sliced by skill and below that by subskill."""
    return _report(attempts, name, ("skill", "subskill"))


def slice_by_metadata(attempts: Sequence[Attempt]) -> Mapping[str, tuple[Report, ...]]:
    """Accuracy by level and by type, across the skills, as far as the problems' metadata tell them."""
    found: dict[str, tuple[Report, ...]] = {}
    for cut in CUTS:
        groups: dict[str, list[Attempt]] = {}
        for attempt in attempts:
            if (value := attempt.problem.metadata.get(cut)) is not None:
                groups.setdefault(str(value), []).append(attempt)
        if groups:
            found[cut] = tuple(_report(group, key, ()) for key, group in sorted(groups.items()))
    return found


def get_cluster(problem: Problem) -> str:
    """What a problem is counted with in an interval: the problems that differ from it only in wording."""
    return str(problem.metadata.get("content") or problem.id)


def count_by_problem(attempts: Iterable[Attempt]) -> Mapping[str, tuple[int, int]]:
    """`(correct, answers)` of every problem with an answer that was scored."""
    return _count_by(attempts, lambda problem: problem.id)


def _count_by(attempts: Iterable[Attempt], name: Callable[[Problem], str]) -> Mapping[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for attempt in attempts:
        if attempt.correct is not None:
            correct, count = found.get(name(attempt.problem), (0, 0))
            found[name(attempt.problem)] = correct + attempt.correct, count + 1
    return found


def find_majority(problems: Collection[Problem]) -> Majority | None:
    """The most common reference of `problems`; `None` where one of them has an open answer.

    The possible answers of a problem are its metadata's `choices`, or yes and no, or true and false.
    """
    kinds: dict[tuple[str, ...], Counter[str]] = {}
    for problem in problems:
        reference = problem.reference.strip().lower()
        choices = tuple(problem.metadata.get("choices") or next((pair for pair in YES_NO if reference in pair), ()))
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
    """The message of the first failure of each cause, by cause."""
    found: dict[str, str] = {}
    for attempt in attempts:
        if isinstance(attempt.outcome, Failure):
            found.setdefault(str(attempt.outcome.cause), attempt.outcome.message)
    return dict(sorted(found.items()))


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


def rate_interval(values: Sequence[float], clusters: Sequence[str] = ()) -> Mean:
    """The mean of `values` that lie between 0 and 1, with a 95 % interval that stays there.

    Where the values are 0 and 1 it is Wilson's. Values between them vary less: Wilson's is then taken at the count of
    zeros and ones whose mean would vary as little.

    Arguments:
        clusters: what each value belongs to, where some are not independent; as in `compute_paired_gain`.
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
