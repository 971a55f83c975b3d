"""The results of quality checks: plain records for the store and the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from palaestra.core.records import Example, Failure


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
        reason: a few words, the same for all examples of a kind; reports count by it. A kept example may have a remark.
        detail: what is particular to this example.
        other: the index of the example that this one repeats, among the examples of the check.
    """

    ruling: Ruling = Ruling.KEPT
    reason: str = ""
    detail: str = ""
    other: int | None = None


KEPT = CheckResult()


def drop(reason: str, detail: str = "", other: int | None = None) -> CheckResult:
    return CheckResult(Ruling.DROPPED, reason, detail, other)


def not_judged(reason: str) -> CheckResult:
    return CheckResult(Ruling.NOT_JUDGED, reason)


@dataclass(frozen=True, slots=True)
class Dropped:
    """An example that a check dropped.

    Arguments:
        position: its index in the lesson.
        other: the index in the lesson of the example that it repeats, if any.
    """

    position: int
    example: Example
    check: str
    reason: str
    detail: str = ""
    other: int | None = None


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
        sums = {name: getattr(self, name) + getattr(later, name) for name in ("given", "kept", "dropped", "not_judged")}
        return CheckReport(
            self.name, **sums, failed=self.failed + later.failed,
            reasons=dict(Counter(self.reasons) + Counter(later.reasons)),
            remarks=dict(Counter(self.remarks) + Counter(later.remarks)),
            seconds=round(self.seconds + later.seconds, 4),
        )  # fmt: skip

    def share(self, reason: str) -> float:
        """The fraction of the examples with this reason or remark, from 0 to 1."""
        count = self.reasons.get(reason, 0) + self.remarks.get(reason, 0)
        return count / self.given if self.given else 0.0


@dataclass(frozen=True, slots=True)
class Inspection:
    """A lesson after all checks: every example is kept, dropped or withheld.

    Arguments:
        kept: the examples that may be taught, in the lesson's order; `positions` are their indices in the lesson.
        checks: the reports in the order of the checks.
    """

    kept: tuple[Example, ...]
    positions: tuple[int, ...]
    dropped: tuple[Dropped, ...] = ()
    failures: tuple[Broken, ...] = ()
    checks: tuple[CheckReport, ...] = ()

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

        dropped = tuple(
            replace(entry, position=start + entry.position, other=None if entry.other is None else start + entry.other)
            for entry in later.dropped
        )
        failures = tuple(replace(entry, positions=move(entry.positions)) for entry in later.failures)
        earlier = {report.name: report for report in self.checks}
        return Inspection(
            (*self.kept, *later.kept), (*self.positions, *move(later.positions)), (*self.dropped, *dropped),
            (*self.failures, *failures),
            tuple(earlier[report.name].join(report) if report.name in earlier else report for report in later.checks),
        )  # fmt: skip

    def check(self, name: str) -> CheckReport:
        """The report of the check `name`. Raises `KeyError` if it did not run."""
        for report in self.checks:
            if report.name == name:
                return report
        raise KeyError(f"no check '{name}' was made")

    def __str__(self) -> str:
        """One line: the number of kept examples, and the reasons for the others."""
        parts = []
        for report in self.checks:
            if report.dropped:
                why = ", ".join(f"{reason} {count}" for reason, count in report.reasons.items())
                parts.append(f"{report.name} dropped {report.dropped} ({why})")
        for broken in self.failures:
            what = "withheld" if broken.withheld else "let pass"
            parts.append(f"{broken.check} broke, {what} {len(broken.positions)} ({broken.failure.message})")
        return "; ".join([f"kept {len(self.kept)} of {self.count} examples", *parts])
