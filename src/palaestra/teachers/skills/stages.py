"""Queries to the language model of a skill discovery."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, create_model

from palaestra.core.records import Failure, ImagePart, Message, Problem, TextPart
from palaestra.engines.base import Answer, BaseEngine, Engine, Request, Sampling, reads_schema
from palaestra.engines.cached import CACHED_FAILURES
from palaestra.engines.structured import Check, ask
from palaestra.teachers.prompts import TeacherPrompts
from palaestra.teachers.skills.records import Category, fault, key, tidy

T = TypeVar("T", bound=BaseModel)


@dataclass(frozen=True)
class SkillQueries:
    """The engine, prompts and limits of all stages; see `Discovery` for the other arguments.

    Arguments:
        again: the number of repeated questions of each call of `ask`; the reader empties the list.
    """

    engine: Engine
    prompts: TeacherPrompts = field(default_factory=TeacherPrompts)
    tries: int = 3
    max_tokens: int = 1024
    seed: int = 0
    show_references: bool = False
    again: list[int] = field(default_factory=list, compare=False)

    def ask(self, questions: Sequence[Request], schema: type[T], *, check: Check[T] | None = None) -> list[T | Failure]:
        """Ask questions. Returns an answer of the schema, or a failure, for each."""
        counted = _Counted(self.engine)
        answers = ask(counted, questions, schema, tries=self.tries, check=check)
        self.again.append(counted.requests - len(questions))
        return answers

    def request(self, prompt: str, *, max_tokens: int = 0, **variables: Any) -> Request:
        messages = self.prompts.messages(f"skills/{prompt}", **variables)
        return Request(messages, Sampling(max_tokens=max_tokens or self.max_tokens), self.seed)

    def about(self, problem: Problem, prompt: str, **variables: Any) -> Request:
        """A question about one problem, with its last message and images.

        The model sees neither earlier messages, which are instructions or worked problems, nor the problem's id, which may
        contain the task's own skill.
        """
        asked = problem.messages[-1]
        request = self.request(prompt, question=asked.text, **variables)
        images = () if isinstance(asked.content, str) else tuple(p for p in asked.content if isinstance(p, ImagePart))
        if not images:
            return request
        *before, last = request.messages
        shown = Message(last.role, (TextPart(last.text), *images))
        return Request((*before, shown), request.sampling, request.seed)


def is_transient(failure: Failure) -> bool:
    """Whether a failure is transient, so that the question may be asked again."""
    return failure.cause not in CACHED_FAILURES


class _Counted(BaseEngine):
    """An engine that counts its requests, including those that a cache answers."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.name, self.requests = engine, engine.name, 0
        self.reads_schema = reads_schema(engine)

    def generate(self, requests: Sequence[Request]) -> list[list[Answer]]:
        self.requests += len(requests)
        return self.engine.generate(requests)


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
