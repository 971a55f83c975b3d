"""The record of an answer: its calls, its end, its value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from palaestra.tasks.tools.matching import PlanOutcome
from palaestra.tasks.tools.plans import ExecutedCall

MOST_CALLS = 16
"""Maximum number of calls of an answer; the longest plan has four."""


@dataclass(frozen=True, slots=True)
class Record:
    """The record of an answer.

    Arguments:
        calls: its calls, in order.
        fault: the reason if it ended without an answer.
        value: the answer.
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
    """The record of a program that raised an exception."""
    outcome = PlanOutcome.MEMORY if error.startswith("MemoryError") else PlanOutcome.RUNTIME_ERROR
    return Record(tuple(calls), outcome, error[:300])
