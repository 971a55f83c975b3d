"""The problems of a task that an environment draws from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from palaestra.core.checks import check_integer, short_repr
from palaestra.core.errors import EnvError, TooFewProblemsError
from palaestra.core.records import Problem, Split
from palaestra.tasks.base import EVERY, Task, check_skills, get_hooks, make_task
from palaestra.tasks.checks import draw_problems

ENOUGH = 200
"""Problems of a skill, where nobody says how many."""


def resolve_task(task: Any, options: Mapping[str, Any] | None = None) -> Task:
    """A task, or the one of that name.

    Arguments:
        options: of a task that is given by its name.

    Raises:
        EnvError: it is neither, or the options are no options.
    """
    if not isinstance(options, Mapping | None):
        raise EnvError(f"task_options is a mapping of names to values; got {short_repr(options)}")
    if isinstance(task, str):
        return make_task(task, **(options or {}))
    if not all(callable(getattr(task, name, None)) for name in ("skills", "problems", "score")):
        raise EnvError(f"task is the name of one, or a Task; got {short_repr(task)}")
    found: Task = task
    return found


def select_problems(
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
    if isinstance(skills, str):
        skills = [skills]
    names = list(skills) if isinstance(skills, Iterable) else [skills]
    if not all(isinstance(name, str) for name in names):
        raise EnvError(f"skills is the name of one, or a list of names; got {short_repr(skills)}")
    skills, seed = names, check_integer("problem_seed", seed)
    check_skills(task, skills)
    if split not in list(Split):
        raise EnvError(f"split is one of {', '.join(Split)}; got {split!r}")
    if per_skill is None:
        found = _up_to(ENOUGH, task, Split(split), seed, skills)
    elif check_integer("problems", per_skill) < 0 or (per_skill == EVERY and get_hooks(task).is_procedural):
        raise EnvError(f"problems is how many a skill, at least 1 for {task.name}; got {per_skill}")
    else:
        found = draw_problems(task, Split(split), per_skill, seed, skills)
    if not found:
        raise EnvError(f"task {task.name} has no {split} problems")
    return found


def _up_to(most: int, task: Task, split: Split, seed: int, skills: Sequence[str]) -> list[Problem]:
    """`most` problems of each skill, or as many as it has; a skill that has none is left out unless it was asked for."""
    found: list[Problem] = []
    for skill in skills or task.skills():
        try:
            found += draw_problems(task, split, most, seed, [skill])
        except TooFewProblemsError as error:
            if error.available:
                found += draw_problems(task, split, error.available, seed, [skill])
            elif skills:
                raise
    return found
