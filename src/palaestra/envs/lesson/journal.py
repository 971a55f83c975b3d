"""What an episode remembers of itself, so that a killed run can walk through it again.

An environment with a journal asks it before every piece of work. What is there already is not done
again; what is done is written down at once. Resuming is then nothing but playing the same episode
from its start: known rounds pass in an instant, and the first unknown piece is worked on.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Collection, Sequence
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
        self,
        round_: int,
        student: Student,
        curve: Sequence[tuple[int, float]],
        cost: LedgerEntry,
        needed: Collection[int] = (),
    ) -> None:
        """Save the trained student, then note that the training is over.

        Arguments:
            needed: earlier rounds whose weights may still be asked for; those of all others may be forgotten.
        """
        ...

    def load(self, round_: int, student: Student) -> None:
        """Bring `student` to where it was after that round's training."""
        ...

    def progress_folder(self) -> Path | None:
        """Where a long training may keep its state, if anywhere."""
        ...


class NullJournal:
    """The journal of an environment without a run: an episode is played once, in one go."""

    def attempts(self, phase: str) -> list[Attempt]:
        return []

    def add_attempts(self, phase: str, attempts: Sequence[Attempt], cost: LedgerEntry) -> None:
        pass

    def weights_sha256(self, round_: int) -> str | None:
        return None

    def add_training(
        self,
        round_: int,
        student: Student,
        curve: Sequence[tuple[int, float]],
        cost: LedgerEntry,
        needed: Collection[int] = (),
    ) -> None:
        pass

    def load(self, round_: int, student: Student) -> None:
        raise AssertionError("nothing was journalled")

    def progress_folder(self) -> Path | None:
        return None


class WeightsJournal(NullJournal):
    """The same for an environment that goes back to an earlier round at its end: keeps the weights, and no more.

    They lie in a temporary folder, which goes when the journal does.
    """

    def __init__(self) -> None:
        self._place = Path(tempfile.mkdtemp(prefix="palaestra-lesson-"))
        weakref.finalize(self, shutil.rmtree, self._place, ignore_errors=True)

    def add_training(
        self,
        round_: int,
        student: Student,
        curve: Sequence[tuple[int, float]],
        cost: LedgerEntry,
        needed: Collection[int] = (),
    ) -> None:
        wanted = {self._folder(number) for number in needed}
        for folder in self._place.iterdir():
            if folder not in wanted:
                shutil.rmtree(folder)
        self._folder(round_).mkdir()
        student.save(self._folder(round_))

    def load(self, round_: int, student: Student) -> None:
        student.load(self._folder(round_))

    def _folder(self, round_: int) -> Path:
        return self._place / f"round-{round_}"
