"""Convert an example to a problem, so that its response or the student's answer can be scored.

An example has no reference. So a task may say how it is read, with one method,

    def to_problem(self, example: Example) -> Problem | None

and where a task has none, these are tried in turn: what the example brings with it (its reference), the problem of the
published train split that asks the same, and the answer that its own response gives. The last proves only that the
scorer finds an answer there; whoever judges by it says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from palaestra.core.records import Example, Problem
from palaestra.tasks.base import Task, get_hooks
from palaestra.tasks.group import TaskGroup
from palaestra.tasks.texts import digest, pictures
from palaestra.teachers.quality.base import Context

if TYPE_CHECKING:
    from palaestra.tasks.math.answers import AnswerKind


class Basis(StrEnum):
    """The source of a problem's reference."""

    TASK = "the task says so"
    BROUGHT = "the example brings it"
    PUBLISHED = "the published train problem"
    CLAIMED = "only the answer of its own response"
    NONE = "nothing"


@dataclass(frozen=True, slots=True)
class Posed:
    """An example as a problem; `None` without a reference."""

    problem: Problem | None
    basis: Basis


def pose(example: Example, context: Context) -> Posed:
    """Convert `example` to a problem. Returns it with the source of its reference."""
    task = _undress(context.task)
    if isinstance(task, TaskGroup):
        name, plain = task.resolve_example(example)
        posed = pose(plain, replace(context, task=task.members[name].task))
        return replace(posed, problem=None if posed.problem is None else task.label(posed.problem, name))
    hooks = get_hooks(task)
    if hooks.overrides("to_problem"):
        problem = hooks.to_problem(example)
        return Posed(problem, Basis.TASK if problem is not None else Basis.NONE)
    if not example.messages:
        return Posed(None, Basis.NONE)
    reader = _reader(task)
    candidate: Problem | None
    if example.reference:
        candidate, basis = reader(example, example.reference), Basis.BROUGHT
    elif example.messages[-1] in context.published:
        candidate, basis = context.published[example.messages[-1]], Basis.PUBLISHED
    else:
        candidate, basis = reader(example, None), Basis.CLAIMED
    return Posed(candidate, basis if candidate is not None else Basis.NONE)


def bare(task: Task) -> Task:
    """Unwrap a task: remove few-shot prompts and discovered skills. A group yields its main task."""
    task = _undress(task)
    return bare(task.members[task.main].task) if isinstance(task, TaskGroup) else task


def _undress(task: Task) -> Task:
    from palaestra.tasks.shots import FewShot
    from palaestra.teachers.skills.task import Discovered

    while isinstance(task, FewShot | Discovered):
        task = task.task
    return task


def make_problem_id(example: Example) -> str:
    """An id for the problem of an example; the same question and response give the same id."""
    parts = [part for m in example.messages for part in (m.role, m.text, pictures(m))]
    return f"example/{digest(*parts, example.response)}"


Reader = Callable[[Example, str | None], Problem | None]
"""Makes a problem from an example and a reference, or from the answer in its response."""


def _reader(task: Task) -> Reader:
    from palaestra.tasks.code.task import CodeTask
    from palaestra.tasks.math.task import MathSkills
    from palaestra.tasks.math.worked import WorkedTask
    from palaestra.tasks.tools.task import ToolsSkills
    from palaestra.tasks.vision.task import VisionSkills

    if isinstance(task, CodeTask | ToolsSkills):
        # Their problems hold solutions and plans of ours, which are executed here: never what a model wrote.
        return lambda example, reference: None
    if isinstance(task, MathSkills):
        return _math_skills
    if isinstance(task, WorkedTask):
        return _read_worked
    if isinstance(task, VisionSkills):
        return _vision_skills
    return _any


def _math_skills(example: Example, reference: str | None) -> Problem | None:
    from palaestra.tasks.math.answers import extract
    from palaestra.tasks.math.task import SKILLS

    if example.skill in SKILLS:
        return _problem(example, reference or extract(example.response, SKILLS[example.skill].kind) or "")
    # The skill determines the kind of answer. For a discovered skill, the form of the reference determines it; all skills
    # of one kind are scored in the same way.
    kind = infer_kind(reference) if reference else None
    alike = next((name for name, skill in SKILLS.items() if skill.kind is kind), "")
    return replace(_problem(example, reference), skill=alike, subskill="") if reference and alike else None


def infer_kind(reference: str) -> AnswerKind | None:
    """The kind of answer of a reference; `None` if unknown.

    >>> [infer_kind(text) for text in ("1,200", "4:05", "3, 1, 2", "7 nuts")]
    [<AnswerKind.NUMBER: 'number'>, <AnswerKind.CLOCK: 'clock'>, <AnswerKind.LIST: 'list'>, None]
    """
    from palaestra.tasks.math.answers import AnswerKind, extract

    # Numbers come first, because a number may contain commas like a list.
    return next((kind for kind in AnswerKind if extract(reference, kind) == reference), None)


def _read_worked(example: Example, reference: str | None) -> Problem:
    from palaestra.tasks.math.extraction import extract

    candidate = None if reference else extract(example.response)
    return _problem(example, reference or (candidate.text if candidate else ""), question=example.messages[-1].text)


def _vision_skills(example: Example, reference: str | None) -> Problem:
    from palaestra.tasks.vision.answers import extract

    choices = list(example.metadata.get("choices", ()))
    return _problem(example, reference or extract(example.response, choices) or "")


def _any(example: Example, reference: str | None) -> Problem | None:
    """For all other tasks: the reference and metadata of the example."""
    return _problem(example, reference) if reference else None


def _problem(example: Example, reference: str, **metadata: object) -> Problem:
    # Scorers of visual tasks read `choices`; an empty list means an open answer.
    brought = {"choices": [], **(example.metadata), **metadata}
    return Problem(make_problem_id(example), example.messages, reference, example.skill, example.subskill, brought)
