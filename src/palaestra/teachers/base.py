"""The teacher protocol: an agent that observes a student's state and writes a lesson.

A `PlanningTeacher` plans orders, and a writer writes their examples: the task's own generators (`TaskWriter`) or a language
model (`palaestra.teachers.model_writer`).
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from palaestra.core.errors import LessonError, PalaestraError, SettingsError
from palaestra.core.records import Decision, Example, Failure, Lesson
from palaestra.core.registry import Registry, check_signature, describe_location, describe_origin
from palaestra.core.settings import check_options, short_repr
from palaestra.envs.lesson.state import StudentState, ValidationAttempt
from palaestra.tasks.base import GenerativeTask, Task
from palaestra.tasks.evaluate import write_examples

TEACHERS = Registry("teacher", "palaestra.teachers")
for _name, _place, _help in (
    ("no_state", "simple:NoState", "the same number of examples for every skill; ignores the student's results"),
    ("open_ended", "simple:OpenEnded", "examples for single wrong answers of the student, sampled from all of them"),
    ("skill_list", "simple:SkillList", "examples by the wrong answers of each skill, for its subskills with the most errors"),
    ("skill_tree", "skill_tree:SkillTree", "one tree of subskills per skill: a policy explores and exploits, within limits"),
    ("sfl", "simple:LearnabilityTeacher", "by p(1 - p) at the accuracy p of each subskill: sampling for learnability"),
    ("progress", "simple:ProgressTeacher", "by the change of each skill's accuracy in the last round, up or down"),
    ("learned", "learned:Learned", "a policy that was trained by reinforcement learning divides each lesson; needs policy=RUN"),
):  # fmt: skip
    TEACHERS.register(_name, f"palaestra.teachers.{_place}", _help)


@runtime_checkable
class Teacher(Protocol):
    """Writes lessons.

    A teacher keeps no state between rounds. The `StudentState` contains the history of the episode, so the same state and the
    same generator give the same lesson, also after a resume.
    """

    def write(self, state: StudentState, size: int, generator: np.random.Generator) -> Lesson:
        """Write a lesson of at most `size` examples for a student in `state`."""
        ...


class PlanningTeacher(ABC):
    """A teacher that orders examples from a writer. Subclasses implement `plan`.

    Arguments:
        task: the task to teach.
        skills: only these skills; empty: all.
        writer: writes the examples; default: the task's own generators.
    """

    reads_references = True
    """Whether the expected answers of validation problems may change its lessons."""

    def __init__(self, task: Task, skills: tuple[str, ...] = (), *, writer: Writer | None = None) -> None:
        self.task = task
        self.skills = {name: parts for name, parts in task.skills().items() if not skills or name in skills}
        self.writer: Writer = writer if writer is not None else TaskWriter(task)
        # The orders of the last lesson with their results. A caller can order missing examples again.
        self.written: list[tuple[Order, Written]] = []

    @abstractmethod
    def plan(self, state: StudentState, size: int, generator: np.random.Generator) -> list[Order]:
        """Return orders of `size` examples in total."""

    def write(self, state: StudentState, size: int, generator: np.random.Generator) -> Lesson:
        orders = [order for order in self.plan(state, size, generator) if order.count]
        written = self.writer.write(orders, generator)
        self.written = list(zip(orders, written, strict=True))
        examples = tuple(example for result in written for example in result.examples)
        return Lesson(examples, list_decisions(orders, written))


def make_teacher(
    name: str, task: Task, skills: tuple[str, ...] = (), *, writer: Writer | None = None, **options: Any
) -> Teacher:
    """Build the teacher that is registered under `name`.

    Raises:
        SettingsError: the teacher does not take one of the options or a writer; the message lists its options.
        LessonError: the registered object is not a teacher, or its constructor raised an error.
    """
    kind = TEACHERS.get(name)
    if not callable(kind):
        raise LessonError(f"teacher '{name}' is registered as {short_repr(kind)}; register its class")
    given = options | ({} if writer is None else {"writer": writer})
    check_options(f"teacher '{name}'", given, list(inspect.signature(kind).parameters)[2:])
    with _explain_errors(name, kind):
        teacher: Teacher = kind(task, skills, **given)
    if not callable(getattr(teacher, "write", None)):
        raise LessonError(f"teacher '{name}' is not a teacher: {type(teacher).__name__} has no method 'write'")
    owner = f"{type(teacher).__name__}.write"
    check_signature(teacher.write, owner, "state", "size", "generator", error=LessonError)
    return teacher


def write_lesson(teacher: Teacher, name: str, state: StudentState, size: int, generator: np.random.Generator) -> Lesson:
    """Let a teacher write a lesson and check the result.

    Raises:
        LessonError: the teacher raised an error, returned no `Lesson`, or a lesson of more than `size` examples. The message
            names the teacher, and the file and line of user code.
    """
    with _explain_errors(name, type(teacher)):
        lesson: Any = teacher.write(state, size, generator)
    where = describe_location(type(teacher).write)
    if not isinstance(lesson, Lesson):
        raise LessonError(f"teacher '{name}' must return a Lesson; its write returned {type(lesson).__name__}{where}")
    if isinstance(lesson.examples, Sized) and len(lesson.examples) > size:
        count = len(lesson.examples)
        raise LessonError(f"teacher '{name}' must write at most {size} examples; it wrote {count}{where}")
    return lesson


@contextmanager
def _explain_errors(name: str, kind: Any) -> Iterator[None]:
    """Convert errors of user code to a `LessonError` that names the teacher, the file and the line."""
    try:
        yield
    except Exception as error:
        if isinstance(error, PalaestraError) or str(getattr(kind, "__module__", "")).startswith("palaestra."):
            raise
        message = f"{type(error).__name__}: {' '.join(str(error).split())}{describe_origin(error)}"
        raise LessonError(f"teacher '{name}' raised {message}") from error


def write_from_task(
    task: GenerativeTask, allocation: Mapping[str, Mapping[str, int]], generator: np.random.Generator
) -> tuple[Example, ...]:
    """Let the task's own generators write the given number of examples of each skill and subskill."""
    orders = [Order(skill, part, count, "", "") for skill, parts in allocation.items() for part, count in parts.items()]
    return tuple(example for result in TaskWriter(task).write(orders, generator) for example in result.examples)


