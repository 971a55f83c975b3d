"""The skill tree: its records, its policies, and the limits that hold whatever a policy asks."""

from palaestra.teachers.tree.limits import Limits, enforce
from palaestra.teachers.tree.policies import POLICIES, Policy, make_policy
from palaestra.teachers.tree.records import Action, Branch, Count, Exploit, Explore, Leaf, Tree, grow, tree_of
from palaestra.teachers.tree.rewards import skill_rewards

__all__ = [
    "POLICIES",
    "Action",
    "Branch",
    "Count",
    "Exploit",
    "Explore",
    "Leaf",
    "Limits",
    "Policy",
    "Tree",
    "enforce",
    "grow",
    "make_policy",
    "skill_rewards",
    "tree_of",
]
