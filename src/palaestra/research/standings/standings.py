"""Standings of agents over tasks: scores, ranks and performance profiles."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from palaestra.core.records import Failure
from palaestra.core.seeding import Seeds
from palaestra.research.tasks.task import Direction

Floats = NDArray[np.float64]
Marks = NDArray[np.bool_]
Groups = Mapping[tuple[str, str], Sequence["RunScore"]]
"""The runs of each task and method."""

PENALTY = 1.05
"""The factor on the worst feasible ratio for infeasible methods."""
POINTS = 500
"""Thresholds of the published area. The sum is below the exact area by at most one threshold distance."""
BASELINE = "task baseline"
"""The method that every task provides."""
_RESAMPLES = 1000
_TAIL = 0.025
"""The probability outside a 95 % interval at each end."""


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


def area_under_profile(ratios_TM: Floats, limit: float) -> Floats:
    """Return the area under each method's profile from 0 to `limit`, as `areas_M`. It is at most `limit`.

    Arguments:
        limit: the end of the thresholds (`threshold_limit`).

    >>> area_under_profile(np.array([[1.0, 10.0]]), 2.0).round(3).tolist()
    [2.0, 0.998]
    """
    logarithms = np.log10(ratios_TM)
    # A task counts from the first threshold that covers its ratio; the last threshold begins no step.
    first = np.searchsorted(np.linspace(0.0, limit, POINTS), logarithms.ravel(), side="left").reshape(logarithms.shape)
    areas: Floats = np.maximum(POINTS - 1 - first, 0).mean(-2) * (limit / (POINTS - 1))
    return areas


class Measure(StrEnum):
    """Which score represents a run."""

    ATTEMPT = "best attempt"
    """The best of its validations."""
    SUBMISSION = "best submission"
    """The score of its submission."""


@dataclass(frozen=True, slots=True)
class RunScore:
    """The scores of one run of a method on a task.

    Arguments:
        method: the agent with everything that distinguishes it from the others.
        attempts: the scores of its validations. If submissions are judged on the validation data (as in MLGym), they
            are attempts too.
        submission: the score of the submission; `None` without a valid one.
        failure: an infrastructure failure of the run. Earlier scores still count.
    """

    task: str
    method: str
    seed: int
    attempts: tuple[float, ...] = ()
    submission: float | None = None
    failure: Failure | None = None

    def value(self, measure: Measure, direction: Direction) -> float | None:
        """Return the score that represents the run; `None` without one."""
        if measure is Measure.SUBMISSION:
            return self.submission
        return (max if direction is Direction.HIGHER else min)(self.attempts, default=None)


@dataclass(frozen=True, slots=True)
class TaskScale:
    """What a task's scores are compared with.

    Arguments:
        direction: whether higher or lower scores are better.
        baseline: the baseline's score on the test split.
        validation_baseline: the baseline's score on the validation split, if it differs.
        metric: the name of the metric.
    """

    direction: Direction
    baseline: float
    validation_baseline: float | None = None
    metric: str = ""

    def reference(self, measure: Measure) -> float:
        """Return the baseline's score on the data of `measure`."""
        if measure is Measure.ATTEMPT and self.validation_baseline is not None:
            return self.validation_baseline
        return self.baseline


