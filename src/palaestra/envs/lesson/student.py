"""The protocol of students, and their registry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, Protocol

from palaestra.core.records import Engine, Example
from palaestra.core.registry import Registry
from palaestra.core.seeding import Seeds

STUDENTS = Registry("student", "palaestra.students")
"""Students by how they learn: classes whose first argument is a `palaestra.models.registry.LoadedModel`."""
OnStep = Callable[[int, int, float], None]
Start = Literal["base", "last"]
"""Where training starts: from the base weights on all data so far, or from the last round's weights on the new data."""


class Student(Protocol):
    """A model that predicts, learns, saves and restores.

    Attributes:
        start: with `"base"` the student learns all examples so far from its base weights. With `"last"` it receives only
            the new examples and continues from its current weights; the caller makes sure, by `load` if necessary, that
            they are the last round's. If such a training fails, the student keeps the weights from before.
        rehearses: optional; true if `learn` may also receive the student's own correct answers as examples.
        reads_images: optional; false if problems with images are an error.
    """

    name: str
    start: Start

    def engine(self) -> Engine:
        """The engine that generates with the student's current weights."""
        ...

    def restore(self) -> None:
        """Restore the base weights."""
        ...

    def check(self, examples: Sequence[Example]) -> None:
        """Raise `LessonError` for examples that this student cannot be trained on."""
        ...

    def learn(
        self, examples: Sequence[Example], seeds: Seeds, on_step: OnStep, progress: Path | None
    ) -> list[tuple[int, float]]:
        """Learn `examples`; returns the loss by step.

        `progress` is a folder for the training state, from which a killed training is resumed.
        """
        ...

    def save(self, folder: Path) -> None: ...

    def load(self, folder: Path) -> None: ...

    def weights_sha256(self) -> str:
        """A hash of the trained weights. Equal hashes mean equal students."""
        ...
