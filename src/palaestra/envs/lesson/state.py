"""The observation of a teacher: the state of the student, as typed records and as Gymnasium spaces."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import to_json

from palaestra.core.checks import short_repr
from palaestra.core.errors import LessonError, suggest
from palaestra.core.records import Attempt, Completion, Example, Lesson, Message, Report
from palaestra.core.spaces import Choice, Rate, RecordSpace, Several, UnicodeText, Whole

TEXT_LIMIT = 1 << 20


@dataclass(frozen=True, slots=True)
class ValidationAttempt:
    """The student's answer to one validation problem, as a teacher sees it.

    Arguments:
        reference: the expected answer; empty unless the environment shows references.
        correct: `"yes"`, `"no"`, or `"failed"` if there is no score.
    """

    question: str
    response: str
    correct: str
    skill: str = ""
    subskill: str = ""
    reference: str = ""


@dataclass(frozen=True, slots=True)
class Round:
    """A finished round: its examples by skill and subskill, and the student's report after it."""

    allocation: Mapping[str, Mapping[str, int]]
    report: Report


@dataclass(frozen=True, slots=True)
class StudentState:
    """The observation at the lesson scale.

    Arguments:
        round: the number of finished rounds.
        report: current validation accuracy by skill and subskill.
        attempts: the attempts on validation problems that the report counts.
        examples: examples taught so far.
        budget: examples that may still be taught.
        before: the report before the first round.
        history: all finished rounds, in order.
    """

    round: int
    report: Report
    attempts: tuple[ValidationAttempt, ...]
    examples: int
    budget: int
    before: Report = field(default_factory=lambda: Report("all", None, 0.0, 1.0, 0, 0))
    history: tuple[Round, ...] = ()


def to_validation_attempt(attempt: Attempt, show_reference: bool) -> ValidationAttempt:
    """Convert an attempt to the record that a teacher sees."""
    response = attempt.completion.text if isinstance(attempt.completion, Completion) else ""
    correct = {True: "yes", False: "no", None: "failed"}[attempt.correct]
    return ValidationAttempt(
        attempt.problem.messages[-1].text,
        response,
        correct,
        attempt.problem.skill,
        attempt.problem.subskill,
        attempt.problem.reference if show_reference else "",
    )


def hide_results(state: StudentState) -> StudentState:
    """Remove the student's results from a state."""
    nothing = Report(state.report.name, None, 0.0, 1.0, 0, 0)
    history = tuple(replace(round_, report=nothing) for round_ in state.history)
    return replace(state, report=nothing, attempts=(), before=nothing, history=history)


def count_examples(lesson: Lesson) -> dict[str, dict[str, int]]:
    """Count the examples of a lesson by skill and subskill."""
    allocation: dict[str, dict[str, int]] = {}
    for example in lesson.examples:
        part = allocation.setdefault(example.skill, {})
        part[example.subskill] = part.get(example.subskill, 0) + 1
    return allocation


def observation_space() -> RecordSpace:
    """The space of `StudentState`."""
    text = UnicodeText(TEXT_LIMIT)
    attempt = RecordSpace(
        ValidationAttempt,
        {"question": text, "response": text, "correct": Choice(("yes", "no", "failed")),
         "skill": text, "subskill": text, "reference": text},
    )  # fmt: skip
    report = RecordSpace(
        Report, {"name": text, "accuracy": Rate(), "low": Rate(), "high": Rate(), "count": Whole(), "correct": Whole()}
    )
    return RecordSpace(
        StudentState,
        {"round": Whole(), "report": report, "attempts": Several(attempt), "examples": Whole(), "budget": Whole()},
    )


def action_space(skills: Iterable[str]) -> RecordSpace:
    """The space of `Lesson` for a task with `skills`. Its samples are short enough for the context of any student."""
    text = UnicodeText(TEXT_LIMIT, min_length=1, sample_length=24)
    message = RecordSpace(Message, {"role": Choice(("user", "system", "assistant", "tool")), "content": text})
    example = RecordSpace(
        Example,
        {"messages": Several(message, 1, sample_up_to=1), "response": text,
         "skill": Choice(("", *skills)), "subskill": UnicodeText(TEXT_LIMIT)},
    )  # fmt: skip
    return RecordSpace(Lesson, {"examples": Several(example, 1)})


# In a tuple, because pydantic accepts no configuration for a dataclass type itself.
_LESSONS = TypeAdapter(tuple[Lesson], config=ConfigDict(revalidate_instances="always", strict=True))


def check_lesson(lesson: Any, skills: Collection[str]) -> None:
    """Raise `LessonError` for an invalid lesson. The message is one line and names the first invalid example.

    Arguments:
        skills: the skills of the task; an example may also have an empty skill.
    """
    if not isinstance(lesson, Lesson):
        raise LessonError(f"expected a Lesson as the action; got {short_repr(lesson)}")
    try:
        _LESSONS.validate_python((lesson,))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part + 1 if isinstance(part, int) else part) for part in first["loc"][1:])
        raise LessonError(f"the lesson's {place}: {first['msg'].lower()}; got {short_repr(first['input'])}") from None
    if not lesson.examples:
        raise LessonError("a lesson needs at least one example; got none")
    for number, example in enumerate(lesson.examples, start=1):
        where = f"example {number} of {len(lesson.examples)}"
        if not any(message.has_image or message.text.strip() for message in example.messages):
            raise LessonError(f"{where} needs a question: its messages are empty")
        if not example.response.strip():
            raise LessonError(f"{where} needs a non-empty response")
        if example.skill and example.skill not in skills:
            raise LessonError(f"{where}: unknown skill {example.skill[:60]!r}; {suggest(example.skill[:60], skills)}")
        try:
            to_json(dict(example.metadata))
        except ValueError as error:
            raise LessonError(f"{where}: its metadata cannot be stored as JSON: {error}") from error
