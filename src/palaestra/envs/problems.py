"""The problems of a task that an environment draws from."""

from __future__ import annotations

from collections.abc import Sequence

from palaestra.core.errors import EnvError, TooFewProblemsError
from palaestra.core.records import Problem, Split
from palaestra.tasks.base import EVERY, Task, check_skills, is_drawn

ENOUGH = 200
"""Problems of a skill, where nobody says how many."""


def problems_of(
    task: Task, split: str, per_skill: int | None, skills: str | Sequence[str], seed: int
) -> Sequence[Problem]:
    """At least one problem.

    Arguments:
        per_skill: how many a skill, 0 for all of a published data set; None for `ENOUGH`, or all that a skill has if
            those are fewer.
        skills: only these; all if none is given.

    Raises:
        EnvError, TaskError: there are no such problems, or not so many.
    """
    skills = [skills] if isinstance(skills, str) else list(skills)
    check_skills(task, skills)
    if split not in list(Split):
        raise EnvError(f"split is one of {', '.join(Split)}; got {split!r}")
    if per_skill is None:
        found = _up_to(ENOUGH, task, Split(split), seed, skills)
    elif per_skill < 0 or (per_skill == EVERY and is_drawn(task)):
        raise EnvError(f"problems is how many a skill, at least 1 for {task.name}; got {per_skill}")
    else:
        found = task.problems(Split(split), per_skill, seed, skills)
    if not found:
        raise EnvError(f"task {task.name} has no {split} problems")
    return found


def _up_to(most: int, task: Task, split: Split, seed: int, skills: Sequence[str]) -> list[Problem]:
    """`most` problems of each skill, or as many as it has; a skill that has none is left out unless it was asked for."""
    found: list[Problem] = []
    for skill in skills or task.skills():
        try:
            found += task.problems(split, most, seed, [skill])
        except TooFewProblemsError as error:
            if error.available:
                found += task.problems(split, error.available, seed, [skill])
            elif skills:
                raise
    return found
