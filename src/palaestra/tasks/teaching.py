"""The protocol of tasks for which a language model writes training data.

The task defines what a datum consists of, what a good datum is, and how it becomes an example. Teachers are the same
for mathematics, programs, images and tools.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from pydantic import BaseModel

from palaestra.core.records import Example
from palaestra.tasks.base import Task


class UnusableError(ValueError):
    """A valid datum cannot become an example. The message tells the writer why."""


@runtime_checkable
class WritableTask(Task, Protocol):
    """A task for which a language model can write data."""

    datum: type[BaseModel]
    """The schema of a datum. The writer reads its descriptions."""

    def brief(self) -> str:
        """A description of the task's problems and of a good datum, for the writer."""
        ...

    def make_example(self, datum: Any, skill: str, subskill: str) -> Example:
        """The training example of a datum: prompted as in an evaluation, answered in the form that is scored.

        Raises:
            UnusableError: the datum cannot become an example.
        """
        ...
