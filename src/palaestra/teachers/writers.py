"""Writers of the examples that a teacher orders; here the task's own generators."""

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
    # Types only: listing the teachers must not import torch.
    from palaestra.envs.lesson.state import ValidationAttempt


@dataclass(frozen=True, slots=True)
class Order:
    """A teacher's order of examples of one kind, with its reason.

    Arguments:
        skill, subskill: what the examples exercise; an empty `subskill` means all subskills in turn, an empty `skill`
            leaves it to the writer.
        count: the number of examples.
        action: the teacher's action on the skill (`uniform`, `explore`, `exploit`, ...).
        reason: the reason for the report; orders with the same skill, action and reason form one decision.
        hypothesis: what the student may lack, for a language model as the writer.
        errors: wrong answers of the student, for a language model as the writer.
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
    """The result of an order: its examples, and the failures of the rest."""

    examples: tuple[Example, ...]
    failures: tuple[Failure, ...] = ()


class Writer(Protocol):
    """Writes the examples of orders."""

    def write(self, orders: Sequence[Order], generator: np.random.Generator) -> list[Written]:
        """Write at most `count` examples for each order. The same orders and generator give the same examples."""
        ...


class TaskWriter:
    """Lets the task's own generators write. It ignores hypotheses and errors."""

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
