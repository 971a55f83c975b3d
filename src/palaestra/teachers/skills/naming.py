"""Stage 1: name the skill of every problem.

One question a problem. So a name depends on its problem alone: others may come or go, and what a cache knows of it stays
known. That many names then mean the same is what stage 2 is for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic import BaseModel, Field

from palaestra.core.records import Failure, Problem
from palaestra.teachers.skills.llm_queries import SkillQueries
from palaestra.teachers.skills.spelling import fault, key, tidy


class SkillName(BaseModel):
    """What the model is to answer."""

    skill: str = Field(description="the skill, in two to five words")


def name_skills(
    problems: Sequence[Problem], asking: SkillQueries, known: Iterable[str] = ()
) -> dict[str, str | Failure]:
    """The skill of each problem by its id, or why it has none.

    Arguments:
        known: names that exist already; a name that differs from one of them in its spelling only takes that spelling.
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
