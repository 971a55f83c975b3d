"""Bandit policies over subskills, which use a posterior over learning curves.

They plan for all remaining examples instead of one lesson, because the student is trained on the sum of all lessons. Each
lesson is a part of this plan. It contains a few examples for uncertain subskills, which is the exploration.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from palaestra.teachers.allocation import share_out
from palaestra.teachers.tree.curves import KNOWN, Array, Posterior, posterior
from palaestra.teachers.tree.limits import TreeLimits
from palaestra.teachers.tree.records import Action, Branch, Exploit, Explore, TreeState

FARTHEST = 4
"""Maximum number of lessons to plan ahead."""


class Bandit(ABC):
    """Plans by the expected gain of every further example of every subskill. Subclasses implement `plan_examples`.

    Arguments:
        keep: the fraction of a lesson for subskills that the student knew before the first round. Forgetting grows with
            training, so the answers so far underestimate it.
    """

    open_at_once = 0
    name: str

    def __init__(self, keep: float = 0.15) -> None:
        self.keep = keep

    @abstractmethod
    def plan_examples(self, known: Posterior, total: int, generator: np.random.Generator) -> Array:
        """The number of the next `total` examples for each subskill."""

    def decide(self, tree: TreeState, size: int, limits: TreeLimits, generator: np.random.Generator) -> list[Action]:
        known = posterior(tree)
        ahead = max(size, min(tree.budget, FARTHEST * size))
        kept_L = self.keep * ahead * _knew(known)
        planned_L = kept_L + self.plan_examples(known, ahead - round(kept_L.sum()), generator)
        # A random order, so that the remainder goes to other subskills in each round.
        order = generator.permutation(len(planned_L)).tolist()
        shares = share_out(size, {row: float(planned_L[row]) for row in order})
        given: dict[str, dict[str, int]] = {}
        for row, (skill, part) in enumerate(known.keys):
            if shares[row]:
                given.setdefault(skill, {})[part] = shares[row]
        expected = dict(zip(known.keys, known.accuracy().tolist(), strict=True))
        return [self._action(b, given[b.name], known, expected) for b in tree if b.name in given]

    def _action(
        self, branch: Branch, given: dict[str, int], known: Posterior, expected: dict[tuple[str, str], float]
    ) -> Action:
        new = tuple(leaf.name for leaf in branch.closed if leaf.name in given)
        most = max(given, key=lambda name: given[name])
        where = f" most to {most}, which is" if most else ""
        reason = (
            f"{self.name}: within reach with {known.within[branch.name]:.0%};"
            f"{where} expected at {expected[branch.name, most]:.0%} after the {branch.total} examples so far"
        )
        return Explore(branch.name, given, reason, new) if new else Exploit(branch.name, given, reason)


class UpperConfidence(Bandit):
    """Allocates each example by an upper confidence bound of its gain.

    Arguments:
        optimism: standard deviations that are added to the expected gain; 0: greedy.
    """

    name = "ucb"

    def __init__(self, optimism: float = 0.5, keep: float = 0.15) -> None:
        super().__init__(keep)
        self.optimism = optimism

    def plan_examples(self, known: Posterior, total: int, generator: np.random.Generator) -> Array:
        return plan(known.marginals(total, self.optimism), total)


class Thompson(Bandit):
    """Thompson sampling: samples a curve for each subskill and plans with it. The result is the mean of several plans.

    A single sample would have too much variance, because there are few lessons.

    Arguments:
        draws: the number of plans.
    """

    name = "thompson"

    def __init__(self, draws: int = 16, keep: float = 0.15) -> None:
        super().__init__(keep)
        self.draws = draws

    def plan_examples(self, known: Posterior, total: int, generator: np.random.Generator) -> Array:
        plans = [plan(known.sample(total, generator), total) for _ in range(self.draws)]
        plan_L: Array = np.mean(plans, axis=0)
        return plan_L


def plan(gain_LN: Array, total: int) -> Array:
    """Allocate `total` examples greedily by gain. Returns the number for each subskill.

    Gains must not rise along a row, as on a flattening curve; rising ones are lowered.
    """
    gain_LN = np.minimum.accumulate(gain_LN, axis=1)
    best = np.argpartition(-gain_LN.ravel(), total - 1)[:total] if 0 < total < gain_LN.size else np.arange(total)
    return np.bincount(best // gain_LN.shape[1], minlength=gain_LN.shape[0]).astype(np.float64)


def _knew(known: Posterior) -> Array:
    """The weight of each subskill times the probability that it was known before; the sum is at most 1."""
    weight_L = known.value_L * (known.weights_LG @ (known.grid.kind_G == KNOWN))
    # If less than a third was known, the fraction for it shrinks in proportion.
    share_L: Array = weight_L / max(1.0 / 3, weight_L.sum())
    return share_L
