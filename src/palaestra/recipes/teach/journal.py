"""A lesson episode's memory in a run folder."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from palaestra.core.errors import RunError
from palaestra.core.records import Attempt
from palaestra.runs.files import PARTIAL, write_folder
from palaestra.runs.ledger import LedgerEntry
from palaestra.runs.run import Run

if TYPE_CHECKING:
    from palaestra.learn.student import Student


class RunJournal:
    """A lesson episode's memory in a run folder.

    Arguments:
        keep_all: keep the weights of every round, not only of those that may still be needed.
    """

    def __init__(self, run: Run, *, keep_all: bool = False) -> None:
        self.run, self.keep_all = run, keep_all

    def attempts(self, phase: str) -> list[Attempt]:
        return self.run.store.attempts(phase)

    def add_attempts(self, phase: str, attempts: Sequence[Attempt], cost: LedgerEntry) -> None:
        self.run.store.add_attempts(phase, attempts, cost)

    def weights_sha256(self, round_: int) -> str | None:
        return self.run.store.weights_sha256(round_)

    def add_training(
        self,
        round_: int,
        student: Student,
        curve: Sequence[tuple[int, float]],
        cost: LedgerEntry,
        needed: Collection[int] = (),
    ) -> None:
        # First the weights, then the note that they are there: a kill in between trains once more.
        write_folder(self._folder(round_), student.save)
        self.run.store.add_training(round_, student.weights_sha256(), curve, cost)
        self.tidy(round_, *needed)

    def tidy(self, *rounds: int) -> None:
        """Remove all weights but those of `rounds`, and the state of a training that is over."""
        wanted = {self._folder(round_) for round_ in rounds}
        for folder in self.run.checkpoints.iterdir() if self.run.checkpoints.is_dir() else ():
            is_round = folder.name.startswith("round-") and not folder.name.endswith(PARTIAL)
            if folder not in wanted and not (self.keep_all and is_round):
                shutil.rmtree(folder, ignore_errors=True)

    def load(self, round_: int, student: Student) -> None:
        folder = self._folder(round_)
        if not folder.is_dir():
            raise RunError(
                f"the run folder is damaged: the checkpoint {folder} is missing; restore it or start a new run"
            )
        student.load(folder)
        expected, found = self.weights_sha256(round_), student.weights_sha256()
        if expected != found:
            raise RunError(f"the run folder is damaged: the weights in {folder} are not those that were saved")

    def progress_folder(self) -> Path | None:
        return self.run.checkpoints / "training"

    def _folder(self, round_: int) -> Path:
        return self.run.checkpoints / f"round-{round_}"
