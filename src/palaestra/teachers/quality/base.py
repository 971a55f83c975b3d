"""Quality checks, which every lesson passes before training.

    inspection = inspect(lesson, make_checks(), Context(task, held_out={Split.TEST: problems}))

Every example is **kept**, **dropped** by a check, or **withheld** because a check raised an error on it. The record has the
reason. A check with `needed = False` lets an example pass if the check itself fails; the failure is recorded.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, Protocol

from palaestra.core.errors import BudgetSpentError
from palaestra.core.records import Engine, Example, Failure, FailureCause, Lesson, Message, Problem, Sampling, Split
from palaestra.core.registry import Registry
from palaestra.envs.lesson.student import Student
from palaestra.tasks.base import EVERY, Task, get_hooks
from palaestra.tasks.evaluate import Keep

CHECKS = Registry("check", "palaestra.checks")
_HERE = "palaestra.teachers.quality"
CHECKS.register("readable", f"{_HERE}.texts:Readable", "not empty, no damaged text, fits the student's context")
CHECKS.register("overlap", f"{_HERE}.texts:Overlap", "repeats no validation or test problem")
CHECKS.register("skill", f"{_HERE}.verification:SkillCheck", "the question is of the ordered skill")
CHECKS.register("scorer", f"{_HERE}.answers:Scorer", "the answer is right: solved by the task, or passes its scorer")
CHECKS.register("equations", f"{_HERE}.answers:Equations", "the calculations are correct and belong to the question")
CHECKS.register("picture", f"{_HERE}.execution:Picture", "images are readable and show their scenes")
CHECKS.register("executes", f"{_HERE}.execution:Executes", "programs pass their tests; tool plans run")
CHECKS.register("duplicates", f"{_HERE}.texts:Duplicates", "repeats no question of this or an earlier lesson")
CHECKS.register(
    "agreement", f"{_HERE}.verification:AgreementCheck", "samples of the verifier agree with unverified answers"
)
CHECKS.register("solved", f"{_HERE}.answers:Solved", "the student cannot solve it yet")


@dataclass(frozen=True)
class Context:
    """The input of checks in addition to the examples.

    Arguments:
        held_out: validation and test problems by split. Their text does not appear in results.
        earlier: the examples of earlier lessons.
        student: the student of the lesson; `readable` uses it to test whether it can be trained on an example.
        engine: returns an engine of the current student; called on first use.
        sampling: the sampling parameters of evaluations.
        keep: receives the student's attempts and their cost; see `palaestra.tasks.evaluate`.
        verifier: answers the questions of `agreement`, and classifies skills without a recognizer.
        samples: answers of the verifier for each question.
        verified: how earlier checks verified the answer of an example, by its `id()`; `inspect` fills it.
    """

    task: Task
    held_out: Mapping[Split, Sequence[Problem]] = field(default_factory=dict)
    earlier: Sequence[Example] = ()
    student: Student | None = None
    engine: Callable[[], Engine] | None = None
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    keep: Keep = lambda attempts, cost: None
    verifier: Engine | None = None
    samples: int = 0
    verified: dict[int, str] = field(default_factory=dict)

    @cached_property
    def published(self) -> Mapping[Message, Problem]:
        """The train problems of a published data set by question; empty for a procedural task."""
        if get_hooks(self.task).is_procedural:
            return {}
        return {problem.messages[-1]: problem for problem in self.task.problems(Split.TRAIN, EVERY, 0)}


class Check(Protocol):
    """Checks the examples of a lesson.

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
    verified = context.verified
    verified.clear()
    for check in sorted(checks, key=lambda check: check.rank):
        start = time.perf_counter()
        results = _ask(check, [example for _, example in left], context)
        seconds = time.perf_counter() - start
        kept: list[tuple[int, Example]] = []
        failed: dict[Failure, list[tuple[int, Example]]] = {}
        for item, result in zip(left, results, strict=True):
            position, example = item
            if isinstance(result, Failure):
                failed.setdefault(result, []).append(item)
                kept += [] if check.needed else [item]
                continue
            if result.verified:
                verified.setdefault(id(example), result.verified)
            if result.ruling is Ruling.DROPPED:
                other = None if result.other is None else left[result.other][0]
                reason, detail = result.reason, result.detail
                drops.append(Dropped(position, example, check.name, reason, detail, other, result.verified))
            else:
                kept.append(item)
        for failure, several in failed.items():
            places, held = zip(*several, strict=True)
            broken.append(Broken(check.name, failure, places, check.needed, held if check.needed else ()))
        reports.append(_report(check.name, results, seconds))
        left = kept
    drops.sort(key=lambda drop: drop.position)
    kept_examples, positions = tuple(example for _, example in left), tuple(position for position, _ in left)
    methods = tuple(verified.get(id(example), "") for example in kept_examples)
    examined = sum(id(example) in verified for example in lesson.examples)
    return Inspection(kept_examples, positions, tuple(drops), tuple(broken), tuple(reports), methods, examined)


