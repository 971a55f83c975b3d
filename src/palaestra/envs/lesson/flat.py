"""The flat view of `palaestra/Lesson-v0`: an action divides a lesson among the skills, and many students learn side by side.

    envs = gymnasium.make_vec("palaestra/Lesson-v0", num_envs=16)

`LessonEnv` has lessons as actions and records as observations. Here both are arrays, so that any algorithm can train a
teacher. A step takes a fraction of a second for each student, because the examples are drawn from pools that are tokenized
once, the students are stacked, and a problem counts as solved if greedy decoding gives its worked response, which takes one
forward pass.

Axes: K students, S skills, F features, N problems.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from palaestra.core.errors import SettingsError
from palaestra.core.records import Example, Problem, Split
from palaestra.core.registry import Registry
from palaestra.core.seeding import Seeds
from palaestra.core.settings import check_integer
from palaestra.envs.base import Info, ResetOptions
from palaestra.models import registry as models
from palaestra.tasks.base import GenerativeTask, Task, check_skills, make_task
from palaestra.tasks.evaluate import draw_problems, write_examples

COHORTS = Registry("cohort", "palaestra.cohorts")
"""Students that learn side by side: classes that take a `LoadedModel`, their number and a device."""
FEATURES = ("accuracy", "last change", "change", "fraction of the data", "rounds left")
"""The features of a skill in an observation."""
SHARPNESS = 2.0
"""The logarithm of the ratio of two skills' data is at most twice this, for actions of 1 and -1."""
CONCENTRATION = 0.3
"""Of the Dirichlet distribution of the first lesson: most of it teaches a few skills."""


class Cohort(Protocol):
    """Students that learn side by side, such as `palaestra.students.stacked.StackedStudents`."""

    def reset(self) -> None: ...
    def keep_as_base(self) -> None: ...
    def restore(self, sources_K: Sequence[int] | None = None) -> None: ...
    def store(self, examples: Sequence[Example]) -> np.ndarray: ...
    def drop(self, count: int) -> None: ...
    def learn(self, rows_KN: Sequence[np.ndarray], seeds: Sequence[Seeds]) -> None: ...
    def measure(self, rows_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]: ...


def compute_features(
    accuracy_S: np.ndarray, last_S: np.ndarray, first_S: np.ndarray, taught_S: np.ndarray, rounds_left: float
) -> np.ndarray:
    """The observation `[S, F]` of a student.

    Arguments:
        accuracy_S, last_S, first_S: accuracy by skill now, one round ago and at the start.
        taught_S: examples by skill so far.
        rounds_left: the fraction of the rounds that are left.
    """
    taught_S = taught_S / max(1.0, float(taught_S.sum()))
    left_S = np.full_like(accuracy_S, rounds_left)
    table_FS = (accuracy_S, accuracy_S - last_S, accuracy_S - first_S, taught_S, left_S)
    return np.stack(table_FS, -1).astype(np.float32)


def compute_weights(action_S: np.ndarray) -> np.ndarray:
    """The part of a lesson for each skill: a softmax of the action."""
    weights_S = np.exp(SHARPNESS * np.clip(action_S.astype(np.float64), -1, 1))
    return np.asarray(weights_S / weights_S.sum())


def divide_lesson(weights_S: np.ndarray, size: int) -> np.ndarray:
    """Divide `size` examples by weights that add up to 1, with largest remainders.

    >>> divide_lesson(np.array([0.5, 0.3, 0.2]), 9).tolist()
    [4, 3, 2]
    """
    exact_S = size * weights_S
    counts_S: np.ndarray = np.floor(exact_S).astype(np.int64)
    counts_S[np.argsort(counts_S - exact_S, kind="stable")[: size - counts_S.sum()]] += 1
    return counts_S


