"""Policies without an estimate: alternating, balanced, random, and a threshold on the reward.

Every skill gets the same number of examples. The policies differ in the action of a skill.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from palaestra.teachers.allocation import share_out
from palaestra.teachers.tree.limits import TreeLimits
from palaestra.teachers.tree.records import Action, Branch, Exploit, Explore, TreeState


class EvenShares(ABC):
    """A policy that gives every skill the same number of examples. Subclasses implement `act`."""

    open_at_once = 2

    @abstractmethod
    def act(
        self, branch: Branch, share: int, tree: TreeState, limits: TreeLimits, generator: np.random.Generator
    ) -> Action:
        """Decide the action of one skill with `share` examples."""

    def decide(self, tree: TreeState, size: int, limits: TreeLimits, generator: np.random.Generator) -> list[Action]:
        # A random order, so that the remainder goes to other skills in each round.
        order = [tree.branches[int(place)] for place in generator.permutation(len(tree.branches))]
        shares = share_out(size, {branch.name: 1.0 for branch in order})
        return [
            self.act(branch, shares[branch.name], tree, limits, generator) for branch in tree if shares[branch.name]
        ]


class Alternating(EvenShares):
    """Explores in the first round, exploits in the second, and so on; a skill without closed subskills exploits."""

    def act(
        self, branch: Branch, share: int, tree: TreeState, limits: TreeLimits, generator: np.random.Generator
    ) -> Action:
        if tree.round % 2 == 0 and limits.room(branch):
            return explore(branch, share, limits, "a round to explore")
        turn = "a round to exploit" if tree.round % 2 else "nothing to open"
        return exploit(branch, share, limits, turn)


class Balanced(EvenShares):
    """Opens subskills up to the limit, then gives examples to those with the least data."""

    def act(
        self, branch: Branch, share: int, tree: TreeState, limits: TreeLimits, generator: np.random.Generator
    ) -> Action:
        new = branch.closed[: limits.room(branch)]
        leaves = (*branch.opened, *new)
        given = {leaf.name: leaf.total for leaf in leaves}
        allocation = level(share, given)
        counts = f"{len(leaves)} of {len(branch.leaves)} subskills open"
        if any(allocation[leaf.name] for leaf in new):
            reason = f"{counts}: grow first, and fill evenly"
            return Explore(branch.name, allocation, reason, tuple(leaf.name for leaf in new))
        return Exploit(branch.name, allocation, f"{counts}: fill evenly, from {min(given.values())} examples up")


class Random(EvenShares):
    """Explores or exploits at random, with random allocations."""

    def act(
        self, branch: Branch, share: int, tree: TreeState, limits: TreeLimits, generator: np.random.Generator
    ) -> Action:
        room = limits.room(branch)
        if room and (not branch.opened or generator.random() < 0.5):
            count = int(generator.integers(1, room + 1))
            chosen = [branch.closed[int(place)].name for place in generator.permutation(len(branch.closed))[:count]]
            reason, new = f"by chance: open {', '.join(chosen) or 'it'}", tuple(chosen)
        else:
            chosen, reason, new = [leaf.name for leaf in branch.opened], "by chance: what is open", ()
        weights = dict(zip(chosen, generator.dirichlet([1.0] * len(chosen)).tolist(), strict=True)) if chosen else {}
        allocation = share_out(share, weights)
        return Explore(branch.name, allocation, reason, new) if new else Exploit(branch.name, allocation, reason)


class Threshold(EvenShares):
    """Explores a skill whose last reward is below a threshold or missing; exploits the others.

    Arguments:
        threshold: a change of the skill's validation accuracy in a round, from -1 to 1.
    """

    def __init__(self, threshold: float = 0.05) -> None:
        self.threshold = threshold

    def act(
        self, branch: Branch, share: int, tree: TreeState, limits: TreeLimits, generator: np.random.Generator
    ) -> Action:
        last = branch.rewards[-1] if branch.rewards else None
        reason = "no reward yet" if last is None else f"the last round brought {100 * last:+.0f} points"
        if limits.room(branch) and (last is None or last < self.threshold):
            return explore(branch, share, limits, reason)
        return exploit(branch, share, limits, reason)


def explore(branch: Branch, share: int, limits: TreeLimits, why: str) -> Action:
    """Open the weakest subskills and divide the examples evenly."""
    new = [leaf.name for leaf in branch.closed[: limits.room(branch)]]
    reason = f"{why}: open {', '.join(new) or 'it'}"
    return Explore(branch.name, share_out(share, dict.fromkeys(new, 1.0)), reason, tuple(new))


def exploit(branch: Branch, share: int, limits: TreeLimits, why: str) -> Action:
    """Divide the examples among open subskills by their gaps; explore if none is open."""
    if not branch.opened:
        return explore(branch, share, limits, f"{why}, and nothing is open")
    weights = {leaf.name: max(1e-3, 1.0 - branch.estimate_accuracy(leaf)) for leaf in branch.opened}
    return Exploit(branch.name, share_out(share, weights), f"{why}: follow the gaps of what is open")


def level(total: int, given: dict[str, int]) -> dict[str, int]:
    """Distribute `total` so that the final numbers are as even as possible.

    >>> level(6, {"a": 5, "b": 1, "c": 0})
    {'a': 0, 'b': 3, 'c': 3}
    """
    has = dict(given)
    for _ in range(total):
        has[min(has, key=lambda name: has[name])] += 1
    return {name: has[name] - given[name] for name in given}
