"""A teacher that samples wrong answers and orders examples for each."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from palaestra.tasks.base import Task
from palaestra.teachers.allocation import share_out
from palaestra.teachers.base import PlanningTeacher
from palaestra.teachers.no_state import NoState
from palaestra.teachers.writers import Order, Writer

if TYPE_CHECKING:
    # Types only: listing the teachers must not import torch.
    from palaestra.envs.lesson.state import StudentState


class OpenEnded(PlanningTeacher):
    """Samples wrong answers of all skills and orders some examples for each.

    Without wrong answers (all are correct, or the state is hidden) it teaches all skills equally.

    Arguments:
        per_error: examples for each wrong answer; fewer if there are too many errors for the lesson.
    """

    def __init__(
        self, task: Task, skills: tuple[str, ...] = (), *, writer: Writer | None = None, per_error: int = 4
    ) -> None:
        super().__init__(task, skills, writer=writer)
        self.per_error = per_error

    def plan(self, state: StudentState, size: int, generator: np.random.Generator) -> list[Order]:
        wrong = [a for a in state.attempts if a.correct == "no" and (a.skill in self.skills or not a.skill)]
        if not wrong:
            return NoState(self.task, tuple(self.skills), writer=self.writer).plan(state, size, generator)
        # Sample without replacement. With few errors, each gets more examples.
        count = min(len(wrong), max(1, -(-size // self.per_error)))
        drawn = [wrong[int(place)] for place in generator.permutation(len(wrong))[:count]]
        shares = share_out(size, dict.fromkeys(range(count), 1.0))
        seen = Counter(error.skill for error in drawn)
        return [
            Order(
                error.skill,
                error.subskill,
                shares[place],
                "mend",
                f"{seen[error.skill]} of {count} wrong answers that were looked at",
                errors=(error,),
            )
            for place, error in enumerate(drawn)
        ]
