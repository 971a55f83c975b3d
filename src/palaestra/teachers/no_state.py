"""The baseline: a teacher that does not look at its student."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from palaestra.teachers.allocation import share_out
from palaestra.teachers.base import PlanningTeacher
from palaestra.teachers.writers import Order

if TYPE_CHECKING:
    # Types only: listing the teachers must not import torch.
    from palaestra.envs.lesson.state import StudentState


class NoState(PlanningTeacher):
    """Orders the same number of examples for every skill, and for every subskill of a skill."""

    def plan(self, state: StudentState, size: int, generator: np.random.Generator) -> list[Order]:
        orders = []
        # A random order, so that the remainder goes to other skills in each round.
        names = [str(name) for name in generator.permutation(list(self.skills))]
        for skill, count in share_out(size, dict.fromkeys(names, 1.0)).items():
            parts = [str(part) for part in generator.permutation(list(self.skills[skill]) or [""])]
            orders += [
                Order(skill, part, share, "uniform", "every skill gets the same")
                for part, share in share_out(count, dict.fromkeys(parts, 1.0)).items()
            ]
        return orders
