"""Records of tasks and of judged submissions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from palaestra.core.records import Failure


@dataclass(frozen=True, slots=True)
class TaskData:
    """The data folders of a task on the host: one that the agent sees, and one for the evaluator only."""

    public: Path | None = None
    hidden: Path | None = None


class Isolation(StrEnum):
    """Where a submission's code ran during evaluation."""

    NOT_RUN = "not run"
    """No code ran; the evaluator read a table."""
    SEPARATE = "separate sandboxes"
    """In its own sandbox. The evaluator saw only what its functions returned."""
    SHARED = "one process"
    """In the evaluator's process, with the score on a sealed channel. Code that modifies that process can change its
    score.
    """
    ONE_SANDBOX = "one sandbox"
    """In the sandbox of the evaluator, which ran it. Such code could change the evaluator's result."""


@dataclass(frozen=True, slots=True)
class Grade:
    """The score of a submission.

    Arguments:
        score: the value of the task's metric.
        scores: everything that was measured, including the metric.
        seconds: the duration of the evaluation.
        isolation: where the submission's code ran, for MLGym and Harbor tasks.
    """

    score: float
    scores: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    isolation: Isolation | None = field(default=None, compare=False)


class SubmissionOutcome(StrEnum):
    """What became of the submission of an episode."""

    SCORED = "scored"
    INVALID = "invalid"
    """It cannot be judged: a file is missing or malformed, or its code raised, exceeded a limit or returned something
    else than the task requires. The reward is the floor; see `Metric.reward`.
    """
    MISSING = "missing"
    """The agent stopped without a submission. The reward is the floor."""
    FAILED = "failed"
    """Something outside the agent failed. The episode has no reward and must not be learned from."""


@dataclass(frozen=True, slots=True)
class InvalidSubmission:
    """A submission that cannot be judged: a file is missing, too large or malformed. The agent sees the reason and
    can fix it.

    Arguments:
        reason: the message for the agent. It is shortened once the submission's code has seen hidden data, since it
            could contain them.
        exposed: the submission's code has seen hidden data; the attempt counts as a validation.
    """

    reason: str
    exposed: bool = False


JudgeResult = Grade | InvalidSubmission | Failure
"""A score, a submission that the agent has to fix, or a failure outside the submission, without a score."""


class SubmissionError(Exception):
    """Raised by evaluators if a submission cannot be judged for a reason that its author can fix.

    Arguments:
        message: the full reason.
        kind: a reason without the submission's own words, used if `message` might contain hidden data.
        exposed: the message itself reveals something about hidden data, so the attempt counts as a validation.
    """

    def __init__(
        self,
        message: str,
        kind: str = "it did not return what the task requires",
        exposed: bool = False,
    ) -> None:
        super().__init__(message)
        self.kind, self.exposed = kind, exposed
