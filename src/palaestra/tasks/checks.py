"""Check what a task returns, where it comes in: tasks are written by users too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from palaestra.core.checks import short
from palaestra.core.errors import TaskError
from palaestra.core.records import Message, Problem, Split
from palaestra.core.user_code import describe_location
from palaestra.tasks.base import Task

_TEXTS = ("id", "reference", "skill", "subskill")


def draw_problems(task: Task, split: Split, per_skill: int, seed: int, skills: Sequence[str] = ()) -> list[Problem]:
    """Call `task.problems`, and check that problems came back.

    Raises:
        TaskError: something else came, or two problems share an id; names the method, its file and its line.
    """
    found: Any = task.problems(split, per_skill, seed, skills)
    if not isinstance(found, list | tuple):
        raise _wrong(task, found, "a list of Problem")
    seen: set[str] = set()
    for problem in found:
        if not isinstance(problem, Problem):
            raise _wrong(task, problem, "a list of Problem", " in a list")
        for name in _TEXTS:
            if not isinstance(getattr(problem, name), str):
                raise _wrong(task, getattr(problem, name), "a text", f" as the {name} of a problem")
        if not isinstance(problem.messages, tuple) or not all(isinstance(m, Message) for m in problem.messages):
            raise _wrong(task, problem.messages, "a tuple of Message", " as the messages of a problem")
        if not isinstance(problem.metadata, Mapping):
            raise _wrong(task, problem.metadata, "a mapping", " as the metadata of a problem")
        if problem.id in seen:
            raise _wrong(task, problem.id, "ids that differ", " as the id of two problems")
        seen.add(problem.id)
    return list(found)


def _wrong(task: Task, value: Any, expected: str, where: str = "") -> TaskError:
    return TaskError(
        f"{type(task).__name__}.problems returned {short(value)}{where}{describe_location(task.problems)}; expected {expected}"
    )
