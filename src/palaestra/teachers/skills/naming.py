"""Stage 1: name the skill of every problem.

Each problem is one question, so a name depends on its problem alone and can be cached. Stage 2 merges synonyms.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic import BaseModel, Field

from palaestra.core.records import Failure, Problem
from palaestra.teachers.skills.llm_queries import SkillQueries
from palaestra.teachers.skills.spelling import fault, key, tidy


class SkillName(BaseModel):
    """The schema of the model's answer."""

    skill: str = Field(description="the skill, in two to five words")


def name_skills(
    problems: Sequence[Problem], asking: SkillQueries, known: Iterable[str] = ()
) -> dict[str, str | Failure]:
    """Name the skills of problems. Returns the name, or a failure, by problem id.

    Arguments:
        known: existing names; a new name that differs only in its spelling takes the existing spelling.
    """
    questions = [
        asking.about(problem, "name", reference=problem.reference if asking.show_references else "")
        for problem in problems
    ]
    answers = asking.ask(questions, SkillName, check=lambda _, answer: fault(answer.skill))
    spelled = {key(name): name for name in known}
    return {
        problem.id: answer if isinstance(answer, Failure) else spelled.setdefault(key(answer.skill), tidy(answer.skill))
        for problem, answer in zip(problems, answers, strict=True)
    }
