"""What a task tells a language model that is to write training data for it.

What differs between mathematics, programs, pictures and tools is here, in the task: what a datum consists of, what it
must be like, and how it becomes an example. Teachers are the same for all of them.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from pydantic import BaseModel

from palaestra.core.records import Example
from palaestra.tasks.base import Task


class UnusableError(ValueError):
    """A datum of the right shape of which no example can be made; says why, in words that its writer can act on."""


@runtime_checkable
class WritableTask(Task, Protocol):
    """A task that a language model can write data for.

    It may also have `prepare(data)`: is told of all data of an answer before the first becomes an example, for what is
    better done together, such as pictures that a model paints. It raises nothing because of a datum.
    """

    datum: type[BaseModel]
    """The shape of one datum; its descriptions are read by the writer."""

    def brief(self) -> str:
        """What problems of the task are like, and what a good datum is."""
        ...

    def make_example(self, datum: Any, skill: str, subskill: str) -> Example:
        """A datum as it is taught: asked as in an evaluation, answered in the form that is scored.

        Raises:
            UnusableError: it cannot be.
        """
        ...
