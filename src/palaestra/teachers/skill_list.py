"""A teacher that orders examples by the wrong answers of each skill."""

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
    from palaestra.envs.lesson.state import StudentState, ValidationAttempt


class SkillList(PlanningTeacher):
    """Divides a lesson by the error rate of each skill, and each skill among a few hypotheses.

    A hypothesis is a subskill with wrong answers; those with the most come first. A language model as the writer sees the
    wrong answers. Without wrong answers (all are correct, or the state is hidden) it teaches all skills equally.

    Arguments:
        hypotheses: hypotheses per skill and round.
        shown: wrong answers in the writer's prompt for each hypothesis.
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
            # A random order breaks ties between subskills with equally many errors.
            order = {name: k for k, name in enumerate(generator.permutation(sorted(parts)).tolist())}
            chosen = sorted(parts, key=lambda name: (-parts[name], order[name]))[: self.hypotheses]
            for part, count in share_out(share, {name: float(parts[name]) for name in chosen}).items():
                errors = [attempt for attempt in wrong[skill] if attempt.subskill == part]
                picked = generator.permutation(len(errors))[: self.shown]
                orders.append(
                    Order(skill, part, count, "mend", reason, errors=tuple(errors[int(place)] for place in picked))
                )
        return orders
