"""Bandits over subskills: where will an example add the most, by the curves that the answers so far allow?

Both plan for all examples that are left, not for one lesson: since a student is trained on everything it was ever
given, only the sum over the rounds counts. A lesson is its part of that plan. So every round gives data to what is
surely worth it, and a little to what may be: that is what exploration costs, and the next posterior is what it buys.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from palaestra.teachers.allocation import share_out
from palaestra.teachers.tree.curves import Array, Posterior, posterior
from palaestra.teachers.tree.limits import Limits
from palaestra.teachers.tree.records import Action, Branch, Exploit, Explore, Tree

FARTHEST = 4
"""Lessons that are planned ahead at most."""


class Bandit(ABC):
    """Plans by the marginal gain of each further example of each subskill. Subclasses say what that gain is."""

    open_at_once = 0
    name: str

    @abstractmethod
    def marginals(self, known: Posterior, more: int, generator: np.random.Generator) -> Array:
        """The gain of each of the next `more` examples of each subskill."""

    def decide(self, tree: Tree, size: int, limits: Limits, generator: np.random.Generator) -> list[Action]:
        known = posterior(tree)
        ahead = max(size, min(tree.budget, FARTHEST * size))
        planned = plan(self.marginals(known, ahead, generator), ahead)
        # Ties, and who gets the odd example, change from round to round.
        order = generator.permutation(len(planned)).tolist()
        shares = share_out(size, {row: float(planned[row]) for row in order})
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
        reason = (
            f"{self.name}: within reach with {known.within[branch.name]:.0%}; "
            f"most to {most or 'all of it'}, expected at {expected[branch.name, most]:.0%} with {branch.total} examples so far"
        )
        return Explore(branch.name, given, reason, new) if new else Exploit(branch.name, given, reason)


class UpperConfidence(Bandit):
    """Every example goes where its gain may be the largest: its expectation and some of its uncertainty.

    Arguments:
        optimism: how many standard deviations of a gain are added to its expectation; 0 is greedy.
    """

    name = "ucb"

    def __init__(self, optimism: float = 0.0) -> None:
        self.optimism = optimism

    def marginals(self, known: Posterior, more: int, generator: np.random.Generator) -> Array:
        return known.marginals(more, optimism=self.optimism)


class Thompson(Bandit):
    """Draws one curve for each subskill, and plans as if it were true."""

    name = "thompson"

    def marginals(self, known: Posterior, more: int, generator: np.random.Generator) -> Array:
        return known.marginals(more, known.sample(generator))


def plan(gain_LN: Array, total: int) -> list[int]:
    """How many examples each subskill gets of `total`, if each goes where it gains the most.

    Gains fall along a row, as those of a curve that flattens do; the largest of all are taken.
    """
    gain_LN = np.minimum.accumulate(gain_LN, axis=1)
    rows = np.repeat(np.arange(gain_LN.shape[0]), gain_LN.shape[1])
    best = np.argsort(-gain_LN.ravel(), kind="stable")[:total]
    counted = np.bincount(rows[best], minlength=gain_LN.shape[0])
    found: list[int] = counted.tolist()
    return found
