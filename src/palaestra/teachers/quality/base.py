"""Quality checks: what a lesson goes through before anybody is trained on it.

    inspection = inspect(lesson, make_checks(), Context(task, held_out={Split.TEST: problems}))

Every example ends in one of three ways, and the record says which and why: it is **kept**; a check **dropped** it; or a
check broke on it, and it is **withheld**, for what could not be checked is not taught. Checks that only make a lesson
better (`needed` is false) let an example pass when they break; the failure is on record all the same.
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
    # Only the types: a list of checks is to load no torch.
    from palaestra.learn.student import Student
    from palaestra.tasks.evaluate import Keep

CHECKS = Registry("check", "palaestra.checks")
_HERE = "palaestra.teachers.quality"
CHECKS.register("readable", f"{_HERE}.readable:Readable", "not empty, no broken text, fits the student's context")
CHECKS.register("overlap", f"{_HERE}.overlap:Overlap", "repeats no validation or test problem")
CHECKS.register("scorer", f"{_HERE}.scorer:Scorer", "the response passes the task's own scorer")
CHECKS.register("equations", f"{_HERE}.equations:Equations", "what the response calculates is right")
CHECKS.register("picture", f"{_HERE}.picture:Picture", "images can be read, and show their scenes")
CHECKS.register("executes", f"{_HERE}.executes:Executes", "programs pass the tests they come with; tool plans run")
CHECKS.register("duplicates", f"{_HERE}.duplicates:Duplicates", "asks nothing twice, in this lesson or after another")
CHECKS.register("solved", f"{_HERE}.solved:Solved", "is new to the student, who cannot solve it yet")


@dataclass(frozen=True)
class Context:
    """What checks may know beside the examples.

    Arguments:
        held_out: the problems that are measured on, by split. No text of theirs gets into a verdict.
        earlier: what was taught before.
        student: whom the lesson is for; `readable` asks it whether it can be trained on an example.
        engine: asks the student as it is now; called when it is first needed.
        sampling: how the student answers in evaluations.
        keep: is told of the student's attempts and what they cost; see `palaestra.tasks.evaluate`.
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
        """The train problems of a published data set by their question; nothing of a task that draws its problems."""
        if get_hooks(self.task).is_procedural:
            return {}
        return {problem.messages[-1]: problem for problem in self.task.problems(Split.TRAIN, EVERY, 0)}


class Check(Protocol):
    """Judges the examples of a lesson.

    The same examples and the same context give the same verdicts, and what it keeps it would keep again.
    """

    name: str
    rank: int
    """When its turn comes: the lower, the earlier."""
    needed: bool
    """What it could not judge because it broke is not taught."""

    def judge(self, examples: Sequence[Example], context: Context) -> Sequence[CheckResult | Failure]:
        """A verdict on each example, in order; a failure where the check itself broke, which says nothing about it."""
        ...


def make_checks(names: Sequence[str] = ()) -> list[Check]:
    """The checks that are registered under `names`, all of them if none is given, with their usual settings."""
    return [CHECKS.get(name)() for name in names or CHECKS.names()]


def inspect(lesson: Lesson, checks: Sequence[Check], context: Context) -> Inspection:
    """Put the examples of a lesson through `checks`, in the order of their ranks.

    What one check drops or withholds does not come to the next. A check that raises has broken on all it was given.
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
    """What a check says of each example, whatever happens in it."""
    if not examples:
        return []
    try:
        results = list(check.judge(examples, context))
        if len(results) != len(examples):
            raise ValueError(f"gave {len(results)} verdicts on {len(examples)} examples")
        if any(v.other is not None and not 0 <= v.other < len(examples) for v in results if isinstance(v, CheckResult)):
            raise ValueError("named an example that it was not given")
    except Exception as error:  # A check is a plugin: whatever it raises is its failure, and no verdict.
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
