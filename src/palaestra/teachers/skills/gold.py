"""The task's own skills as a skill map, to compare discovered skills with."""

from __future__ import annotations

from collections.abc import Sequence

from palaestra.core.errors import TaskError
from palaestra.core.records import Failure, FailureCause, Problem
from palaestra.tasks.base import Task
from palaestra.teachers.skills.records import Category, SkillMap
from palaestra.teachers.skills.task import original


def map_own_skills(task: Task, problems: Sequence[Problem]) -> SkillMap:
    """Make a skill map of the task's own skills.

    Raises:
        TaskError: the task has fewer than two skills.
    """
    skills = task.skills()
    if len(skills) < 2:
        raise TaskError(
            f"task '{task.name}' has no skills of its own (expected at least 2, got {', '.join(skills) or 'none'}); "
            "discover them with a language model"
        )
    own = [original(problem) for problem in problems]
    nothing = Failure(FailureCause.INVALID_REQUEST, f"task '{task.name}' gives this problem no skill")
    return SkillMap(
        names={problem.id: problem.subskill for problem in own if problem.subskill},
        categories=tuple(Category(name, "", tuple(parts)) for name, parts in skills.items()),
        assignment={problem.id: problem.skill for problem in own if problem.skill},
        unassigned={problem.id: nothing for problem in own if not problem.skill},
        wanted=len(skills),
    )
