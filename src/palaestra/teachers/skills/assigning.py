"""Stage 3: assign every problem to a category, by its skill name or by a question to the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, create_model

from palaestra.core.records import Failure, Problem
from palaestra.teachers.skills.llm_queries import SkillQueries
from palaestra.teachers.skills.records import Category
from palaestra.teachers.skills.spelling import key


def assign(
    problems: Sequence[Problem], names: Mapping[str, str], categories: Sequence[Category], asking: SkillQueries
) -> dict[str, str | Failure]:
    """Assign problems to categories. Returns the category, or a failure, by problem id.

    Arguments:
        names: the names of stage 1; the model is asked about problems without one.
        categories: at least one.
    """
    member = {name: category.name for category in categories for name in category.members}
    assignment: dict[str, str | Failure] = {p.id: member.get(names.get(p.id, ""), "") for p in problems}
    open_ = [problem for problem in problems if not assignment[problem.id]]
    questions = [asking.about(problem, "assign", categories=categories) for problem in open_]
    answers = asking.ask(questions, _schema(categories)) if open_ else []
    for problem, answer in zip(open_, answers, strict=True):
        assignment[problem.id] = answer if isinstance(answer, Failure) else str(answer.model_dump()["category"])
    return assignment


def _schema(categories: Sequence[Category]) -> type[BaseModel]:
    """The schema of an answer: one of the categories. Variants of spelling are accepted."""
    names = tuple(category.name for category in categories)
    spelled = {key(name): name for name in names}

    def spell(answer: Any) -> Any:
        return spelled.get(key(answer), answer) if isinstance(answer, str) and answer not in names else answer

    one_of: Any = Literal[names]
    schema: type[BaseModel] = create_model("Assignment", category=(Annotated[one_of, BeforeValidator(spell)], ...))
    return schema
