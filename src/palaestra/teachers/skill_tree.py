"""A teacher that grows a tree of subskills for every skill, and moves data to where it helps.

Each round every skill takes one action:

- **explore**: open subskills that have no data yet, the weakest first;
- **exploit**: move the allocation among the open subskills by what the last round gained.

How much a skill gets depends on two estimates, both from validation alone: how much is left to
learn, and how much of that the data so far has brought (the skill's *response*). A skill that does
not answer to data is given less each round, and one that is mastered only what keeps it alive.
Shares are capped, and the caps are enforced on whatever the estimates ask for, as long as there are
enough weak skills to spend a lesson on under them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from palaestra.core.records import Decision, Report
from palaestra.tasks.base import Task
from palaestra.teachers.allocation import share_out
from palaestra.teachers.base import PlanningTeacher
from palaestra.teachers.writers import Order, Writer

if TYPE_CHECKING:
    # Only the types: a list of teachers is to load no torch.
    from palaestra.envs.lesson.state import StudentState

MASTERED = 0.9
"""Accuracy from which a skill only needs to be kept alive."""
PRIOR_COUNT = 4.0
"""How many imagined observations weigh against the few real ones of a small validation set."""
PRIOR_RESPONSE = 0.5
"""What an untried skill is expected to close of its gap."""
EVIDENCE = 10.0
"""Examples that weigh as much as the prior does."""


@dataclass(frozen=True, slots=True)
class _Node:
    """What is known of a skill or subskill."""

    accuracy: float
    before: float
    given: int

    @property
    def gap(self) -> float:
        return 1.0 - self.accuracy


class SkillTree(PlanningTeacher):
    """Explores and exploits one tree a skill.

    Arguments:
        keep: the share of a lesson that is spread over mastered skills, so that they are not lost.
        cap: the largest share of a lesson that one skill may take.
        open_at_once: how many subskills a skill opens in one round.
    """

    def __init__(
        self,
        task: Task,
        skills: tuple[str, ...] = (),
        *,
        writer: Writer | None = None,
        keep: float = 0.12,
        cap: float = 0.2,
        open_at_once: int = 2,
    ) -> None:
        super().__init__(task, skills, writer=writer)
        self.keep, self.cap, self.open_at_once = keep, cap, open_at_once

    def plan(self, state: StudentState, size: int, generator: np.random.Generator) -> list[Order]:
        nodes = {skill: self._node(state, skill) for skill in self.skills}
        mastered = {skill: 1.0 for skill, node in nodes.items() if node.accuracy >= MASTERED}
        weak = {skill: node.gap * self._response(node) for skill, node in nodes.items() if skill not in mastered}
        # A mastered skill never gets more than half of what an average weak one gets.
        keep = min(self.keep, 0.5 * len(mastered) / len(nodes))
        kept = round(size * keep) if weak else size
        cap = math.ceil(size * self.cap) if len(weak) * self.cap >= 1 else None
        shares = share_out(size - kept, weak, cap) | share_out(kept if mastered else 0, mastered)
        orders = []
        for skill in self.skills:
            if shares.get(skill, 0):
                decision = self._decide(state, skill, nodes[skill], shares[skill])
                orders += [
                    Order(skill, part, count, decision.action, decision.reason)
                    for part, count in decision.allocation.items()
                ]
        return orders

    def _decide(self, state: StudentState, skill: str, node: _Node, share: int) -> Decision:
        """One skill's action: which subskills its share goes to, and why."""
        leaves = {part: self._node(state, skill, part) for part in self.skills[skill]}
        opened = [part for part, leaf in leaves.items() if leaf.given]
        closed = sorted((p for p in leaves if p not in opened), key=lambda part: (leaves[part].accuracy, part))
        if node.accuracy >= MASTERED:
            weights = dict.fromkeys(leaves, 1.0)
            reason = f"{node.accuracy:.0%} on validation: keep it alive"
            return Decision(skill, "exploit", reason, _spent(share_out(share, weights)))
        if closed and (not opened or leaves[closed[0]].gap >= 0.1):
            new = closed[: self.open_at_once]
            weights = {part: leaves[part].gap for part in (*opened, *new)}
            allocation = share_out(share, _positive(weights))
            names = ", ".join(f"{part} ({leaves[part].accuracy:.0%})" for part in new if allocation[part])
            if names:
                return Decision(skill, "explore", f"open {names}", _spent(allocation))
        weights = {part: leaves[part].gap * self._response(leaves[part]) for part in opened or leaves}
        gained = node.accuracy - node.before
        reason = f"{node.given} examples brought {100 * gained:+.0f} points; follow the gap and the response"
        return Decision(skill, "exploit", reason, _spent(share_out(share, _positive(weights))))

    def _response(self, node: _Node) -> float:
        """How much of the gap data has closed, between 0.05 and 1; a prior where little was tried.

        Three examples that bring nothing say little, thirty say a lot: evidence counts by its amount.
        What the student could do before and has lost is within its reach, as far as it could do it.
        """
        closed = max(0.0, node.accuracy - node.before) / max(1e-9, 1.0 - node.before)
        evidence = node.given / EVIDENCE
        response = (PRIOR_RESPONSE + evidence * closed) / (1.0 + evidence)
        lost = node.before if node.accuracy < node.before else 0.0
        return min(1.0, max(0.05, response, lost))

    def _node(self, state: StudentState, skill: str, subskill: str = "") -> _Node:
        given = 0
        for past in state.history:
            parts = past.allocation.get(skill, {})
            given += parts.get(subskill, 0) if subskill else sum(parts.values())
        return _Node(_accuracy(state.report, skill, subskill), _accuracy(state.before, skill, subskill), given)


def _accuracy(report: Report, skill: str, subskill: str) -> float:
    """Validation accuracy; a subskill's is drawn towards its skill's, being counted on few problems."""
    try:
        whole = report.slice(skill)
    except KeyError:
        return 0.5
    parent = whole.accuracy if whole.accuracy is not None else 0.5
    if not subskill:
        return parent
    try:
        part = whole.slice(subskill)
    except KeyError:
        return parent
    return (part.correct + PRIOR_COUNT * parent) / (part.count + PRIOR_COUNT)


def _positive(weights: Mapping[str, float]) -> dict[str, float]:
    """The same weights with nothing at zero, so that a share is always spent."""
    return {name: max(weight, 1e-3) for name, weight in weights.items()}


def _spent(allocation: Mapping[str, int]) -> dict[str, int]:
    """An allocation without what got nothing."""
    return {name: count for name, count in allocation.items() if count}