def _ask(check: Check, examples: Sequence[Example], context: Context) -> Sequence[CheckResult | Failure]:
    """Call a check and convert its errors to failures."""
    if not examples:
        return []
    try:
        results = list(check.judge(examples, context))
        if len(results) != len(examples):
            raise ValueError(f"returned {len(results)} results for {len(examples)} examples")
        if any(v.other is not None and not 0 <= v.other < len(examples) for v in results if isinstance(v, CheckResult)):
            raise ValueError("referred to an example outside of its input")
    except BudgetSpentError:
        raise  # The run stops, and resumes with a larger budget.
    except (Exception, SystemExit) as error:  # A check may be user code: its errors are failures, not results.
        failure = Failure(FailureCause.SCORER, f"check '{check.name}' raised an error: {type(error).__name__}: {error}")
        return [failure] * len(examples)
    return results


def _report(name: str, results: Sequence[CheckResult | Failure], seconds: float) -> CheckReport:
    rulings = Counter(result.ruling if isinstance(result, CheckResult) else None for result in results)
    counts = rulings[Ruling.KEPT], rulings[Ruling.DROPPED], rulings[Ruling.NOT_JUDGED], rulings[None]
    reasons, remarks = Counter[str](), Counter[str]()
    for result in results:
        if isinstance(result, CheckResult) and (result.ruling is Ruling.DROPPED or result.reason):
            (reasons if result.ruling is Ruling.DROPPED else remarks)[result.reason] += 1
    common, marked = dict(reasons.most_common()), dict(remarks.most_common())
    return CheckReport(name, len(results), *counts, common, marked, round(seconds, 4))


class Ruling(StrEnum):
    """The decision of a check about an example."""

    KEPT = "kept"
    DROPPED = "dropped"
    NOT_JUDGED = "not judged"
    """The check has no basis for a decision. The example goes on to the next check and is counted."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check on one example.

    Arguments:
        reason: a few words, the same for all examples of a kind; reports group by it. A kept example may have a remark.
        detail: details of this example.
        other: the index of the example that this one repeats, among the examples of the check.
        verified: how the check verified the answer, or found that it is wrong; empty if it did neither.
    """

    ruling: Ruling = Ruling.KEPT
    reason: str = ""
    detail: str = ""
    other: int | None = None
    verified: str = ""


KEPT = CheckResult()


def drop(reason: str, detail: str = "", other: int | None = None, verified: str = "") -> CheckResult:
    return CheckResult(Ruling.DROPPED, reason, detail, other, verified)


def not_judged(reason: str) -> CheckResult:
    return CheckResult(Ruling.NOT_JUDGED, reason)


@dataclass(frozen=True, slots=True)
class Dropped:
    """An example that a check dropped.

    Arguments:
        position: its index in the lesson.
        other: the index in the lesson of the example that it repeats, if any.
        verified: how its answer was found to be wrong; empty if it was dropped for another reason.
    """

    position: int
    example: Example
    check: str
    reason: str
    detail: str = ""
    other: int | None = None
    verified: str = ""


