"""What became of a submission."""

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
    """Where the code of a submission ran while it was judged."""

    NOT_RUN = "not run"
    """None of it ran: the evaluator read a table."""
    SEPARATE = "separate sandboxes"
    """In a sandbox of its own; the evaluator saw what its functions returned, and nothing else."""
    SHARED = "one process"
    """In the evaluator's process, with the score on a sealed channel: code that changes that process can change its score."""


@dataclass(frozen=True, slots=True)
class Grade:
    """A submission's score.

    Arguments:
        score: the task's metric.
        scores: everything that was measured, the metric among it.
        seconds: that the evaluation took.
        isolation: where the submission's code ran, for tasks of MLGym.
    """

    score: float
    scores: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    isolation: Isolation | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class InvalidSubmission:
    """There is nothing that could be judged: no file, too large, not of the form. The agent can mend it, and is told.

    Arguments:
        reason: for the agent. Once its code had hidden data before it, what it had to say could be these data, and is cut.
        exposed: whether it had; then it counts as a validation, as a score would.
    """

    reason: str
    exposed: bool = False


JudgeResult = Grade | InvalidSubmission | Failure
"""Judged; the agent's own fault; or something around it broke, which is nobody's score."""


class SubmissionError(Exception):
    """Raised by evaluators: the submission cannot be judged, for a reason that its maker can mend.

    Arguments:
        message: the reason in full.
        kind: the same in words that are not the submission's, told where `message` might hold hidden data.
        exposed: this message itself tells something of them, so that it has to be counted.
    """

    def __init__(
        self,
        message: str,
        kind: str = "it did not give what is asked for, in the form that is asked for",
        exposed: bool = False,
    ) -> None:
        super().__init__(message)
        self.kind, self.exposed = kind, exposed
