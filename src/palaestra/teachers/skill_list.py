"""A teacher that goes through the skills, with the wrong answers of each."""

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
    from palaestra.envs.lesson.state import StudentState, ValidationAttempt


class SkillList(PlanningTeacher):
    """Shares a lesson out by the wrong answers of each skill, and within it among a few hypotheses.

    A hypothesis is a subskill with wrong answers, those with the most first; a writer that can read is shown them.
    With nothing wrong to be seen (all is right, or the state is hidden) it teaches everything alike.

    Arguments:
        hypotheses: how many a skill and round.
        shown: wrong answers that a writer is shown for each.
    """

    def __init__(
        self,
        task: Task,
        skills: tuple[str, ...] = (),
        *,
        writer: Writer | None = None,
        hypotheses: int = 3,
        shown: int = 4,
    ) -> None:
        super().__init__(task, skills, writer=writer)
        self.hypotheses, self.shown = hypotheses, shown

    def plan(self, state: StudentState, size: int, generator: np.random.Generator) -> list[Order]:
        wrong: dict[str, list[ValidationAttempt]] = {}
        asked = Counter(attempt.skill for attempt in state.attempts if attempt.correct != "failed")
        for attempt in state.attempts:
            if attempt.correct == "no" and attempt.skill in self.skills:
                wrong.setdefault(attempt.skill, []).append(attempt)
        if not wrong:
            return NoState(self.task, tuple(self.skills), writer=self.writer).plan(state, size, generator)
        rates = {skill: len(several) / asked[skill] for skill, several in wrong.items()}
        orders = []
        for skill, share in share_out(size, rates).items():
            reason = f"{len(wrong[skill])} of {asked[skill]} answers wrong"
            parts = Counter(attempt.subskill for attempt in wrong[skill])
            # Of subskills with as many errors chance decides, anew in every round.
            order = {name: k for k, name in enumerate(generator.permutation(sorted(parts)).tolist())}
            chosen = sorted(parts, key=lambda name: (-parts[name], order[name]))[: self.hypotheses]
            for part, count in share_out(share, {name: float(parts[name]) for name in chosen}).items():
                errors = [attempt for attempt in wrong[skill] if attempt.subskill == part]
                picked = generator.permutation(len(errors))[: self.shown]
                orders.append(
                    Order(skill, part, count, "mend", reason, errors=tuple(errors[int(place)] for place in picked))
                )
        return orders
