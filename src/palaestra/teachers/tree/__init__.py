"""The skill tree: its records, its policies, and the limits that are enforced on them."""

from palaestra.teachers.tree.limits import TreeLimits, enforce
from palaestra.teachers.tree.policies import POLICIES, TreePolicy, make_policy
from palaestra.teachers.tree.records import Action, Branch, Count, Exploit, Explore, Leaf, TreeState, build_tree, grow
from palaestra.teachers.tree.rewards import skill_rewards

__all__ = [
    "POLICIES",
    "Action",
    "Branch",
    "Count",
    "Exploit",
    "Explore",
    "Leaf",
    "TreeLimits",
    "TreePolicy",
    "TreeState",
    "build_tree",
    "enforce",
    "grow",
    "make_policy",
    "skill_rewards",
]
