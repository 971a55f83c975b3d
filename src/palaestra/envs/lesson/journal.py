"""The journal of an episode, which makes a killed run resumable.

An environment checks its journal before every evaluation and training. Stored work is not repeated; finished work is
stored at once. To resume a run, play the same episode from its start: stored rounds take no time.
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
    """Stores the finished work of one episode. The methods here store nothing."""

    def attempts(self, phase: str) -> list[Attempt]:
        """The stored attempts of `phase`."""
        return []

    def add_attempts(self, phase: str, attempts: Sequence[Attempt], cost: LedgerEntry) -> None:
        """Store the attempts of a chunk with their cost."""
        return

    def weights_sha256(self, round_: int) -> str | None:
        """The hash of the weights after a round's training; `None` if it has not finished."""
        return None

    def add_training(
        self,
        round_: int,
        student: Student,
        curve: Sequence[tuple[int, float]],
        cost: LedgerEntry,
        needed: Collection[int] = (),
    ) -> None:
        """Save the trained student, then record that the training has finished.

        Arguments:
            needed: earlier rounds whose weights may still be needed; all others may be deleted.
        """
        return

    def load(self, round_: int, student: Student) -> None:
        """Load the weights after that round's training into `student`."""
        return

    def progress_folder(self) -> Path | None:
        """The folder for checkpoints of a running training; `None` to write none."""
        return None


class NullJournal(Journal):
    """A journal that stores nothing, for an environment without a run folder."""


class WeightsJournal(NullJournal):
    """A journal that stores only weights, for an environment with `keep="best"` and without a run folder.

    The weights are in a temporary folder, which is removed with the journal.
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
