"""A second small task (doubling numbers) for runs with several tasks, and a student with scripted accuracy on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scripted_student import ScriptedStudent

from palaestra.core.records import Completion, Example, Failure, Message, Problem, Score, Split

FIRST = {Split.TRAIN: 0, Split.VALIDATION: 1000, Split.TEST: 2000}


class DoublingTask:
    """Asks for doubles of small and of large numbers; `word` is how it asks."""

    name = "doubles"
    max_tokens = 7
    is_procedural = True

    def __init__(self, word: str = "Double") -> None:
        self.word = word

    def skills(self) -> Mapping[str, tuple[str, ...]]:
        return {"small": (), "large": ()}

    def problems(self, split: Split, per_skill: int, seed: int, skills: Sequence[str] = ()) -> list[Problem]:
        return [
            Problem(f"{skill}-{number}", (Message("user", f"{self.word} {number}."),), str(2 * number), skill)
            for place, skill in enumerate(self.skills())
            if not skills or skill in skills
            for number in range(FIRST[split] + 500 * place, FIRST[split] + 500 * place + per_skill)
        ]

    def score(self, problem: Problem, completion: Completion) -> Score | Failure:
        assert problem.skill in self.skills(), "a task is given its own problems"
        assert problem.id.startswith(problem.skill)
        return Score(float(completion.text == f"Answer: {problem.reference}"))

    def write_examples(self, skill: str, subskill: str, count: int, generator: np.random.Generator) -> list[Example]:
        assert skill in self.skills()
        numbers = generator.integers(0, 500, count).tolist()
        return [Example((Message("user", f"Double {n}."),), f"Answer: {2 * n}", skill) for n in numbers]


def make_student(*shares: float, lesson: int) -> type[ScriptedStudent]:
    """A class of students with these shares of right answers after each lesson, on `math-skills` and on doubles."""
    student: Any = ScriptedStudent.following(*shares, lesson=lesson)
    numbers = [n for first in FIRST.values() for place in (0, 500) for n in range(first + place, first + place + 50)]
    student.answers = {**student.answers, **{f"Double {n}.": str(2 * n) for n in numbers}}
    return student  # type: ignore[no-any-return]
