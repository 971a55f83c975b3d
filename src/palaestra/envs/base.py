"""What environments share: types, the reset mask, and the choice of their task and problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, SupportsFloat, TypeAlias

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv

from palaestra.core.errors import EnvError, TooFewProblemsError
from palaestra.core.records import Problem, Split
from palaestra.core.settings import check_integer, short_repr
from palaestra.tasks.base import EVERY, Task, check_skills, get_hooks, make_task
from palaestra.tasks.evaluate import draw_problems

# Gymnasium's classes are generic; here their values may be anything.
Info: TypeAlias = dict[str, Any]
"""The `info` of `reset` and `step`, by name."""
ResetOptions: TypeAlias = dict[str, Any] | None
"""The `options` of `reset`."""
Options: TypeAlias = Mapping[str, Any]
"""Arguments of an environment or a task, by name."""
ToolSchemas: TypeAlias = Sequence[Mapping[str, Any]]
"""Descriptions of tools in OpenAI's format."""
GymStep: TypeAlias = tuple[Any, SupportsFloat, bool, bool, Info]
"""The result of `gymnasium.Env.step`."""
GymEnv: TypeAlias = gymnasium.Env[Any, Any]
GymVectorEnv: TypeAlias = VectorEnv[Any, Any, Any]
GymSpace: TypeAlias = gymnasium.Space[Any]


def read_reset_mask(options: Options, num_envs: int) -> np.ndarray:
    """The reset option `reset_mask`: the slots to reset, by default all.

    Raises:
        EnvError: it does not have one bool per slot.
    """
    mask = np.asarray(options.get("reset_mask", np.ones(num_envs, dtype=bool)))
    if mask.shape != (num_envs,) or mask.dtype != bool:
        raise EnvError(f"reset_mask must have one bool per slot, shape ({num_envs},); got {mask.dtype} {mask.shape}")
    return mask


DEFAULT_PROBLEMS = 200
"""Default number of problems per skill."""


def resolve_task(task: str | Task, options: Options | None = None) -> Task:
    """Return a task by its name. A task object is returned unchanged.

    Arguments:
        options: arguments of a task that is given by its name.

    Raises:
        EnvError: `task` is neither a name nor a task.
    """
    if isinstance(task, str):
        return make_task(task, **(options or {}))
    if not all(callable(getattr(task, name, None)) for name in ("skills", "problems", "score")):
        raise EnvError(f"task must be a name or a Task; got {short_repr(task)}")
    return task


def select_problems(
    task: Task, split: str, per_skill: int | None, skills: str | Sequence[str], seed: int
) -> Sequence[Problem]:
    """Select the problems of an environment, at least one.

    Arguments:
        per_skill: number of problems per skill, 0 for all of a published data set; `None` for `DEFAULT_PROBLEMS`, or all
            problems of a skill that has fewer.
        skills: names of skills; all if empty.

    Raises:
        EnvError, TaskError: there are no such problems, or too few.
    """
    skills = [skills] if isinstance(skills, str) else list(skills)
    check_skills(task, skills)
    if split not in list(Split):
        raise EnvError(f"split must be one of {', '.join(Split)}; got {split!r}")
    if per_skill is None:
        selected = draw_up_to(DEFAULT_PROBLEMS, task, Split(split), seed, skills)
    elif check_integer("problems", per_skill) < 0 or (per_skill == EVERY and get_hooks(task).is_procedural):
        raise EnvError(f"problems must be at least 1 per skill for {task.name}; got {per_skill}")
    else:
        selected = draw_problems(task, Split(split), per_skill, seed, skills)
    if not selected:
        raise EnvError(f"task {task.name} has no {split} problems")
    return selected


def draw_up_to(maximum: int, task: Task, split: Split, seed: int, skills: Sequence[str] = ()) -> list[Problem]:
    """Draw `maximum` problems of each skill, or as many as it has. A skill without problems raises only if it was named."""
    drawn: list[Problem] = []
    for skill in skills or task.skills():
        try:
            drawn += draw_problems(task, split, maximum, seed, [skill])
        except TooFewProblemsError as error:
            if error.available:
                drawn += draw_problems(task, split, error.available, seed, [skill])
            elif skills:
                raise
    return drawn
