"""What quality checks say of a lesson: plain records, for the store and the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from palaestra.core.records import Example, Failure


class Ruling(StrEnum):
    """What a check decides about an example."""

    KEPT = "kept"
    DROPPED = "dropped"
    NOT_JUDGED = "not judged"
    """There is nothing that this check could judge it by; it goes on to the next check, and is counted."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Of one check on one example.

    Arguments:
        reason: of a few words, the same for all examples of its kind: reports count by it. One that is kept may have
            a remark here.
        detail: what is particular to this example.
        other: the place of the example that this one is compared with, among those that the check was given.
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
    """An example that will not be taught, and why.

    Arguments:
        position: its place in the lesson.
        other: the place in the lesson of the example that it repeats, if that is why.
    """

    position: int
    example: Example
    check: str
    reason: str
    detail: str = ""
    other: int | None = None


@dataclass(frozen=True, slots=True)
class Broken:
    """A check that broke on some examples: nothing is known about them.

    Arguments:
        positions: their places in the lesson.
        withheld: these examples are not taught. Checks that only make a lesson better let them pass instead.
        examples: the examples, where they are withheld.
    """

    check: str
    failure: Failure
    positions: tuple[int, ...]
    withheld: bool
    examples: tuple[Example, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What one check did.

    Arguments:
        given: the examples that came to it; those that an earlier check dropped did not.
        reasons: how many were dropped, by reason.
        remarks: what else was said, of examples that were kept or not judged.
        seconds: how long it took; no part of what makes two reports equal.
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
        """The sums of two reports of the same check."""
        sums = {name: getattr(self, name) + getattr(later, name) for name in ("given", "kept", "dropped", "not_judged")}
        return CheckReport(
            self.name, **sums, failed=self.failed + later.failed,
            reasons=dict(Counter(self.reasons) + Counter(later.reasons)),
            remarks=dict(Counter(self.remarks) + Counter(later.remarks)),
            seconds=round(self.seconds + later.seconds, 4),
        )  # fmt: skip

    def share(self, reason: str) -> float:
        """Of how many of the examples that came to it this was said, dropped or not; from 0 to 1."""
        count = self.reasons.get(reason, 0) + self.remarks.get(reason, 0)
        return count / self.given if self.given else 0.0


@dataclass(frozen=True, slots=True)
class Inspection:
    """A lesson after all checks: every example is kept, or dropped, or withheld by a failure.

    Arguments:
        kept: what may be taught, in the lesson's order; `positions` are their places in it.
        checks: in the order in which they were made.
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
        """The examples of the lesson as it was written."""
        return len(self.kept) + len(self.dropped) + self.withheld

    def join(self, later: Inspection) -> Inspection:
        """This inspection and that of further examples, whose positions follow those of this one."""
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
        """The report of the check called `name`; raises `KeyError` if it was not made."""
        for report in self.checks:
            if report.name == name:
                return report
        raise KeyError(f"no check '{name}' was made")

    def __str__(self) -> str:
        """One line for people: how many are left, and where the others went."""
        parts = []
        for report in self.checks:
            if report.dropped:
                why = ", ".join(f"{reason} {count}" for reason, count in report.reasons.items())
                parts.append(f"{report.name} dropped {report.dropped} ({why})")
        for broken in self.failures:
            what = "withheld" if broken.withheld else "let pass"
            parts.append(f"{broken.check} broke, {what} {len(broken.positions)} ({broken.failure.message})")
        return "; ".join([f"kept {len(self.kept)} of {self.count} examples", *parts])
