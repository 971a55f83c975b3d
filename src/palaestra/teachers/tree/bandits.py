"""Bandits over subskills: where will an example add the most, by the curves that the answers so far allow?

Both plan for all examples that are left, not for one lesson: since a student is trained on everything it was ever
given, only the sum over the rounds counts. A lesson is its part of that plan. So every round gives data to what is
surely worth it, and a little to what may be: that is what exploration costs, and the next posterior is what it buys.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from palaestra.teachers.allocation import share_out
from palaestra.teachers.tree.curves import KNOWN, Array, Posterior, posterior
from palaestra.teachers.tree.limits import TreeLimits
from palaestra.teachers.tree.records import Action, Branch, Exploit, Explore, TreeState

FARTHEST = 4
"""Lessons that are planned ahead at most."""


class Bandit(ABC):
    """Plans by the gain of every further example of every subskill. Subclasses say how.

    Arguments:
        keep: the share of a lesson that goes to what the student knew before the first one. Losses grow with the
            training on other things, so the answers so far show too little of them.
    """

    open_at_once = 0
    name: str

    def __init__(self, keep: float = 0.15) -> None:
        self.keep = keep

    @abstractmethod
    def plan_examples(self, known: Posterior, total: int, generator: np.random.Generator) -> Array:
        """How many of the next `total` examples each subskill is to get."""

    def decide(self, tree: TreeState, size: int, limits: TreeLimits, generator: np.random.Generator) -> list[Action]:
        known = posterior(tree)
        ahead = max(size, min(tree.budget, FARTHEST * size))
        kept_L = self.keep * ahead * _knew(known)
        planned_L = kept_L + self.plan_examples(known, ahead - round(kept_L.sum()), generator)
        # Who gets the odd example changes from round to round.
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
    """Every example goes where its gain may be the largest: its expectation and some of its uncertainty.

    Arguments:
        optimism: how many standard deviations of a gain are added to its expectation; 0 is greedy.
    """

    name = "ucb"

    def __init__(self, optimism: float = 0.5, keep: float = 0.15) -> None:
        super().__init__(keep)
        self.optimism = optimism

    def plan_examples(self, known: Posterior, total: int, generator: np.random.Generator) -> Array:
        return plan(known.marginals(total, self.optimism), total)


class Thompson(Bandit):
    """Draws a curve for each subskill, and plans as if it were true; the mean of several such plans.

    One draw alone would stake a whole lesson on chance, and there are few lessons.

    Arguments:
        draws: how many.
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
    """How many examples each subskill gets of `total`, if each goes where it gains the most.

    Gains are taken to fall along a row, as those of a curve that flattens do.
    """
    gain_LN = np.minimum.accumulate(gain_LN, axis=1)
    best = np.argpartition(-gain_LN.ravel(), total - 1)[:total] if 0 < total < gain_LN.size else np.arange(total)
    return np.bincount(best // gain_LN.shape[1], minlength=gain_LN.shape[0]).astype(np.float64)


def _knew(known: Posterior) -> Array:
    """What each subskill stands for, as far as the student knew it before; the shares add up to at most 1."""
    weight_L = known.value_L * (known.weights_LG @ (known.grid.kind_G == KNOWN))
    # Where little was known, little is to be kept: a third of everything takes the whole share.
    share_L: Array = weight_L / max(1.0 / 3, weight_L.sum())
    return share_L
