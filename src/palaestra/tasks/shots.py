"""Few-shot prompts: any task with worked problems before each question.

All models get the same worked problems, as earlier turns of the conversation. They come from the train split and are
excluded from lessons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from palaestra.core.errors import SettingsError, TaskError
from palaestra.core.records import Completion, Example, Failure, Message, Problem, Score, Split
from palaestra.tasks.base import GenerativeTask, Task, get_hooks


class FewShot:
    """A task with `count` worked problems before each question. All other attributes are those of `task`.

    Raises:
        SettingsError: the count is not a positive integer.
        TaskError: the task has no worked problems.
    """

    def __init__(self, task: Task, count: int) -> None:
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise SettingsError(f"option 'shots' of {task.name}: expected at least 0; got {count!r}")
        if not get_hooks(task).overrides("get_shots"):
            raise TaskError(f"task '{task.name}' has no worked problems to show; leave shots at 0")
        self.task, self.count, self.name = task, count, task.name
        self._shown = cache(self._find)

    def __getattr__(self, name: str) -> Any:
        if name == "task":  # Not set yet while the object is copied.
            raise AttributeError(name)
        return getattr(self.task, name)

    def skills(self) -> Mapping[str, tuple[str, ...]]:
        return self.task.skills()

    def problems(self, split: Split, per_skill: int, seed: int, skills: Sequence[str] = ()) -> list[Problem]:
        return [
            replace(problem, messages=(*self._turns(problem.skill), *problem.messages))
            for problem in self.task.problems(split, per_skill, seed, skills)
        ]

    def score(self, problem: Problem, completion: Completion) -> Score | Failure:
        return self.task.score(problem, completion)

    def _turns(self, skill: str) -> tuple[Message, ...]:
        shown = ((*example.messages, Message("assistant", example.response)) for example in self._shown(skill))
        return tuple(message for turn in shown for message in turn)

    def _find(self, skill: str) -> list[Example]:
        shots: list[Example] = list(get_hooks(self.task).get_shots(skill, self.count))
        if len(shots) < self.count:
            raise TaskError(f"task '{self.name}' has {len(shots)} worked problems to show; got shots={self.count}")
        return shots


class GenerativeFewShot(FewShot):
    """Few-shot prompts for a task that generates examples."""

    def write_examples(self, skill: str, subskill: str, count: int, generator: np.random.Generator) -> list[Example]:
        """Examples of the task with few-shot prompts, without the worked problems themselves."""
        assert isinstance(self.task, GenerativeTask)
        seen = {example.messages for example in self._shown(skill)}
        examples: list[Example] = []
        for _ in range(10):
            written = self.task.write_examples(skill, subskill, count + len(seen), generator)
            examples += [example for example in written if example.messages not in seen]
            if len(examples) >= count:
                break
        else:
            raise TaskError(f"{self.name} has no train problems of {skill} besides the {self.count} that are shown")
        turns = self._turns(skill)
        return [replace(example, messages=(*turns, *example.messages)) for example in examples[:count]]


def few_shot(task: Task, count: int) -> Task:
    """`task` with `count` worked problems before each question."""
    kind = GenerativeFewShot if isinstance(task, GenerativeTask) else FewShot
    return kind(task, count)