class StoredRecord(BaseModel):
    """Base of records that are stored as JSON: without infinities and NaN."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class MethodCell(StoredRecord):
    """One method on one task.

    Arguments:
        score: the best score over the runs; `None` if no run has one.
        low, high: the 95 % interval. Both are `None` for fewer than two runs. The worse end alone is `None` if so many
            runs lack a score that a resample may have none.
        runs: the number of runs, at most k. `scored` of them have a score, `failures` counts infrastructure failures by
            cause, and the rest submitted nothing valid.
        feasible: whether the score is not worse than the baseline (and not negative).
        ratio: the ratio to the task's best method, or the penalty; `None` if no method is feasible.
    """

    task: str
    method: str
    score: float | None
    low: float | None
    high: float | None
    runs: int
    scored: int
    failures: dict[str, int]
    feasible: bool
    ratio: float | None


class Area(StoredRecord):
    """One method over all tasks: the area under its profile with its 95 % interval.

    The interval comes from resampling the runs of all methods together, on a fixed axis. It is `None` if a task has a
    single run of the method.
    """

    method: str
    area: float
    low: float | None
    high: float | None
    runs: int
    scored: int
    failed: int
    feasible: int
    """Tasks on which the method is feasible."""


class Profile(StoredRecord):
    """All methods by one measure: `cells` by task and then method, `areas` by method."""

    measure: Measure
    cells: tuple[MethodCell, ...]
    areas: tuple[Area, ...]

    def cell(self, task: str, method: str) -> MethodCell:
        """Return the cell of `method` on `task`."""
        return next(cell for cell in self.cells if (cell.task, cell.method) == (task, method))

    def area(self, method: str) -> Area:
        """Return the area of `method`."""
        return next(area for area in self.areas if area.method == method)


class Standings(StoredRecord):
    """A comparison of methods over tasks. Areas are valid for this set of methods and tasks only.

    Arguments:
        methods: in the order of the runs, then the task baseline.
        limit: the end of the thresholds of both profiles.
        k: the maximum number of runs of a method on a task that count.
    """

    tasks: tuple[str, ...]
    methods: tuple[str, ...]
    directions: dict[str, Direction]
    metrics: dict[str, str]
    k: int
    limit: float
    profiles: tuple[Profile, ...]

    def profile(self, measure: Measure) -> Profile:
        return next(profile for profile in self.profiles if profile.measure is measure)


def compare_methods(
    runs: Sequence[RunScore], scales: Mapping[str, TaskScale], *, k: int | None = None, seeds: Seeds = Seeds(0)
) -> Standings:
    """Compare the methods of `runs` with each other and with the tasks' baselines, by both measures.

    Arguments:
        runs: one per task, method and seed.
        scales: the scale of every task. A task without runs counts as missed by all methods.
        k: the number of runs that count, those with the lowest seeds; `None` for all.
        seeds: the seeds of the bootstrap.

    Example:
        >>> runs = [RunScore("maze", "agent", seed, submission=score) for seed, score in enumerate((10.0, 20.0))]
        >>> standings = compare_methods(runs, {"maze": TaskScale(Direction.HIGHER, 8.0)})
        >>> cell = standings.profile(Measure.SUBMISSION).cell("maze", "agent")
        >>> cell.score, cell.low, cell.high, cell.runs
        (20.0, 10.0, 20.0, 2)
    """
    groups: dict[tuple[str, str], list[RunScore]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.seed):
        groups[run.task, run.method].append(run)
    methods = tuple(dict.fromkeys(run.method for run in runs))
    longest = max(map(len, groups.values()), default=1)
    k = k or longest
    groups = {pair: group[:k] for pair, group in groups.items()}
    tables = [_ScoreTable(measure, groups, scales, methods, min(k, longest)) for measure in Measure]
    ratios = [performance_ratios(table.best(), table.baseline_T, table.higher_T) for table in tables]
    limit = threshold_limit(np.concatenate([result.penalty_T for result in ratios]))
    return Standings(
        tasks=tuple(scales),
        methods=(*methods, BASELINE),
        directions={task: scale.direction for task, scale in scales.items()},
        metrics={task: scale.metric for task, scale in scales.items()},
        k=k,
        limit=limit,
        profiles=tuple(table.profile(limit, seeds.derive("standings", table.measure).generator()) for table in tables),
    )


class _ScoreTable:
    """The scores of one measure. The baseline is the last method and has no runs.

    Attributes:
        values_TMK: the scores of the runs, NaN for a run without a score and for padding. Runs that failed for outside
            reasons are counted but not resampled.
        drawn_TM: the number of runs to resample.
    """

    def __init__(
        self, measure: Measure, groups: Groups, scales: Mapping[str, TaskScale], methods: tuple[str, ...], k: int
    ) -> None:
        self.measure, self.groups, self.scales = measure, groups, scales
        self.tasks, self.methods = tuple(scales), (*methods, BASELINE)
        self.baseline_T = np.array([scale.reference(measure) for scale in scales.values()])
        self.higher_T = np.array([scale.direction is Direction.HIGHER for scale in scales.values()])
        self.values_TMK = np.full((len(self.tasks), len(self.methods), k), np.nan)
        self.drawn_TM = np.zeros((len(self.tasks), len(self.methods)), np.int64)
        for (task, method), group in groups.items():
            scores = [(run, self._value(run)) for run in group]
            kept = [score for run, score in scores if score is not None or run.failure is None]
            t, m = self.tasks.index(task), methods.index(method)
            self.values_TMK[t, m, : len(kept)] = [np.nan if score is None else score for score in kept]
            self.drawn_TM[t, m] = len(kept)

    def best(self, values_TMK: Floats | None = None) -> Floats:
        """Return the best score over the runs as `scores_TM`, including the baseline's; a leading axis of resamples is
        allowed.
        """
        values = self.values_TMK if values_TMK is None else values_TMK
        # `fmax` and `fmin` ignore NaN unless there is nothing else.
        highest, lowest = (np.asarray(of.reduce(values, axis=-1), np.float64) for of in (np.fmax, np.fmin))
        best: Floats = np.where(self.higher_T[:, None], highest, lowest)
        best[..., -1] = self.baseline_T
        return best

    def draw(self, generator: np.random.Generator) -> Floats:
        """Return the best scores of bootstrap resamples as `scores_BTM`."""
        shape = (_RESAMPLES, *self.values_TMK.shape)
        places = (generator.random(shape) * self.drawn_TM[..., None]).astype(np.int64)
        drawn = np.take_along_axis(np.broadcast_to(self.values_TMK, shape), places, axis=-1)
        beyond = np.arange(shape[-1]) >= self.drawn_TM[..., None]
        return self.best(np.where(beyond, np.nan, drawn))

    def profile(self, limit: float, generator: np.random.Generator) -> Profile:
        """Return scores, ratios and areas with their bootstrap intervals."""
        scores_TM, scores_BTM = self.best(), self.draw(generator)
        ratios = performance_ratios(scores_TM, self.baseline_T, self.higher_T)
        redrawn = performance_ratios(scores_BTM, self.baseline_T, self.higher_T)
        # A resample without a score is worse than any with one.
        missing = np.where(self.higher_T[:, None], -np.inf, np.inf)
        low_TM, high_TM = _interval(np.where(np.isnan(scores_BTM), missing, scores_BTM))
        cells = []
        for t, task in enumerate(self.tasks):
            for m, method in enumerate(self.methods):
                runs = self.groups.get((task, method), ())
                without = [run for run in runs if self._value(run) is None]
                has_interval = self.drawn_TM[t, m] > 1 and math.isfinite(scores_TM[t, m])
                cell = MethodCell(
                    task=task,
                    method=method,
                    score=_to_finite(scores_TM[t, m]),
                    low=_to_finite(low_TM[t, m]) if has_interval else None,
                    high=_to_finite(high_TM[t, m]) if has_interval else None,
                    runs=len(runs),
                    scored=len(runs) - len(without),
                    failures=dict(sorted(Counter(str(run.failure.cause) for run in without if run.failure).items())),
                    feasible=bool(ratios.feasible_TM[t, m]),
                    ratio=_to_finite(ratios.ratios_TM[t, m]),
                )
                cells.append(cell)
        areas_M = area_under_profile(ratios.ratios_TM, limit)
        low_M, high_M = _interval(area_under_profile(redrawn.ratios_TM, limit))
        areas = []
        for m, method in enumerate(self.methods):
            own = cells[m :: len(self.methods)]
            low, high = (float(low_M[m]), float(high_M[m])) if self._has_spread(m) else (None, None)
            counts = {name: sum(getattr(cell, name) for cell in own) for name in ("runs", "scored", "feasible")}
            failed = sum(sum(cell.failures.values()) for cell in own)
            areas.append(Area(method=method, area=float(areas_M[m]), low=low, high=high, failed=failed, **counts))
        return Profile(measure=self.measure, cells=tuple(cells), areas=tuple(areas))

    def _value(self, run: RunScore) -> float | None:
        return run.value(self.measure, self.scales[run.task].direction)

    def _has_spread(self, m: int) -> bool:
        """Whether resampling is informative about a method's area; with a single run it is not."""
        if self.methods[m] == BASELINE:
            # The baseline's score is fixed; its area depends on the others.
            return len(self.methods) > 1 and all(self._has_spread(other) for other in range(len(self.methods) - 1))
        drawn = self.drawn_TM[:, m]
        return bool(drawn.any() and (drawn[drawn > 0] > 1).all())


def _to_finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _interval(drawn_B: Floats) -> tuple[Floats, Floats]:
    """Return the 95 % interval of resamples along the first axis, as two of the resamples, so that infinite values
    are allowed.
    """
    ordered, outside = np.sort(drawn_B, axis=0), int(_TAIL * len(drawn_B))
    return ordered[outside], ordered[-1 - outside]
