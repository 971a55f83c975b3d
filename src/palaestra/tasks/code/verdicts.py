"""What became of a program under its tests, and the chance that one of k would pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from palaestra.core.errors import SettingsError


class Outcome(StrEnum):
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
class Verdict:
    """Of one test, with what explains it."""

    outcome: Outcome
    detail: str = ""

    @property
    def passed(self) -> bool:
        return self.outcome is Outcome.PASSED


@dataclass(frozen=True, slots=True)
class Judgement:
    """Of a program: all its tests. A test behind one that ended the program was not run, and has its outcome."""

    verdicts: tuple[Verdict, ...]

    @property
    def passed(self) -> bool:
        return bool(self.verdicts) and all(verdict.passed for verdict in self.verdicts)

    @property
    def share(self) -> float:
        """How many of the tests passed, from 0 to 1."""
        return sum(verdict.passed for verdict in self.verdicts) / len(self.verdicts) if self.verdicts else 0.0

    @property
    def outcome(self) -> Outcome:
        """The first that is not a pass; a pass if there is none."""
        return next((v.outcome for v in self.verdicts if not v.passed), Outcome.PASSED)

    @property
    def detail(self) -> str:
        return next((v.detail for v in self.verdicts if not v.passed), "")


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """The chance that at least one of `k` programs passes, from `samples` of which `passed` did.

    Unbiased (Chen et al. 2021): 1 - C(samples - passed, k) / C(samples, k), as a product that does not overflow.

    >>> pass_at_k(10, 3, 1)
    0.3
    >>> round(pass_at_k(10, 3, 5), 4)
    0.9167
    """
    if not 0 <= passed <= samples or not 1 <= k <= samples:
        raise SettingsError(f"pass@k needs 0 <= passed <= samples and 1 <= k <= samples; got {passed}, {samples}, {k}")
    if samples - passed < k:
        return 1.0
    # Rounded so that 1 - 0.7 is 0.3: beyond the twelfth digit there is only the rounding of the product.
    return round(float(1.0 - np.prod(1.0 - k / np.arange(samples - passed + 1, samples + 1))), 12)


def mean_pass_at_k(counts: Sequence[tuple[int, int]], k: int) -> float:
    """The mean over problems, each with its `(samples, passed)`."""
    if not counts:
        raise SettingsError("pass@k needs at least one problem; got none")
    return float(np.mean([pass_at_k(samples, passed, k) for samples, passed in counts]))
