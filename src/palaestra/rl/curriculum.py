"""Curricula: which prompts of a token environment a run trains on next, chosen by the results so far.

A curriculum costs no episodes of its own: it learns from the groups that are trained on. Most prompts are seen rarely, so
the estimates of a prompt are shrunk to those of its skill and subskill, and those to the mean of all. Results lose half of
their weight in `HALF_LIFE` iterations, because the policy changes.

A new curriculum is one class and one registration, in `CURRICULA` or through the entry point group `palaestra.curricula`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from palaestra.core.errors import SettingsError
from palaestra.core.records import Json
from palaestra.core.registry import Registry
from palaestra.core.seeding import Seeds

UNIFORM = "uniform"
"""The setting without a curriculum: passes over all prompts in random order."""
CURRICULA = Registry("curriculum", "palaestra.curricula")
CURRICULA.register("sfl", f"{__name__}:Learnability", "by the variance of the rewards in a group; p(1 - p) for 0 and 1")
CURRICULA.register("progress", f"{__name__}:Progress", "skills whose mean reward changes most, up or down")
CURRICULA.register("pools", f"{__name__}:Pools", "70 % of the frontier, 20 % hard, 10 % easy prompts")

HALF_LIFE = 10
"""Iterations after which a result has half of its weight."""
EXPLORATION = 0.2
"""Fraction of the groups that is sampled uniformly."""
HARD, EASY = 0.2, 0.8
"""Bounds of the frontier: mean rewards as fractions of the range of all rewards so far."""
_PRIOR = 2.0
"""The number of groups that the mean of a skill counts as in the estimate of a prompt."""


class Averages:
    """Averages of values by prompt that forget old values.

    Arguments:
        strata_P: the number of the stratum (skill and subskill) of each prompt.
        half_life: updates after which a value has half of its weight.
    """

    def __init__(self, strata_P: np.ndarray, half_life: float) -> None:
        self.strata_P, self.decay = strata_P, 0.5 ** (1 / half_life)
        self.weights_P, self.sums_P = np.zeros(len(strata_P)), np.zeros(len(strata_P))

    def add(self, prompts: Sequence[int], values: Sequence[float] | np.ndarray) -> None:
        self.weights_P *= self.decay
        self.sums_P *= self.decay
        np.add.at(self.weights_P, prompts, 1.0)
        np.add.at(self.sums_P, prompts, values)

    def by_stratum(self) -> np.ndarray:
        """The average of each stratum, shrunk to the average of all; 0 before any value."""
        count = int(self.strata_P.max()) + 1
        weights_S, sums_S = (np.bincount(self.strata_P, x, count) for x in (self.weights_P, self.sums_P))
        mean = sums_S.sum() / max(weights_S.sum(), 1e-12)
        return np.asarray((sums_S + _PRIOR * mean) / (weights_S + _PRIOR))

    def by_prompt(self) -> np.ndarray:
        """The average of each prompt, shrunk to that of its stratum."""
        prior_P = self.by_stratum()[self.strata_P]
        return np.asarray((self.sums_P + _PRIOR * prior_P) / (self.weights_P + _PRIOR))


class Curriculum(ABC):
    """Chooses the prompts of each iteration.

    Arguments:
        skills: the skill of each prompt, with its subskill.
        seeds: the source of the choices.
    """

    half_lives: ClassVar[tuple[float, ...]] = (HALF_LIFE,)
    needs_groups: ClassVar[bool] = False
    """Whether several episodes must share a prompt."""

    def __init__(self, skills: Sequence[str], seeds: Seeds) -> None:
        names, self.strata_P = np.unique(np.asarray(skills), return_inverse=True)
        self.skills, self.seeds = [str(name) for name in names], seeds
        self.means = [Averages(self.strata_P, half_life) for half_life in self.half_lives]
        self.variances = Averages(self.strata_P, HALF_LIFE)
        self.low, self.high = np.inf, -np.inf

    @abstractmethod
    def weigh(self) -> np.ndarray:
        """The weight of each prompt, at least 0. Called once there are results."""

    def choose(self, iteration: int, groups: int) -> list[int]:
        """The prompts of the groups of an iteration, as indices."""
        count = len(self.strata_P)
        weights_P = self.weigh() if np.isfinite(self.low) else np.ones(count)
        total = weights_P.sum()
        uniform_P = np.full(count, 1 / count)
        chances_P = uniform_P if total <= 0 else (1 - EXPLORATION) * weights_P / total + EXPLORATION * uniform_P
        generator = self.seeds.derive(iteration).generator()
        return [int(prompt) for prompt in generator.choice(count, groups, replace=groups > count, p=chances_P)]

    def record(self, prompts: Sequence[int], rewards: Sequence[Sequence[float]]) -> dict[str, float]:
        """Learn from the groups of an iteration. Returns the fractions of hard, frontier and easy groups, and of each skill.

        Arguments:
            rewards: of the valid episodes of each group; groups without one are skipped.
        """
        scored = [(prompt, np.asarray(group)) for prompt, group in zip(prompts, rewards, strict=True) if len(group)]
        if not scored:
            return {}
        places, groups = [prompt for prompt, _ in scored], [group for _, group in scored]
        self.low = min(self.low, *(float(group.min()) for group in groups))
        self.high = max(self.high, *(float(group.max()) for group in groups))
        means_G = np.array([group.mean() for group in groups])
        for means in self.means:
            means.add(places, means_G)
        self.variances.add(places, [group.var(ddof=1) if len(group) > 1 else 0.0 for group in groups])
        level_G = self.to_level(means_G)
        metrics = {"groups_hard": float((level_G < HARD).mean()), "groups_easy": float((level_G > EASY).mean())}
        metrics["groups_frontier"] = 1.0 - metrics["groups_hard"] - metrics["groups_easy"]
        shares_S = np.bincount(self.strata_P[places], minlength=len(self.skills)) / len(places)
        by_skill: dict[str, float] = {}
        for name, share in zip(self.skills, shares_S, strict=True):
            skill = name.partition("/")[0]
            by_skill[f"groups/{skill}"] = by_skill.get(f"groups/{skill}", 0.0) + float(share)
        return metrics | (by_skill if len(by_skill) > 1 else {})

    def to_level(self, rewards: np.ndarray) -> np.ndarray:
        """Rewards as fractions of the range of all rewards so far."""
        return (rewards - self.low) / max(self.high - self.low, 1e-12)

    def state(self) -> Json:
        """The results so far, for a checkpoint."""
        averages = [[part.weights_P.tolist(), part.sums_P.tolist()] for part in (*self.means, self.variances)]
        return {"averages": averages, "range": [self.low, self.high] if np.isfinite(self.low) else []}

    def load_state(self, state: Json) -> None:
        for part, (weights, sums) in zip((*self.means, self.variances), state["averages"], strict=True):
            part.weights_P, part.sums_P = np.array(weights), np.array(sums)
        self.low, self.high = state["range"] or (np.inf, -np.inf)


class Learnability(Curriculum):
    """Sampling for learnability (SFL): a prompt's weight is the variance of its rewards under the policy.

    For rewards of 0 and 1 and a success rate p this is p(1 - p) (Rutherford et al., arXiv 2408.15099; for language models
    Foster et al., arXiv 2502.12272). Unlike theirs it needs no rollouts of its own.
    """

    needs_groups = True

    def weigh(self) -> np.ndarray:
        return self.variances.by_prompt()


class Progress(Curriculum):
    """Absolute learning progress: a skill's weight is the difference of a fast and a slow mean of its rewards.

    See Teacher-Student Curriculum Learning (Matiisen et al., arXiv 1707.00183).
    """

    half_lives = (3.0, 15.0)

    def __init__(self, skills: Sequence[str], seeds: Seeds) -> None:
        super().__init__(skills, seeds)
        if len(self.skills) < 2:
            raise SettingsError(
                "setting 'curriculum': progress compares skills, and the prompts have none; use sfl or pools, or data with a "
                "column 'skill'"
            )

    def weigh(self) -> np.ndarray:
        fast_S, slow_S = (means.by_stratum() for means in self.means)
        return np.asarray((np.abs(fast_S - slow_S) / np.bincount(self.strata_P))[self.strata_P])


class Pools(Curriculum):
    """Fixed shares of hard, frontier and easy prompts, by the mean reward of each."""

    shares: ClassVar[tuple[float, float, float]] = (0.2, 0.7, 0.1)

    def weigh(self) -> np.ndarray:
        level_P = self.to_level(self.means[0].by_prompt())
        pool_P = np.digitize(level_P, (HARD, EASY))
        sizes = np.bincount(pool_P, minlength=len(self.shares))
        return np.asarray((np.array(self.shares) / np.maximum(sizes, 1))[pool_P])
