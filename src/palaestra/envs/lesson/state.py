"""The state of a lesson environment: what the teacher sees, and the journal of its rounds."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import to_json

from palaestra.core.errors import LessonError, RunError, suggest
from palaestra.core.records import Attempt, Completion, Example, Lesson, Message, Report
from palaestra.core.settings import short_repr
from palaestra.core.spaces import Choice, Rate, RecordSpace, Several, UnicodeText, Whole
from palaestra.envs.lesson.student import Student
from palaestra.runs.files import PARTIAL, write_folder
from palaestra.runs.provenance import LedgerEntry

_MAX_TEXT = 1 << 20
# In a tuple, because pydantic accepts no configuration for a dataclass type itself.
_LESSONS = TypeAdapter(tuple[Lesson], config=ConfigDict(revalidate_instances="always", strict=True))


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
    problem, reference = attempt.problem, attempt.problem.reference if show_reference else ""
    response = attempt.completion.text if isinstance(attempt.completion, Completion) else ""
    correct = {True: "yes", False: "no", None: "failed"}[attempt.correct]
    return ValidationAttempt(problem.messages[-1].text, response, correct, problem.skill, problem.subskill, reference)


def hide_results(state: StudentState) -> StudentState:
    """Remove the student's results from a state."""
    nothing = Report(state.report.name, None, 0.0, 1.0, 0, 0)
    history = tuple(replace(round_, report=nothing) for round_ in state.history)
    return replace(state, report=nothing, attempts=(), before=nothing, history=history)


def count_examples(lesson: Lesson) -> dict[str, dict[str, int]]:
    """Count the examples of a lesson by skill and subskill."""
    allocation: dict[str, dict[str, int]] = {}
    for (skill, subskill), count in Counter((e.skill, e.subskill) for e in lesson.examples).items():
        allocation.setdefault(skill, {})[subskill] = count
    return allocation


def observation_space() -> RecordSpace:
    """The space of `StudentState`."""
    text = UnicodeText(_MAX_TEXT)
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
    text = UnicodeText(_MAX_TEXT, min_length=1, sample_length=24)
    message = RecordSpace(Message, {"role": Choice(("user", "system", "assistant", "tool")), "content": text})
    example = RecordSpace(
        Example,
        {"messages": Several(message, 1, sample_up_to=1), "response": text,
         "skill": Choice(("", *skills)), "subskill": UnicodeText(_MAX_TEXT)},
    )  # fmt: skip
    return RecordSpace(Lesson, {"examples": Several(example, 1)})


def check_lesson(lesson: object, skills: Collection[str]) -> None:
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


class Journal(Protocol):
    """Stores the finished work of one episode, such as `palaestra.runs.store.Store`. The methods here store nothing."""

    def attempts(self, phase: str) -> list[Attempt]:
        """The stored attempts of `phase`."""
        return []

    def add_attempts(self, phase: str, attempts: Sequence[Attempt], cost: LedgerEntry) -> None:
        """Store the attempts of a chunk with their cost."""
        return

    def weights_sha256(self, round_: int) -> str | None:
        """The hash of the weights after a round's training; `None` if it has not finished."""
        return None

    def add_training(
        self, round_: int, weights_sha256: str, curve: Sequence[tuple[int, float]], cost: LedgerEntry
    ) -> None:
        """Record that a training has finished and its weights are saved."""
        return


class NullJournal(Journal):
    """A journal that stores nothing, for an environment without a run folder."""


class RoundCheckpoints:
    """The weights of the rounds of an episode.

    Arguments:
        folder: where the weights are saved; by default a temporary folder, which is removed with this object.
        keep_all: keep the weights of every round, not only those that may still be needed.

    Attributes:
        progress: the folder for checkpoints of a running training; `None` if the folder is temporary.
    """

    def __init__(self, folder: Path | None = None, *, keep_all: bool = False) -> None:
        self.keep_all, self.progress = keep_all, None if folder is None else folder / "training"
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix="palaestra-lesson-"))
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.folder = folder

    def save(self, round_: int, student: Student) -> None:
        write_folder(self._folder(round_), student.save)

    def load(self, round_: int, student: Student, weights_sha256: str | None) -> None:
        """Load the weights after a round's training into `student`.

        Raises:
            RunError: the weights are missing, or do not have the recorded hash.
        """
        folder = self._folder(round_)
        if not folder.is_dir():
            raise RunError(f"the run folder is damaged: checkpoint {folder} is missing; restore it or start a new run")
        student.load(folder)
        if weights_sha256 not in (None, student.weights_sha256()):
            raise RunError(f"the run folder is damaged: the weights in {folder} were changed after they were saved")

    def tidy(self, *rounds: int) -> None:
        """Remove all weights except those of `rounds`, and the saved state of a finished training."""
        wanted = {self._folder(round_) for round_ in rounds}
        for folder in self.folder.iterdir() if self.folder.is_dir() else ():
            is_round = folder.name.startswith("round-") and not folder.name.endswith(PARTIAL)
            if folder not in wanted and not (self.keep_all and is_round):
                shutil.rmtree(folder, ignore_errors=True)

    def _folder(self, round_: int) -> Path:
        return self.folder / f"round-{round_}"
