"""Records of a comparison: the scores of runs, the scales of tasks and the standings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from palaestra.core.records import Failure
from palaestra.research.tasks.task import Direction

BASELINE = "task baseline"
"""The method that every task provides."""


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
        failure: what failed around the run. Earlier scores still count.
    """

    task: str
    method: str
    seed: int
    attempts: tuple[float, ...] = ()
    submission: float | None = None
    failure: Failure | None = None

    def __post_init__(self) -> None:
        for score in (*self.attempts, *(() if self.submission is None else (self.submission,))):
            if not math.isfinite(score):
                raise ValueError(f"a score is a finite number; got {score} of {self.method} on {self.task}")

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

    def __post_init__(self) -> None:
        if not all(math.isfinite(score) for score in (self.baseline, self.validation_baseline or 0.0)):
            raise ValueError(f"a baseline is a finite number; got {self.baseline} and {self.validation_baseline}")

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
        runs: the number of runs, at most k. `scored` of them have a score, `failures` counts failures around the others
            by cause, and the rest submitted nothing valid.
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
        """Return the cell of `method` on `task`; raises `KeyError` if there is none."""
        for cell in self.cells:
            if (cell.task, cell.method) == (task, method):
                return cell
        raise KeyError(f"no cell of '{method}' on '{task}'")

    def area(self, method: str) -> Area:
        """Return the area of `method`; raises `KeyError` if there is none."""
        for area in self.areas:
            if area.method == method:
                return area
        raise KeyError(f"no area of '{method}'")


class Standings(StoredRecord):
    """A comparison of methods over tasks. Areas hold for this set of methods and tasks only.

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
