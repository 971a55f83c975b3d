"""A task, a teacher and an environment as a user would write them, not registered. Each can kill its process once."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from gymnasium.envs.classic_control import CartPoleEnv

from palaestra.core.records import Example, Lesson, Message, Problem, Score
from palaestra.teachers.base import TEACHERS


def die_once(name: str) -> None:
    """Kill this process the first time, where `OWN_CODE_DIES` is the path of a file with that name."""
    mark = Path(os.environ.get("OWN_CODE_DIES", ""))
    if mark.name == name and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


class Doubling:
    """Double a number."""

    name = "doubling"
    max_tokens = 8

    def __init__(self, factor: int = 2) -> None:
        self.factor, self.scored = factor, 0

    def skills(self) -> dict[str, tuple[str, ...]]:
        return {"doubling": ()}

    def problems(self, split: Any, per_skill: int, seed: int, skills: Any = ()) -> list[Problem]:
        start = {"train": 0, "validation": 1000, "test": 2000}[str(split)]
        return [self._pose(start + k) for k in range(per_skill or 4)]

    def _pose(self, number: int) -> Problem:
        message = Message("user", f"What is {number} times {self.factor}?")
        return Problem(f"p{number}", (message,), str(number * self.factor), "doubling")

    def score(self, problem: Problem, completion: Any) -> Score:
        self.scored += 1
        if self.scored == 3:
            die_once("task")
        return Score(float(problem.reference in completion.text))

    def write_examples(self, skill: str, subskill: str, count: int, generator: Any) -> list[Example]:
        numbers = generator.integers(1, 900, count)
        return [Example(self._pose(int(n)).messages, f"Answer: {n * self.factor}", skill, "") for n in numbers]


class Repeater:
    """Writes examples of every skill in turn."""

    def __init__(self, task: Any, skills: tuple[str, ...] = ()) -> None:
        self.task = task

    def write(self, state: Any, size: int, generator: Any) -> Lesson:
        if state.round == 1:
            die_once("teacher")
        return Lesson(tuple(self.task.write_examples("doubling", "", size, generator)), ())


class ShortPole(CartPoleEnv):
    """CartPole that ends after 9 steps."""

    steps, total = 0, 0

    def reset(self, **arguments: Any) -> Any:
        self.steps = 0
        return super().reset(**arguments)

    def step(self, action: Any) -> Any:
        self.steps += 1
        ShortPole.total += 1
        if ShortPole.total == 200:
            die_once("environment")
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, self.steps >= 9, info


if __name__ != "own_code":  # Registered for those who load it as a plugin, not for tests that import its classes.
    TEACHERS.register("repeater", Repeater, "for tests: only with --plugin")
