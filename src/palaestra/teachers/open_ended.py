"""A teacher that looks at single wrong answers, and orders data for what each of them lacks."""

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
    # Only the types: a list of teachers is to load no torch.
    from palaestra.envs.lesson.state import StudentState


class OpenEnded(PlanningTeacher):
    """Draws wrong answers from all that there are, whatever their skill, and orders some examples for each.

    With nothing wrong to be seen (all is right, or the state is hidden) it teaches everything alike.

    Arguments:
        per_error: examples for each wrong answer; fewer where there are more errors than room.
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
        # Without replacement as long as there are any left: fewer errors than orders means more data for each.
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
