"""A group of tasks as one task, for runs that validate or test on several tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from pydantic import BaseModel

from palaestra.core.records import Attempt, Completion, Example, Failure, Problem, Score, Split
from palaestra.tasks.base import GenerativeTask, Task, WritableTask, check_skills, get_hooks
from palaestra.tasks.evaluate import draw_problems, score, write_examples

_OWNER = "task_of_group"
"""Metadata key of a problem from a task other than the main one: the name of the task, and the problem's id and skill there."""


@dataclass(frozen=True, slots=True)
class Member:
    """A task of a group.

    Arguments:
        skills: only these skills of the task; all if empty.
        problems: problems per skill; `None` for the number requested from the group.
        is_taught: lessons may contain its skills.
        is_measured: its problems are in the validation and test splits of the group.
    """

    task: Task
    skills: tuple[str, ...] = ()
    problems: int | None = None
    is_taught: bool = True
    is_measured: bool = True


class TaskGroup:
    """Several tasks as one. Each problem is scored by its own task, and examples are written by the task of their skill.

    The main task keeps its names. The names of problems and skills of the other tasks are prefixed with the task's name:
    `gsm8k/2 steps`. All other attributes are those of the main task.

    Arguments:
        members: the tasks by name.
        main: the name of the main task, which must be one of them.
    """

    def __init__(self, members: Mapping[str, Member], main: str) -> None:
        self.members, self.main = dict(members), main
        self.name = members[main].task.name
        hooks = {name: get_hooks(member.task) for name, member in members.items()}
        self.answer_lengths = {name: own.max_tokens for name, own in hooks.items()}
        self.max_tokens = max(self.answer_lengths.values())
        self.is_procedural = any(own.is_procedural for own in hooks.values())
        self.concurrent_scoring = all(own.concurrent_scoring for own in hooks.values())

    def __getattr__(self, name: str) -> Any:
        if name in ("members", "main"):  # Not set yet while the object is copied.
            raise AttributeError(name)
        return getattr(self.members[self.main].task, name)

    def check_scoring(self) -> None:
        for member in self.members.values():
            get_hooks(member.task).check_scoring()

    def skills(self) -> Mapping[str, tuple[str, ...]]:
        """The skills of the members that are taught."""
        return {
            self._join(name, skill): tuple(parts)
            for name, member in self.members.items()
            if member.is_taught
            for skill, parts in member.task.skills().items()
            if not member.skills or skill in member.skills
        }

    def problems(self, split: Split, per_skill: int, seed: int, skills: Sequence[str] = ()) -> list[Problem]:
        """The problems of all measured members; for the train split, of all taught members."""
        check_skills(self, skills)
        problems: list[Problem] = []
        for name, member in self.members.items():
            if member.is_taught if split is Split.TRAIN else member.is_measured:
                count = per_skill if member.problems is None or split is Split.TRAIN else member.problems
                problems += [self.label(p, name) for p in draw_problems(member.task, split, count, seed, member.skills)]
        return [problem for problem in problems if not skills or problem.skill in skills]

    def score(self, problem: Problem, completion: Completion) -> Score | Failure:
        name, own = self._resolve(problem)
        return score(self.members[name].task, own, completion)

    def write_examples(self, skill: str, subskill: str, count: int, generator: np.random.Generator) -> list[Example]:
        name, own = self._split(skill)
        task = self.members[name].task
        assert isinstance(task, GenerativeTask), f"{name} cannot be taught without generators of its own"
        return [replace(example, skill=skill) for example in write_examples(task, own, subskill, count, generator)]

    def brief(self) -> str:
        """The briefs of the tasks that are taught."""
        taught = [name for name, member in self.members.items() if member.is_taught]
        if len(taught) == 1:
            return self._get_writable(self.main).brief()
        return "\n\n".join(f"Skills of {name}: {self._get_writable(name).brief()}" for name in taught)

    def make_example(self, datum: BaseModel, skill: str, subskill: str) -> Example:
        name, own = self._split(skill)
        return replace(self._get_writable(name).make_example(datum, own, subskill), skill=skill)

    def get_shots(self, skill: str, count: int) -> list[Example]:
        name, own = self._split(skill)
        return [replace(shot, skill=skill) for shot in get_hooks(self.members[name].task).get_shots(own, count)]

    def solve(self, example: Example) -> str | None:
        name, own = self.resolve_example(example)
        return get_hooks(self.members[name].task).solve(own)

    def recognize_skill(self, example: Example) -> tuple[str, str] | None:
        name, own = self.resolve_example(example)
        recognized = get_hooks(self.members[name].task).recognize_skill(own)
        return None if recognized is None else (self._join(name, recognized[0]), recognized[1])

    def label(self, problem: Problem, name: str) -> Problem:
        """A problem of the member `name` with the group's id and skill."""
        if name == self.main:
            return problem
        metadata = {**problem.metadata, _OWNER: [name, problem.id, problem.skill]}
        skill = self._join(name, problem.skill)
        return replace(problem, id=f"{name}/{problem.id}", skill=skill, metadata=metadata)

    def resolve_example(self, example: Example) -> tuple[str, Example]:
        """The member of an example, and the example with the member's own skill."""
        name, skill = self._split(example.skill)
        return name, replace(example, skill=skill)

    def _get_writable(self, name: str) -> WritableTask:
        return cast(WritableTask, self.members[name].task)

    def _join(self, name: str, skill: str) -> str:
        return skill if name == self.main else f"{name}/{skill}"

    def _split(self, skill: str) -> tuple[str, str]:
        """The member of a skill and its own name for it; the main task for unknown skills, for example discovered ones."""
        for name in self.members:
            if name != self.main and skill.startswith(f"{name}/"):
                return name, skill.removeprefix(f"{name}/")
        return self.main, skill

    def _resolve(self, problem: Problem) -> tuple[str, Problem]:
        if _OWNER not in problem.metadata:
            return self.main, problem
        name, id_, skill = problem.metadata[_OWNER]
        metadata = {key: value for key, value in problem.metadata.items() if key != _OWNER}
        return name, replace(problem, id=id_, skill=skill, metadata=metadata)


def divide_problems(problems: Sequence[Problem], main: str = "") -> dict[str, list[Problem]]:
    """Problems by the name of their task, in order."""
    parts: dict[str, list[Problem]] = {}
    for problem in problems:
        parts.setdefault(_get_task_name(problem, main), []).append(problem)
    return parts


def divide_attempts(attempts: Sequence[Attempt], main: str) -> dict[str, list[Attempt]]:
    """Attempts by the name of their task, in order."""
    parts: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        parts.setdefault(_get_task_name(attempt.problem, main), []).append(attempt)
    return parts


def _get_task_name(problem: Problem, main: str) -> str:
    return str(problem.metadata[_OWNER][0]) if _OWNER in problem.metadata else main
