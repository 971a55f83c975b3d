"""What an answer did: its calls, how it ended, what it answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from palaestra.tasks.tools.matching import PlanOutcome
from palaestra.tasks.tools.plans import ExecutedCall

MOST_CALLS = 16
"""That an answer may make; the longest plan has four."""


@dataclass(frozen=True, slots=True)
class Record:
    """What an answer did.

    Arguments:
        made: its calls, in their order.
        fault: what ended it before its answer; None if nothing did.
        value: what it answered.
    """

    calls: tuple[ExecutedCall, ...]
    fault: PlanOutcome | None
    detail: str = ""
    value: Any = None


def without_answer(calls: list[ExecutedCall]) -> Record:
    return Record(tuple(calls), PlanOutcome.NO_ANSWER, "the program ended without answer(value)")


def with_too_many(calls: list[ExecutedCall]) -> Record:
    return Record(tuple(calls), PlanOutcome.TOO_MANY_CALLS, f"expected at most {MOST_CALLS} calls; it went on")


def with_error(calls: list[ExecutedCall], error: str) -> Record:
    """A program that raised, with the last line of what it said."""
    outcome = PlanOutcome.MEMORY if error.startswith("MemoryError") else PlanOutcome.RUNTIME_ERROR
    return Record(tuple(calls), outcome, error[:300])
