"""The policies of a skill tree, which decide what to explore and exploit, and with how many examples."""

from __future__ import annotations

import inspect
from typing import Any, Protocol

import numpy as np

from palaestra.core.errors import SettingsError
from palaestra.core.registry import Registry
from palaestra.teachers.tree.limits import TreeLimits
from palaestra.teachers.tree.records import Action, TreeState

POLICIES = Registry("tree policy", "palaestra.tree_policies")
for _name, _place, _help in (
    ("response", "response:TreeResponse", "by the gap to full accuracy, and by how much of it data has closed so far"),
    ("ucb", "bandits:UpperConfidence", "by an upper confidence bound of the gain of every further example"),
    ("thompson", "bandits:Thompson", "by the gains of learning curves that are sampled from their posterior"),
    ("alternating", "simple:Alternating", "explores in one round, exploits in the next"),
    ("balanced", "simple:Balanced", "opens subskills up to the maximum, then balances their examples"),
    ("random", "simple:Random", "explores or exploits by chance"),
    ("threshold", "simple:Threshold", "explores a skill with a small last reward, exploits the others"),
    ("model", "model:TreeModel", "a language model reads the history and decides, with reasons"),
):
    POLICIES.register(_name, f"palaestra.teachers.tree.{_place}", _help)


class TreePolicy(Protocol):
    """Decides the actions of a round.

    Arguments of `decide`:
        tree: the skills with their history.
        size: examples in the lesson.
        limits: the limits, which are enforced afterwards; a policy may exceed them.
        generator: the only source of randomness.

    A policy keeps no state between rounds. `open_at_once` is its default limit of that name.
    """

    open_at_once: int

    def decide(self, tree: TreeState, size: int, limits: TreeLimits, generator: np.random.Generator) -> list[Action]:
        """Return at most one action per skill."""
        ...


def make_policy(name: str, **options: Any) -> TreePolicy:
    """Build the policy that is registered under `name`. An option of `None` uses the policy's default.

    Raises:
        SettingsError: the policy does not take one of the options; the message lists its options.
    """
    kind = POLICIES.get(name)
    known = list(inspect.signature(kind).parameters)
    given = {option: value for option, value in options.items() if value is not None}
    for option in given:
        if option not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise SettingsError(f"tree policy '{name}' has no option '{option}'; {takes}")
    policy: TreePolicy = kind(**given)
    return policy
