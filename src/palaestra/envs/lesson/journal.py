"""What an episode remembers of itself, so that a killed run can walk through it again.

An environment with a journal asks it before every piece of work. What is there already is not done
again; what is done is written down at once. Resuming is then nothing but playing the same episode
from its start: known rounds pass in an instant, and the first unknown piece is worked on.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from palaestra.core.records import Attempt
from palaestra.learn.student import Student
from palaestra.runs.ledger import LedgerEntry


class Journal(Protocol):
    """The memory of one episode."""

    def attempts(self, phase: str) -> list[Attempt]:
        """The attempts of `phase` that were made already."""
        ...

    def add_attempts(self, phase: str, attempts: Sequence[Attempt], cost: LedgerEntry) -> None: ...

    def weights_sha256(self, round_: int) -> str | None:
        """The hash of the weights that a round's training led to, if it is over."""
        ...

    def add_training(
        self, round_: int, student: Student, curve: Sequence[tuple[int, float]], cost: LedgerEntry
    ) -> None:
        """Save the trained student, then note that the training is over."""
        ...

    def load(self, round_: int, student: Student) -> None:
        """Bring `student` to where it was after that round's training."""
        ...

    def progress_folder(self) -> Path | None:
        """Where a long training may keep its state, if anywhere."""
        ...


class Forgetful:
    """The journal of an environment without a run: an episode is played once, in one go."""

    def attempts(self, phase: str) -> list[Attempt]:
        return []

    def add_attempts(self, phase: str, attempts: Sequence[Attempt], cost: LedgerEntry) -> None:
        pass

    def weights_sha256(self, round_: int) -> str | None:
        return None

    def add_training(
        self, round_: int, student: Student, curve: Sequence[tuple[int, float]], cost: LedgerEntry
    ) -> None:
        pass

    def load(self, round_: int, student: Student) -> None:
        raise AssertionError("nothing was journalled")

    def progress_folder(self) -> Path | None:
        return None
