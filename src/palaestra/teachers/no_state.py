"""The baseline: a teacher that does not look at its student."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from palaestra.core.records import Decision, Lesson
from palaestra.tasks.base import GenerativeTask
from palaestra.teachers.allocation import share_out
from palaestra.teachers.base import write_from_task

if TYPE_CHECKING:
    # Only the types: a list of teachers is to load no torch.
    from palaestra.envs.lesson.state import StudentState


class NoState:
    """Gives every skill, and within it every subskill, the same share."""

    def __init__(self, task: GenerativeTask, skills: tuple[str, ...] = ()) -> None:
        self.task = task
        self.skills = {name: parts for name, parts in task.skills().items() if not skills or name in skills}

    def write(self, state: StudentState, size: int, generator: np.random.Generator) -> Lesson:
        allocation = {}
        # Whoever gets the odd example changes from round to round.
        names = [str(name) for name in generator.permutation(list(self.skills))]
        for skill, count in share_out(size, dict.fromkeys(names, 1.0)).items():
            parts = [str(part) for part in generator.permutation(list(self.skills[skill]))]
            allocation[skill] = share_out(count, dict.fromkeys(parts, 1.0))
        decisions = tuple(
            Decision(skill, "uniform", "every skill gets the same", parts) for skill, parts in allocation.items()
        )
        return Lesson(write_from_task(self.task, allocation, generator), decisions)
