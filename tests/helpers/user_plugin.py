"""A user's plugin: tasks with a mistake, and parts that send the process a signal.

Loaded with `--plugin`. The tests look for the marked lines.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from gymnasium import register
from gymnasium.envs.classic_control import CartPoleEnv

from palaestra.core.records import Message, Problem, Score
from palaestra.envs.lesson.student import STUDENTS
from palaestra.students.student import SupervisedStudent
from palaestra.tasks.base import TASKS


class Sums:
    """A task without a mistake."""

    name = "sums"
    max_tokens = 4

    def skills(self) -> dict[str, tuple[str, ...]]:
        return {"sums": ()}

    def problems(self, split: Any, per_skill: int, seed: int, skills: Any = ()) -> Any:
        ids = [f"{split}-{k}" for k in range(per_skill or 3)]
        return [Problem(identifier, (Message("user", f"{identifier}: 1 + 1 = ?"),), "2", "sums") for identifier in ids]

    def score(self, problem: Problem, completion: Any) -> Any:
        return Score(float("2" in completion.text))


class ScoresAreNumbers(Sums):
    def score(self, problem, completion):  # mark: number
        return 1.0


class ScorerRaises(Sums):
    def score(self, problem, completion):
        return Score(1 / len(problem.subskill))  # mark: raises


class EvidenceIsANumber(Sums):
    def score(self, problem, completion):
        return Score(1.0, {"extracted": 2})  # mark: evidence


class ProblemsAreTexts(Sums):
    def problems(self, split, per_skill, seed, skills=()):  # mark: texts
        return ["1 + 1 = ?"]


class ProblemsAreNone(Sums):
    def problems(self, split, per_skill, seed, skills=()):  # mark: none
        return None


class SameIds(Sums):
    def problems(self, split, per_skill, seed, skills=()):  # mark: same
        return super().problems(split, 1, seed) * 2


class ScorerExits(Sums):
    def score(self, problem, completion):
        raise SystemExit(0)  # mark: exits


class ProblemsRaise(Sums):
    def problems(self, split, per_skill, seed, skills=()):
        return [{}["missing"]]  # mark: missing


def send_once(marker: str = "signal") -> None:
    """Send this process the signal that a file in the current folder names, and remove the file."""
    path = Path(marker)
    if path.exists():
        number = int(path.read_text())
        path.unlink()
        os.kill(os.getpid(), number)


class InterruptedCartPole(CartPoleEnv):
    """Comes to be interrupted in its hundredth step."""

    steps = 0

    def step(self, action: Any) -> Any:
        InterruptedCartPole.steps += 1
        if InterruptedCartPole.steps == 100:
            send_once()
        return super().step(action)


class InterruptedStudent(SupervisedStudent):
    """Comes to be interrupted after its third step of training."""

    def _train(self, examples, seeds, on_step, state, keep):  # type: ignore[no-untyped-def]
        def report(step: int, total: int, loss: float) -> None:
            if step == 3:
                send_once()
            on_step(step, total, loss)

        if state is not None:
            Path("went on from").write_text(str(state.step))
        return super()._train(examples, seeds, report, state, keep)


for kind in (Sums, ScoresAreNumbers, ScorerRaises, ScorerExits, EvidenceIsANumber, ProblemsAreTexts, ProblemsAreNone, SameIds, ProblemsRaise):  # fmt: skip
    TASKS.register(kind.__name__, kind)
STUDENTS.register("interrupted", InterruptedStudent)
register("InterruptedCartPole-v0", InterruptedCartPole, max_episode_steps=50)
