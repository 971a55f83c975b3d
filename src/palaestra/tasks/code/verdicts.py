"""The results of a program's tests."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CaseOutcome(StrEnum):
    """The outcome of one test."""

    PASSED = "passed"
    WRONG_ANSWER = "wrong_answer"
    TIME = "time"
    """It exceeded the time limit."""
    MEMORY = "memory"
    """It exceeded the memory limit."""
    OUTPUT = "output"
    """It printed too much."""
    RUNTIME_ERROR = "runtime_error"
    NO_CODE = "no_code"
    """The response contains no program that defines what was asked for."""


@dataclass(frozen=True, slots=True)
class CaseVerdict:
    """The outcome of one test, with an explanation."""

    outcome: CaseOutcome
    detail: str = ""

    @property
    def passed(self) -> bool:
        return self.outcome is CaseOutcome.PASSED


@dataclass(frozen=True, slots=True)
class ProgramVerdict:
    """The outcomes of all tests of a program. Tests after one that ended the program have its outcome."""

    verdicts: tuple[CaseVerdict, ...]

    @property
    def passed(self) -> bool:
        return bool(self.verdicts) and all(verdict.passed for verdict in self.verdicts)

    @property
    def share(self) -> float:
        """The fraction of tests that passed."""
        return sum(verdict.passed for verdict in self.verdicts) / len(self.verdicts) if self.verdicts else 0.0

    @property
    def outcome(self) -> CaseOutcome:
        """The first outcome that is not a pass; otherwise a pass."""
        return next((v.outcome for v in self.verdicts if not v.passed), CaseOutcome.PASSED)

    @property
    def detail(self) -> str:
        return next((v.detail for v in self.verdicts if not v.passed), "")
