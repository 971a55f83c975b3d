"""Quality checks, which every lesson passes before training.

    inspection = inspect(lesson, make_checks(), Context(task, held_out={Split.TEST: problems}))

Every example is **kept**, **dropped** by a check, or **withheld** because a check raised an error on it. The record has the
reason. A check with `needed = False` lets an example pass if the check itself fails; the failure is recorded.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from palaestra.core.records import Example, Failure, FailureCause, Lesson, Message, Problem, Split
from palaestra.core.registry import Registry
from palaestra.engines.base import Engine, Sampling
from palaestra.tasks.base import EVERY, Task, get_hooks
from palaestra.teachers.quality.records import Broken, CheckReport, CheckResult, Dropped, Inspection, Ruling

if TYPE_CHECKING:
    # Types only: listing the checks must not import torch.
    from palaestra.learn.student import Student
    from palaestra.tasks.evaluate import Keep

CHECKS = Registry("check", "palaestra.checks")
_HERE = "palaestra.teachers.quality"
CHECKS.register("readable", f"{_HERE}.readable:Readable", "not empty, no damaged text, fits the student's context")
CHECKS.register("overlap", f"{_HERE}.overlap:Overlap", "repeats no validation or test problem")
CHECKS.register("scorer", f"{_HERE}.scorer:Scorer", "the response passes the task's own scorer")
CHECKS.register("equations", f"{_HERE}.equations:Equations", "the calculations in the response are correct")
CHECKS.register("picture", f"{_HERE}.picture:Picture", "images are readable and show their scenes")
CHECKS.register("executes", f"{_HERE}.executes:Executes", "programs pass their tests; tool plans run")
CHECKS.register("duplicates", f"{_HERE}.duplicates:Duplicates", "repeats no question of this or an earlier lesson")
CHECKS.register("solved", f"{_HERE}.solved:Solved", "the student cannot solve it yet")


@dataclass(frozen=True)
class Context:
    """The input of checks in addition to the examples.

    Arguments:
        held_out: validation and test problems by split. Their text does not appear in results.
        earlier: the examples of earlier lessons.
        student: the student of the lesson; `readable` asks it whether it can be trained on an example.
        engine: returns an engine of the current student; called on first use.
        sampling: the sampling parameters of evaluations.
        keep: receives the student's attempts and their cost; see `palaestra.tasks.evaluate`.
    """

    task: Task
    held_out: Mapping[Split, Sequence[Problem]] = field(default_factory=dict)
    earlier: Sequence[Example] = ()
    student: Student | None = None
    engine: Callable[[], Engine] | None = None
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    keep: Keep = lambda attempts, cost: None

    @cached_property
    def published(self) -> Mapping[Message, Problem]:
        """The train problems of a published data set by question; empty for a procedural task."""
        if get_hooks(self.task).is_procedural:
            return {}
        return {problem.messages[-1]: problem for problem in self.task.problems(Split.TRAIN, EVERY, 0)}


class Check(Protocol):
    """Judges the examples of a lesson.

    A check is deterministic: the same examples and the same context give the same results. It is also idempotent: it keeps
    all examples that it kept before.
    """

    name: str
    rank: int
    """Checks run in the order of their ranks."""
    needed: bool
    """An example on which the check fails is not taught."""

    def judge(self, examples: Sequence[Example], context: Context) -> Sequence[CheckResult | Failure]:
        """Return a result for each example, in order; a `Failure` if the check itself failed on it."""
        ...


def make_checks(names: Sequence[str] = ()) -> list[Check]:
    """Make the checks registered under `names`, with default settings; all checks if `names` is empty."""
    return [CHECKS.get(name)() for name in names or CHECKS.names()]


def inspect(lesson: Lesson, checks: Sequence[Check], context: Context) -> Inspection:
    """Apply `checks` to the examples of a lesson, in the order of their ranks.

    Dropped and withheld examples do not reach the next check. A check that raises an error fails on all of its examples.
    """
    left = list(enumerate(lesson.examples))
    drops: list[Dropped] = []
    broken: list[Broken] = []
    reports: list[CheckReport] = []
    for check in sorted(checks, key=lambda check: check.rank):
        start = time.perf_counter()
        results = _ask(check, [example for _, example in left], context)
        seconds = time.perf_counter() - start
        kept: list[tuple[int, Example]] = []
        failed: dict[Failure, list[tuple[int, Example]]] = {}
        for (position, example), verdict in zip(left, results, strict=True):
            if isinstance(verdict, Failure):
                failed.setdefault(verdict, []).append((position, example))
                if not check.needed:
                    kept.append((position, example))
            elif verdict.ruling is Ruling.DROPPED:
                other = None if verdict.other is None else left[verdict.other][0]
                drops.append(Dropped(position, example, check.name, verdict.reason, verdict.detail, other))
            else:
                kept.append((position, example))
        for failure, several in failed.items():
            places = tuple(position for position, _ in several)
            held = tuple(example for _, example in several) if check.needed else ()
            broken.append(Broken(check.name, failure, places, check.needed, held))
        reports.append(_report(check.name, results, seconds))
        left = kept
    drops.sort(key=lambda drop: drop.position)
    return Inspection(
        tuple(example for _, example in left),
        tuple(position for position, _ in left),
        tuple(drops),
        tuple(broken),
        tuple(reports),
    )


def _ask(check: Check, examples: Sequence[Example], context: Context) -> Sequence[CheckResult | Failure]:
    """Call a check and convert its errors to failures."""
    if not examples:
        return []
    try:
        results = list(check.judge(examples, context))
        if len(results) != len(examples):
            raise ValueError(f"gave {len(results)} verdicts on {len(examples)} examples")
        if any(v.other is not None and not 0 <= v.other < len(examples) for v in results if isinstance(v, CheckResult)):
            raise ValueError("named an example that it was not given")
    except Exception as error:  # A check may be user code: its errors are failures, not results.
        failure = Failure(FailureCause.SCORER, f"check '{check.name}' broke: {type(error).__name__}: {error}")
        return [failure] * len(examples)
    return results


def _report(name: str, results: Sequence[CheckResult | Failure], seconds: float) -> CheckReport:
    verdicts = [verdict for verdict in results if isinstance(verdict, CheckResult)]
    rulings = Counter(verdict.ruling for verdict in verdicts)
    reasons = Counter(v.reason for v in verdicts if v.ruling is Ruling.DROPPED)
    remarks = Counter(v.reason for v in verdicts if v.ruling is not Ruling.DROPPED and v.reason)
    return CheckReport(
        name,
        len(results),
        rulings[Ruling.KEPT],
        rulings[Ruling.DROPPED],
        rulings[Ruling.NOT_JUDGED],
        len(results) - len(verdicts),
        dict(reasons.most_common()),
        dict(remarks.most_common()),
        round(seconds, 4),
    )