@dataclass(frozen=True, slots=True)
class Broken:
    """A check that failed on some examples.

    Arguments:
        positions: the indices of the examples in the lesson.
        withheld: the examples are not taught; false for checks with `needed = False`.
        examples: the withheld examples.
    """

    check: str
    failure: Failure
    positions: tuple[int, ...]
    withheld: bool
    examples: tuple[Example, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The counts of one check.

    Arguments:
        given: examples that reached the check.
        reasons: dropped examples by reason.
        remarks: remarks about kept and not judged examples, counted.
        seconds: duration; ignored by comparisons.
    """

    name: str
    given: int
    kept: int
    dropped: int
    not_judged: int
    failed: int
    reasons: Mapping[str, int] = field(default_factory=dict)
    remarks: Mapping[str, int] = field(default_factory=dict)
    seconds: float = field(default=0.0, compare=False)

    def join(self, later: CheckReport) -> CheckReport:
        """Add up two reports of the same check."""
        names = ("given", "kept", "dropped", "not_judged", "failed")
        counts: Any = {name: getattr(self, name) + getattr(later, name) for name in names}
        reasons, remarks = (
            Counter(self.reasons) + Counter(later.reasons),
            Counter(self.remarks) + Counter(later.remarks),
        )
        seconds = round(self.seconds + later.seconds, 4)
        return CheckReport(self.name, **counts, reasons=dict(reasons), remarks=dict(remarks), seconds=seconds)


@dataclass(frozen=True, slots=True)
class Inspection:
    """A lesson after all checks: every example is kept, dropped or withheld.

    Arguments:
        kept: the examples that may be taught, in the lesson's order; `positions` are their indices in the lesson.
        checks: the reports in the order of the checks.
        verified: how the answer of each kept example was verified; empty for those that were not.
        examined: the number of examples whose answer was verified or found to be wrong.
    """

    kept: tuple[Example, ...]
    positions: tuple[int, ...]
    dropped: tuple[Dropped, ...] = ()
    failures: tuple[Broken, ...] = ()
    checks: tuple[CheckReport, ...] = ()
    verified: tuple[str, ...] = ()
    examined: int = 0

    @property
    def wrong(self) -> int:
        """The number of examples whose answer was found to be wrong."""
        return sum(bool(entry.verified) for entry in self.dropped)

    @property
    def withheld(self) -> int:
        return sum(len(broken.positions) for broken in self.failures if broken.withheld)

    @property
    def count(self) -> int:
        """The number of examples before the checks."""
        return len(self.kept) + len(self.dropped) + self.withheld

    def join(self, later: Inspection) -> Inspection:
        """Join this inspection with that of further examples, whose positions follow."""
        start = self.count

        def move(positions: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(start + position for position in positions)

        dropped = [
            replace(entry, position=start + entry.position, other=None if entry.other is None else start + entry.other)
            for entry in later.dropped
        ]
        failures = [replace(entry, positions=move(entry.positions)) for entry in later.failures]
        return Inspection(
            kept=(*self.kept, *later.kept),
            positions=(*self.positions, *move(later.positions)),
            dropped=(*self.dropped, *dropped),
            failures=(*self.failures, *failures),
            checks=tuple(first.join(second) for first, second in zip(self.checks, later.checks, strict=True)),
            verified=(*self.verified, *later.verified),
            examined=self.examined + later.examined,
        )

    def check(self, name: str) -> CheckReport:
        """The report of the check `name`. Raises `KeyError` if it did not run."""
        return {report.name: report for report in self.checks}[name]

    def __str__(self) -> str:
        """One line: the number of kept examples, and the reasons for the others."""
        parts = []
        for report in self.checks:
            if report.dropped:
                why = ", ".join(f"{reason} {count}" for reason, count in report.reasons.items())
                parts.append(f"{report.name} dropped {report.dropped} ({why})")
        for broken in self.failures:
            what = "withheld" if broken.withheld else "let pass"
            parts.append(f"{broken.check} failed, {what} {len(broken.positions)} ({broken.failure.message})")
        return "; ".join([f"kept {len(self.kept)} of {self.count} examples", *parts])
