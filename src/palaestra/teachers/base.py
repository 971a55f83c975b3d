"""The teacher protocol: an agent that reads a student's state and writes a lesson."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from palaestra.core.records import Example, Lesson
from palaestra.core.registry import Registry
from palaestra.tasks.base import GenerativeTask

if TYPE_CHECKING:
    # Only the types: a list of teachers is to load no torch.
    from palaestra.envs.lesson.state import StudentState

TEACHERS = Registry("teacher", "palaestra.teachers")
TEACHERS.register(
    "no_state", "palaestra.teachers.no_state:NoState", "the same share for every skill, whatever the student does"
)
TEACHERS.register(
    "skill_tree",
    "palaestra.teachers.skill_tree:SkillTree",
    "a tree a skill: opens weak subskills, moves data to where it brought the most",
)


@runtime_checkable
class Teacher(Protocol):
    """Writes lessons.

    A teacher keeps nothing between rounds: all it may know is in the state, which holds the history
    of the episode. So the same state and the same generator give the same lesson, after a resume too.
    """

    def write(self, state: StudentState, size: int, generator: np.random.Generator) -> Lesson:
        """A lesson of at most `size` examples for a student in `state`."""
        ...


def make_teacher(name: str, task: GenerativeTask, skills: tuple[str, ...] = (), **options: Any) -> Teacher:
    """Build the teacher that is registered under `name`."""
    teacher: Teacher = TEACHERS.get(name)(task, skills, **options)
    return teacher


def write_from_task(
    task: GenerativeTask, allocation: Mapping[str, Mapping[str, int]], generator: np.random.Generator
) -> tuple[Example, ...]:
    """Let the task's own generators write what was allocated to each skill and subskill."""
    examples: list[Example] = []
    for skill, parts in allocation.items():
        for subskill, count in parts.items():
            if count:
                examples += task.write_examples(skill, subskill, count, generator)
    return tuple(examples)
