"""A task with discovered skills in place of its own, and the task's own skills as a skill map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from palaestra.core.errors import TaskError
from palaestra.core.records import Completion, Example, Failure, FailureCause, Problem, Score, Split
from palaestra.tasks.base import GenerativeTask, Task, check_skills
from palaestra.teachers.skills.records import Category, SkillMap

_GOLD = "gold_skill"
"""The metadata key of a relabelled problem for the task's own skill and subskill, which scorers may need."""


def original(problem: Problem) -> Problem:
    """Restore the task's own skill of a problem."""
    if _GOLD not in problem.metadata:
        return problem
    skill, subskill = problem.metadata[_GOLD]
    metadata = {name: value for name, value in problem.metadata.items() if name != _GOLD}
    return replace(problem, skill=skill, subskill=subskill, metadata=metadata)


def relabel(problems: Sequence[Problem], skill_map: SkillMap) -> list[Problem]:
    """Problems with the skills of `skill_map`. A problem that is not in it gets an empty skill."""
    relabeled = []
    for own in map(original, problems):
        metadata, skill = {**own.metadata, _GOLD: [own.skill, own.subskill]}, skill_map.skill(own.id)
        relabeled.append(replace(own, skill=skill, subskill=skill_map.subskill(own.id), metadata=metadata))
    return relabeled


class Discovered:
    """A task with the skills of a skill map. All other attributes are those of `task`.

    The problems are the task's own, `per_skill` of each of its own skills, with other labels, so runs on discovered and on
    gold skills are measured on the same problems. An unassigned problem has an empty skill.

    It has no generators, because those of the task support only the task's skills. A language model must write the examples.

    Arguments:
        only: the task's own skills to use; empty: all.

    Raises:
        TaskError: the map has no categories.
    """

    def __init__(self, task: Task, skill_map: SkillMap, only: Sequence[str] = ()) -> None:
        if not skill_map.categories:
            why = next((failure.message for failure in skill_map.unassigned.values()), "nothing was discovered yet")
            raise TaskError(f"there are no discovered skills for task '{task.name}': {why}")
        self.task, self.skill_map, self.only, self.name = task, skill_map, tuple(only), task.name

    def __getattr__(self, name: str) -> Any:
        # A copy has no `task` yet. The others depend on the task's own skills.
        if name in ("task", "write_examples", "get_shots", "recognize_skill"):
            raise AttributeError(name)
        return getattr(self.task, name)

    def skills(self) -> Mapping[str, tuple[str, ...]]:
        """The categories, with the names of stage 1 as their subskills."""
        return self.skill_map.skills()

    def problems(self, split: Split, per_skill: int, seed: int, skills: Sequence[str] = ()) -> list[Problem]:
        """The task's problems with their discovered skills, optionally only those of `skills`.

        Raises:
            TaskError: validation or test problems are not in the skill map, or no problem has one of `skills`.
        """
        check_skills(self, skills)
        own = self.task.problems(split, per_skill, seed, () if split is Split.TRAIN else self.only)
        unseen = self.skill_map.missing(own)
        if unseen and split is not Split.TRAIN:
            example = f"for example {unseen[0].id}; pass them to assign_more first"
            raise TaskError(f"{len(unseen)} of {len(own)} {split} problems are not in the skill map, {example}")
        labeled = relabel(own, self.skill_map)
        for skill in set(skills) - {problem.skill for problem in labeled}:
            raise TaskError(f"no {split} problem of '{self.name}' has the skill '{skill}'; request more, or omit it")
        return [problem for problem in labeled if not skills or problem.skill in skills]

    def score(self, problem: Problem, completion: Completion) -> Score | Failure:
        return self.task.score(original(problem), completion)


class GenerativeDiscovered(Discovered):
    """A `Discovered` task with generators, for a skills file that uses the task's own skill names."""

    def write_examples(self, skill: str, subskill: str, count: int, generator: np.random.Generator) -> list[Example]:
        assert isinstance(self.task, GenerativeTask)
        return self.task.write_examples(skill, subskill, count, generator)


def map_own_skills(task: Task, problems: Sequence[Problem]) -> SkillMap:
    """Make a skill map of the task's own skills.

    Raises:
        TaskError: the task has fewer than two skills.
    """
    skills = task.skills()
    if len(skills) < 2:
        raise TaskError(f"task '{task.name}' has no skills of its own: expected at least 2, got {len(skills)}")
    own = [original(problem) for problem in problems]
    nothing = Failure(FailureCause.INVALID_REQUEST, f"task '{task.name}' assigns no skill to this problem")
    return SkillMap(
        names={problem.id: problem.subskill for problem in own if problem.subskill},
        categories=tuple(Category(name, "", tuple(parts)) for name, parts in skills.items()),
        assignment={problem.id: problem.skill for problem in own if problem.skill},
        unassigned={problem.id: nothing for problem in own if not problem.skill},
        wanted=len(skills),
    )
