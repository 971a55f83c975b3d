"""What a teacher sees: the state of the student, as typed records and as Gymnasium spaces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from palaestra.core.records import Attempt, Completion, Example, Lesson, Message, Report
from palaestra.core.spaces import Choice, Rate, RecordSpace, Several, UnicodeText, Whole

TEXT_LIMIT = 1 << 20


@dataclass(frozen=True, slots=True)
class ValidationAttempt:
    """How the student did on one validation problem, as far as a teacher may know.

    Arguments:
        reference: the expected answer; empty unless the environment shows references.
        correct: `"yes"`, `"no"`, or `"failed"` where nothing is known.
    """

    question: str
    response: str
    correct: str
    skill: str = ""
    subskill: str = ""
    reference: str = ""


@dataclass(frozen=True, slots=True)
class Round:
    """A round that is over: where its data went, and the student's report after it."""

    allocation: Mapping[str, Mapping[str, int]]
    report: Report


@dataclass(frozen=True, slots=True)
class StudentState:
    """The observation at the lesson scale.

    Arguments:
        round: rounds that are over.
        report: validation accuracy by skill and subskill, now.
        attempts: the attempts on validation problems behind it.
        examples: how many examples the student has been taught so far.
        budget: how many more may still come.
        before: the report before the first round.
        history: every round that is over, in order.
    """

    round: int
    report: Report
    attempts: tuple[ValidationAttempt, ...]
    examples: int
    budget: int
    before: Report = field(default_factory=lambda: Report("all", None, 0.0, 1.0, 0, 0))
    history: tuple[Round, ...] = ()


def to_validation_attempt(attempt: Attempt, show_reference: bool) -> ValidationAttempt:
    """An attempt as a teacher may see it."""
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
    """The same without anything that tells how the student does."""
    nothing = Report(state.report.name, None, 0.0, 1.0, 0, 0)
    history = tuple(replace(round_, report=nothing) for round_ in state.history)
    return replace(state, report=nothing, attempts=(), before=nothing, history=history)


def count_examples(lesson: Lesson) -> dict[str, dict[str, int]]:
    """How many examples of a lesson went to each skill and subskill."""
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