def list_decisions(orders: Sequence[Order], written: Sequence[Written]) -> tuple[Decision, ...]:
    """One decision per skill, action and reason, with the written examples; and one per kind of failure."""
    allocations: dict[tuple[str, str, str], dict[str, int]] = {}
    failed: Counter[tuple[str, str]] = Counter()
    for order, result in zip(orders, written, strict=True):
        allocation = allocations.setdefault((order.skill, order.action, order.reason), {})
        for example in result.examples:
            other = order.skill and example.skill and example.skill != order.skill
            name = f"{example.skill}/{example.subskill}" if other else example.subskill
            allocation[name] = allocation.get(name, 0) + 1
        failed.update((order.skill, failure.message) for failure in result.failures)
    decisions = [Decision(*key, allocation) for key, allocation in allocations.items()]
    decisions += [Decision(skill, "failed", f"{count} x {message}") for (skill, message), count in failed.items()]
    return tuple(decisions)


@dataclass(frozen=True, slots=True)
class Order:
    """A teacher's order of examples of one kind, with its reason.

    Arguments:
        skill, subskill: what the examples exercise; an empty `subskill` means all subskills in turn, an empty `skill`
            leaves it to the writer.
        count: the number of examples.
        action: the teacher's action on the skill (`uniform`, `explore`, `exploit`, ...).
        reason: the reason for the report; orders with the same skill, action and reason form one decision.
        hypothesis: what the student may lack, for a language model as the writer.
        errors: wrong answers of the student, for a language model as the writer.
    """

    skill: str
    subskill: str
    count: int
    action: str
    reason: str
    hypothesis: str = ""
    errors: tuple[ValidationAttempt, ...] = ()


@dataclass(frozen=True, slots=True)
class Written:
    """The result of an order: its examples, and the failures of the rest."""

    examples: tuple[Example, ...]
    failures: tuple[Failure, ...] = ()


class Writer(Protocol):
    """Writes the examples of orders."""

    def write(self, orders: Sequence[Order], generator: np.random.Generator) -> list[Written]:
        """Write at most `count` examples for each order. The same orders and generator give the same examples."""
        ...


class TaskWriter:
    """Lets the task's own generators write. It ignores hypotheses and errors."""

    def __init__(self, task: Task) -> None:
        if not isinstance(task, GenerativeTask):
            raise SettingsError(f"task '{task.name}' has no generators of its own; set 'writer' to a language model")
        self.task = task

    def write(self, orders: Sequence[Order], generator: np.random.Generator) -> list[Written]:
        written = []
        for skill, subskill, count in ((order.skill, order.subskill, order.count) for order in orders):
            written.append(Written(write_examples(self.task, skill, subskill, count, generator) if count else ()))
        return written
