"""Who writes the examples that a teacher orders: the task's own generators, or a language model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from palaestra.core.errors import SettingsError
from palaestra.core.records import Example, Failure
from palaestra.tasks.base import GenerativeTask, Task
from palaestra.tasks.checks import write_examples

if TYPE_CHECKING:
    # Only the types: a list of teachers is to load no torch.
    from palaestra.envs.lesson.state import ValidationAttempt


@dataclass(frozen=True, slots=True)
class Order:
    """Examples of one kind that a teacher wants, and why.

    Arguments:
        skill, subskill: what they are to teach; an empty `subskill` means all of the skill's in turn, an empty
            `skill` whatever the writer finds.
        count: how many.
        action: what the teacher does with the skill (`uniform`, `explore`, `exploit`, ...).
        reason: why, for the report; orders of one skill, action and reason are one decision.
        hypothesis: what the student may be lacking, for a writer that can read.
        errors: wrong answers of the student that show it, for the same.
    """

    skill: str
    subskill: str
    count: int
    action: str
    reason: str
    hypothesis: str = ""
    errors: tuple[ValidationAttempt, ...] = ()


@dataclass(frozen=True, slots=True)
class Written:
    """What came of an order: its examples, and what went wrong with the rest."""

    examples: tuple[Example, ...]
    failures: tuple[Failure, ...] = ()


class Writer(Protocol):
    """Writes what was ordered."""

    def write(self, orders: Sequence[Order], generator: np.random.Generator) -> list[Written]:
        """For each order at most `count` examples, in order. The same orders and generator, the same examples."""
        ...


class TaskWriter:
    """Lets the task's own generators write. They need no hypotheses and no errors."""

    def __init__(self, task: Task) -> None:
        if not isinstance(task, GenerativeTask):
            raise SettingsError(
                f"task '{task.name}' has no generators of its own; let a language model write, by the setting 'writer'"
            )
        self.task = task

    def write(self, orders: Sequence[Order], generator: np.random.Generator) -> list[Written]:
        return [
            Written(write_examples(self.task, order.skill, order.subskill, order.count, generator))
            if order.count
            else Written(())
            for order in orders
        ]
