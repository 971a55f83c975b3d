"""The policy `response`: allocates by the gap of a skill and by its response to data so far."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from palaestra.teachers.allocation import share_out
from palaestra.teachers.tree.limits import TreeLimits
from palaestra.teachers.tree.records import Action, Branch, Exploit, Explore, TreeState

PRIOR_RESPONSE = 0.5
"""The expected response of a skill without data."""
EVIDENCE = 10.0
"""The weight of the prior in examples."""


class TreeResponse:
    """Allocates a lesson by gap times response.

    Both are estimated from validation: the gap to full accuracy, and the fraction of it that data has closed so far (the
    *response*). A skill that does not respond to data gets less in each round. Mastered skills get a few examples against
    forgetting.

    Arguments:
        keep: the fraction of a lesson for mastered skills.
    """

    open_at_once = 2

    def __init__(self, keep: float = 0.12) -> None:
        self.keep = keep

    def decide(self, tree: TreeState, size: int, limits: TreeLimits, generator: np.random.Generator) -> list[Action]:
        mastered = {branch.name: 1.0 for branch in tree if branch.mastered}
        weak = {
            branch.name: (1.0 - branch.accuracy) * response(branch.accuracy, branch.before, branch.total)
            for branch in tree.weak
        }
        # A mastered skill never gets more than half of what an average weak one gets.
        keep = min(self.keep, 0.5 * len(mastered) / len(tree.branches))
        kept = round(size * keep) if weak else size
        shares = share_out(size - kept, weak, limits.most(tree, size)) | share_out(kept if mastered else 0, mastered)
        return [_act(branch, shares[branch.name], limits) for branch in tree if shares.get(branch.name)]


def response(accuracy: float, before: float, given: int) -> float:
    """Estimate the fraction of the gap that data has closed, between 0.05 and 1.

    Evidence counts by the number of examples; with few of them the prior dominates. If accuracy fell below that before the
    first round, the response is at least that accuracy.
    """
    closed = max(0.0, accuracy - before) / max(1e-9, 1.0 - before)
    evidence = given / EVIDENCE
    answered = (PRIOR_RESPONSE + evidence * closed) / (1.0 + evidence)
    lost = before if accuracy < before else 0.0
    return min(1.0, max(0.05, answered, lost))


def _act(branch: Branch, share: int, limits: TreeLimits) -> Action:
    """Decide the action of one skill."""
    now = {leaf.name: branch.estimate_accuracy(leaf) for leaf in branch.leaves}
    if branch.mastered:
        reason = f"{branch.accuracy:.0%} on validation: keep it alive"
        return Exploit(branch.name, share_out(share, dict.fromkeys(now, 1.0)), reason)
    opened, closed = [leaf.name for leaf in branch.opened], [leaf.name for leaf in branch.closed]
    room = limits.room(branch)
    if room and (not opened or 1.0 - now[closed[0]] >= 0.1):
        new = closed[:room]
        allocation = share_out(share, _positive({name: 1.0 - now[name] for name in (*opened, *new)}))
        names = ", ".join(f"{name} ({now[name]:.0%})" for name in new if allocation[name])
        if names:
            return Explore(branch.name, allocation, f"open {names}", tuple(new))
    weights = {
        leaf.name: (1.0 - now[leaf.name]) * response(now[leaf.name], branch.estimate_accuracy(leaf, 0), leaf.total)
        for leaf in branch.opened or branch.leaves
    }
    gained = branch.accuracy - branch.before
    reason = f"{branch.total} examples brought {100 * gained:+.0f} points; follow the gap and the response"
    return Exploit(branch.name, share_out(share, _positive(weights)), reason)


def _positive(weights: Mapping[str, float]) -> dict[str, float]:
    """Raise zero weights, so that all examples are allocated."""
    return {name: max(weight, 1e-3) for name, weight in weights.items()}