class FlatLessonVectorEnv(VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """Students that are taught side by side.

    - **Action**: a `Box` with a number from -1 to 1 for each skill. A softmax turns them into the parts of the lesson
      (`compute_weights`). With `actions="discrete"` the index of the one skill that the lesson teaches.
    - **Observation**: a `Box` `[skills, features]` (`FEATURES`), measured on one half of the validation problems.
    - **Reward**: the change of accuracy on the other half since the last round, from -1 to 1. Because other problems decide
      the reward, a skill that was measured too low by chance is no source of it.
    - **Episode**: `rounds` lessons. All students begin and end together.

    Every random choice of a slot depends on the seed of its episode: the first lesson, which makes the students differ, and
    the order in which examples are drawn. Two slots with the same seed and the same actions see the same rewards, so the
    difference of two slots with one seed is that of their actions.

    Arguments:
        num_envs: number of students.
        task: a task whose problems have a worked response, such as `math-skills`.
        student: a small model of the family llama.
        rounds, lesson_size: lessons of an episode, and examples of a lesson.
        first_lesson: examples of the lesson, of random composition, with which an episode begins.
        validation: validation problems per skill; half of them for the observation, half for the reward.
        skills: only these skills; empty: all.
        start: `"base"`: each round trains on all data so far, from the weights at the beginning of the episode; `"last"`: on
            the new data, from the last weights.
        pool: examples per skill from which lessons are drawn.
        data_seed: the seed of the pools and of the validation problems.
        device: the device of the students; empty: a GPU if there is one.
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012
    bootstrap_truncated = False
    restarts_at_checkpoints = True
    """The students' weights are too large for a checkpoint, so an episode in progress is not stored."""

    def __init__(
        self,
        num_envs: int = 8,
        task: Task | str = "math-skills",
        student: str = "nano",
        *,
        rounds: int = 3,
        lesson_size: int = 40,
        first_lesson: int = 40,
        validation: int = 16,
        skills: Sequence[str] = (),
        actions: Literal["box", "discrete"] = "box",
        start: Literal["base", "last"] = "last",
        pool: int = 256,
        data_seed: int = 0,
        device: str = "",
    ) -> None:
        numbers = {"rounds": rounds, "lesson_size": lesson_size, "pool": pool, "first_lesson": first_lesson + 1}
        for name, value in (numbers | {"num_envs": num_envs, "validation": validation - 1}).items():
            check_integer(name, value, 1, error=SettingsError)
        self.task = make_task(task) if isinstance(task, str) else task
        check_skills(self.task, skills)
        if not isinstance(self.task, GenerativeTask):
            raise SettingsError(
                f"task '{self.task.name}' has no generators of its own; expected one such as math-skills"
            )
        self.skills = tuple(skills) or tuple(self.task.skills())
        self.num_envs, self.rounds, self.lesson_size, self.first_lesson = num_envs, rounds, lesson_size, first_lesson
        self.start: Literal["base", "last"] = start
        self.cohort: Cohort = COHORTS.get("stacked")(models.load(student, device="cpu"), num_envs, device=device)
        generator = Seeds(data_seed).derive("pool").generator()
        self._pools = [
            self.cohort.store(write_examples(self.task, skill, "", pool, generator)) for skill in self.skills
        ]
        problems = draw_problems(self.task, Split.VALIDATION, validation, data_seed, self.skills)
        self._problems = self.cohort.store([to_example(problem, self.task) for problem in problems])
        # Problems of a skill are for observation and reward in turn.
        self._skill_N = np.array([self.skills.index(problem.skill) for problem in problems])
        turn_N = np.array([int((self._skill_N[:n] == self._skill_N[n]).sum()) for n in range(len(problems))])
        self._seen_N = turn_N % 2 == 0
        count = len(self.skills)
        self.single_observation_space = spaces.Box(-1.0, 1.0, (count, len(FEATURES)), np.float32)
        self.single_action_space = (
            spaces.Box(-1.0, 1.0, (count,), np.float32) if actions == "box" else spaces.Discrete(count)
        )
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._seeds = [Seeds(k) for k in range(num_envs)]
        self._episode = self._round = 0

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: ResetOptions = None
    ) -> tuple[np.ndarray, Info]:
        """Begin an episode with every student. With a single seed, slot k starts from seed + k."""
        if seed is not None:
            given = [seed + k for k in range(self.num_envs)] if isinstance(seed, int) else list(seed)
            self._seeds = [self._seeds[k] if value is None else Seeds(value) for k, value in enumerate(given)]
            self._episode = 0
        return self._begin(), {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, Info]:
        self._round += 1
        counts_KS = np.stack([self._count_examples(action) for action in actions])
        self._teach(counts_KS)
        self._taught_KS += counts_KS
        self._last_KS, before_K = self._accuracy_KS, self._rewarded_K
        self._measure()
        observations, rewards_K = self._observe(), self._rewarded_K - before_K
        terminated_K = np.full(self.num_envs, self._round >= self.rounds)
        everywhere_K = np.ones(self.num_envs, dtype=bool)
        infos: Info = {"accuracy": self._rewarded_K, "_accuracy": everywhere_K}
        if terminated_K.all():
            final = np.empty(self.num_envs, dtype=object)
            final[:] = list(observations)
            infos |= {"final_obs": final, "_final_obs": everywhere_K}
            observations = self._begin()
        return observations, rewards_K, terminated_K, np.zeros(self.num_envs, dtype=bool), infos

    def _begin(self) -> np.ndarray:
        """Begin an episode with every student: teach the first lesson and measure."""
        self._episode, self._round = self._episode + 1, 0
        count = len(self.skills)
        self._rows: list[list[np.ndarray]] = [[] for _ in range(self.num_envs)]
        self._drawn_KS = np.zeros((self.num_envs, count), dtype=np.int64)
        self._taught_KS = np.zeros_like(self._drawn_KS)
        self._orders = [
            [self._derive(slot, "order", skill).generator().permutation(pool) for skill, pool in enumerate(self._pools)]
            for slot in range(self.num_envs)
        ]
        self.cohort.reset()
        if self.first_lesson:
            generators = [self._derive(slot, "first").generator() for slot in range(self.num_envs)]
            mixtures_KS = [generator.dirichlet(np.full(count, CONCENTRATION)) for generator in generators]
            self._teach(np.stack([divide_lesson(mixture_S, self.first_lesson) for mixture_S in mixtures_KS]))
            self.cohort.keep_as_base()
            self._rows = [[] for _ in range(self.num_envs)]
        self._measure()
        self._first_KS = self._last_KS = self._accuracy_KS
        return self._observe()

    def _teach(self, counts_KS: np.ndarray) -> None:
        """Train each student on its next examples of each skill."""
        for slot, counts_S in enumerate(counts_KS):
            parts = [
                np.take(order, np.arange(self._drawn_KS[slot, skill], self._drawn_KS[slot, skill] + count), mode="wrap")
                for skill, (order, count) in enumerate(zip(self._orders[slot], counts_S, strict=True))
            ]
            self._rows[slot].append(np.concatenate(parts))
        self._drawn_KS += counts_KS
        if self.start == "base":
            self.cohort.restore()
        rows_KN = [np.concatenate(rows) if self.start == "base" else rows[-1] for rows in self._rows]
        self.cohort.learn(rows_KN, [self._derive(slot, "train", self._round) for slot in range(self.num_envs)])

    def _count_examples(self, action: Any) -> np.ndarray:
        if isinstance(self.single_action_space, spaces.Discrete):
            return np.asarray(self.lesson_size * (np.arange(len(self.skills)) == int(action)))
        return divide_lesson(compute_weights(np.asarray(action)), self.lesson_size)

    def _measure(self) -> None:
        """Measure the accuracy by skill that is observed, and the accuracy over all skills that is rewarded."""
        solved_KN, _ = self.cohort.measure(self._problems)
        seen_SN = (np.arange(len(self.skills))[:, None] == self._skill_N) & self._seen_N
        self._accuracy_KS = np.stack([solved_KN[:, seen_N].mean(1) for seen_N in seen_SN], 1)
        self._rewarded_K = solved_KN[:, ~self._seen_N].mean(1)

    def _observe(self) -> np.ndarray:
        left = 1.0 - self._round / self.rounds
        tables = (self._accuracy_KS, self._last_KS, self._first_KS, self._taught_KS)
        return np.stack([compute_features(*rows, left) for rows in zip(*tables, strict=True)])

    def _derive(self, slot: int, *names: str | int) -> Seeds:
        return self._seeds[slot].derive("episode", self._episode, *names)


def to_example(problem: Problem, task: Task) -> Example:
    worked = problem.metadata.get("worked")
    if not worked:
        raise SettingsError(
            f"the problems of task '{task.name}' have no worked responses to compare with; expected a task such as math-skills"
        )
    return Example(problem.messages, worked, problem.skill)
