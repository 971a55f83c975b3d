"""The policies of a skill tree: who decides what is explored, what is exploited, and with how much."""

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
    ("response", "response:TreeResponse", "by what is left to learn, and how much of it data has brought so far"),
    ("ucb", "bandits:UpperConfidence", "by the gain that learning curves promise for every further example"),
    ("thompson", "bandits:Thompson", "the same for curves that are drawn from what the answers allow"),
    ("alternating", "simple:Alternating", "explores in one round, exploits in the next"),
    ("balanced", "simple:Balanced", "opens subskills up to the maximum, then fills them evenly"),
    ("random", "simple:Random", "explores or exploits by chance"),
    ("threshold", "simple:Threshold", "explores a skill whose last reward was small, exploits one whose was not"),
    ("model", "model:TreeModel", "a language model that reads the whole history and gives its reasons"),
):
    POLICIES.register(_name, f"palaestra.teachers.tree.{_place}", _help)


class TreePolicy(Protocol):
    """Decides the actions of a round.

    Arguments of `decide`:
        tree: all that is known.
        size: examples of the lesson.
        limits: what will be enforced on whatever is asked, so a policy may ask for anything.
        generator: the only source of chance.

    A policy keeps nothing between rounds. `open_at_once` is the limit that it is made for, where the user gives none.
    """

    open_at_once: int

    def decide(self, tree: TreeState, size: int, limits: TreeLimits, generator: np.random.Generator) -> list[Action]:
        """At most one action for each skill."""
        ...


def make_policy(name: str, **options: Any) -> TreePolicy:
    """Build the policy that is registered under `name`. An option that is `None` is the policy's own choice.

    Raises:
        SettingsError: the policy does not take one of the options; names what it takes.
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
