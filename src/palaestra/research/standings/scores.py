"""The records of a comparison: what runs reached, what that is held against, and the standings made of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from palaestra.core.records import Failure
from palaestra.research.tasks.task import Direction

BASELINE = "task baseline"
"""The method that every task brings along."""


class Measure(StrEnum):
    """Which of a run's scores stands for it."""

    ATTEMPT = "best attempt"
    """The best of its validations."""
    SUBMISSION = "best submission"
    """The score of what it handed in."""


@dataclass(frozen=True, slots=True)
class RunScore:
    """What one run of a method on a task reached.

    Arguments:
        method: the agent, with everything that tells it apart from the others.
        attempts: the scores of its validations. Where a submission is judged on the same data as a validation (as in
            MLGym), it is an attempt too.
        submission: the score of what was handed in; `None` where nothing usable was.
        failure: what broke around the run, if anything did. What was scored before that still counts.
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
        """The score that stands for the run; `None` where there is none."""
        if measure is Measure.SUBMISSION:
            return self.submission
        return (max if direction is Direction.HIGHER else min)(self.attempts, default=None)


@dataclass(frozen=True, slots=True)
class TaskScale:
    """What a task's scores are held against.

    Arguments:
        baseline: the baseline's score, on the data that submissions are judged on.
        validation_baseline: the same on the data of the validations, where that is other data.
        metric: what is measured, in words.
    """

    direction: Direction
    baseline: float
    validation_baseline: float | None = None
    metric: str = ""

    def __post_init__(self) -> None:
        if not all(math.isfinite(score) for score in (self.baseline, self.validation_baseline or 0.0)):
            raise ValueError(f"a baseline is a finite number; got {self.baseline} and {self.validation_baseline}")

    def reference(self, measure: Measure) -> float:
        """The baseline's score on the data of `measure`."""
        if measure is Measure.ATTEMPT and self.validation_baseline is not None:
            return self.validation_baseline
        return self.baseline


class StoredRecord(BaseModel):
    """What goes into a file as it is, and comes back: no infinities, no NaN."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Cell(StoredRecord):
    """One method on one task.

    Arguments:
        score: the best over the runs; `None` where no run has one.
        low, high: its 95 % interval. Both are `None` for fewer than two runs; the worse end alone is `None` where so
            many runs have no score that others like them might have none at all.
        runs: that were made, at most k. `scored` have a score; of the others `failures` tells what broke around
            them, and the rest handed in nothing that could be judged.
        feasible: whether the score is not worse than the baseline (and not negative).
        ratio: to the best method of the task, or the penalty; `None` where no method is feasible.
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
    """One method over all tasks: the area under its profile, with its 95 % interval.

    The interval is drawn from the runs of all methods at once, on an axis that stays as it is. It is `None` where a
    task has a single run of the method, whose spread nobody knows.
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
    cells: tuple[Cell, ...]
    areas: tuple[Area, ...]

    def cell(self, task: str, method: str) -> Cell:
        """The cell of `method` on `task`; raises `KeyError` if there is none."""
        for cell in self.cells:
            if (cell.task, cell.method) == (task, method):
                return cell
        raise KeyError(f"no cell of '{method}' on '{task}'")

    def area(self, method: str) -> Area:
        """The area of `method`; raises `KeyError` if there is none."""
        for area in self.areas:
            if area.method == method:
                return area
        raise KeyError(f"no area of '{method}'")


class Standings(StoredRecord):
    """How methods compare over tasks. An area holds for this set of methods and tasks only.

    Arguments:
        methods: in the order in which the runs name them, then the task baseline.
        limit: where the thresholds of both profiles end.
        k: runs of a method on a task that count, at most.
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
