"""What was ordered for a lesson, and what became of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from palaestra.core.records import Failure, FailureCause

LASTING = {FailureCause.CONTEXT_LENGTH, FailureCause.REFUSED, FailureCause.MALFORMED}
"""Failures that would come again if the same was asked again. All others may pass."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One lesson's order.

    Arguments:
        ordered: the examples that the teacher was asked for.
        delivered: those that were taught: written, and dropped by no check.
        dropped: those that a check dropped, by check and reason.
        withheld: those that a check broke on.
        failures: calls of the writer that brought nothing and data that no example could be made of, by cause.
        messages: the first message of each cause.
        asked_again: how often examples that were missing were ordered again.
        unmeasured: calls whose number of tokens is not known: they are missing from the cost.
    """

    ordered: int
    delivered: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    withheld: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    messages: Mapping[str, str] = field(default_factory=dict)
    asked_again: int = 0
    unmeasured: int = 0

    @property
    def may_pass(self) -> bool:
        """Whether some of the failures may not come again, so that going on later may help."""
        return any(FailureCause(cause) not in LASTING for cause in self.failures)

    def explain(self) -> str:
        """Where the examples that are missing went, in one line; empty if nothing is known."""
        parts = []
        if self.failures:
            first = next(iter(self.messages.values()), "")
            parts.append(
                f"writer failures: {describe_counts(self.failures)}" + (f" (the first: {first})" if first else "")
            )
        if self.dropped:
            parts.append(f"dropped by checks: {describe_counts(self.dropped)}")
        if self.withheld:
            parts.append(f"withheld because a check broke: {self.withheld}")
        return " ".join("; ".join(parts).split())


def count_failures(failures: Sequence[Failure]) -> tuple[dict[str, int], dict[str, str]]:
    """Failures by cause, and the first message of each."""
    messages: dict[str, str] = {}
    for failure in failures:
        messages.setdefault(str(failure.cause), failure.message)
    return dict(sorted(Counter(str(failure.cause) for failure in failures).items())), messages


def add_up(deliveries: Sequence[Delivery]) -> Delivery:
    """The sums of several orders."""
    dropped: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    messages: dict[str, str] = {}
    for one in deliveries:
        dropped.update(one.dropped)
        failures.update(one.failures)
        messages = {**one.messages, **messages}
    return Delivery(
        sum(one.ordered for one in deliveries), sum(one.delivered for one in deliveries), dict(sorted(dropped.items())),
        sum(one.withheld for one in deliveries), dict(sorted(failures.items())), messages,
        sum(one.asked_again for one in deliveries), sum(one.unmeasured for one in deliveries),
    )  # fmt: skip


def describe_counts(counts: Mapping[str, int]) -> str:
    """Counts by name in one line.

    >>> describe_counts({"malformed": 2, "refused": 1})
    'malformed 2, refused 1'
    """
    return ", ".join(f"{name} {count}" for name, count in counts.items())
