"""What became of a program under its tests."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CaseOutcome(StrEnum):
    """Of one test."""

    PASSED = "passed"
    WRONG_ANSWER = "wrong_answer"
    TIME = "time"
    """It took longer than allowed."""
    MEMORY = "memory"
    """It took more memory than allowed."""
    OUTPUT = "output"
    """It printed more than allowed."""
    RUNTIME_ERROR = "runtime_error"
    NO_CODE = "no_code"
    """The response holds no program, or none that defines what was asked for."""


@dataclass(frozen=True, slots=True)
class CaseVerdict:
    """Of one test, with what explains it."""

    outcome: CaseOutcome
    detail: str = ""

    @property
    def passed(self) -> bool:
        return self.outcome is CaseOutcome.PASSED


@dataclass(frozen=True, slots=True)
class ProgramVerdict:
    """Of a program: all its tests. A test behind one that ended the program was not run, and has its outcome."""

    verdicts: tuple[CaseVerdict, ...]

    @property
    def passed(self) -> bool:
        return bool(self.verdicts) and all(verdict.passed for verdict in self.verdicts)

    @property
    def share(self) -> float:
        """How many of the tests passed, from 0 to 1."""
        return sum(verdict.passed for verdict in self.verdicts) / len(self.verdicts) if self.verdicts else 0.0

    @property
    def outcome(self) -> CaseOutcome:
        """The first that is not a pass; a pass if there is none."""
        return next((v.outcome for v in self.verdicts if not v.passed), CaseOutcome.PASSED)

    @property
    def detail(self) -> str:
        return next((v.detail for v in self.verdicts if not v.passed), "")
