"""How far two ways to divide the same problems agree, whatever the parts are called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from palaestra.teachers.skills.records import SkillMap


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far discovered skills agree with gold ones, over the problems that have both.

    Arguments:
        adjusted_rand: over pairs of problems, corrected for chance: 1 for the same division, about 0 for a random one.
        mutual_information: normalised by the mean of the two entropies, from 0 to 1; grows with the number of
            categories by chance alone.
        purity: the share of problems in their category's most frequent gold skill; 1 where each is a category.
        problems: how many were compared. With none there are no figures: `None`.
        left_out: problems of either map that have no category in the other.
        categories, gold: how many of each were met.
        table: how many problems of each gold skill went to each category.
    """

    adjusted_rand: float | None
    mutual_information: float | None
    purity: float | None
    problems: int
    left_out: int
    categories: int
    gold: int
    table: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


def agreement(discovered: SkillMap, gold: SkillMap) -> Agreement:
    """Compare discovered skills with gold ones (`map_own_skills`)."""
    both = [problem for problem in gold.assignment if problem in discovered.assignment]
    labels = [discovered.assignment[problem] for problem in both]
    other = [gold.assignment[problem] for problem in both]
    table: dict[str, dict[str, int]] = {}
    for category, skill in zip(labels, other, strict=True):
        row = table.setdefault(skill, {})
        row[category] = row.get(category, 0) + 1
    known = {id_ for several in (discovered, gold) for id_ in (*several.assignment, *several.unassigned)}
    counts = len(both), len(known) - len(both), len(set(labels)), len(set(other))
    if not both:
        return Agreement(None, None, None, *counts)
    cells = contingency(labels, other)
    return Agreement(compute_rand_index(cells), mutual_information(cells), purity(cells), *counts, table)


def contingency(labels: Sequence[str], other: Sequence[str]) -> np.ndarray:
    """How many things have each pair of labels, as an array `cells_CG`."""
    rows, row = np.unique(list(labels), return_inverse=True)
    columns, column = np.unique(list(other), return_inverse=True)
    cells_CG = np.zeros((len(rows), len(columns)), dtype=np.int64)
    np.add.at(cells_CG, (row, column), 1)
    return cells_CG


def compute_rand_index(cells_CG: np.ndarray) -> float:
    """The adjusted Rand index (Hubert and Arabie, 1985).

    >>> round(compute_rand_index(contingency("aabb", "xxyz")), 4)
    0.5714
    """
    pairs = _pairs(cells_CG)
    rows, columns, total = _pairs(cells_CG.sum(1)), _pairs(cells_CG.sum(0)), _pairs(cells_CG.sum())
    # Both put everything together, or nothing: they are the same, and chance could do no other.
    if rows == columns and rows in (0, total):
        return 1.0
    expected = rows * columns / total
    return (pairs - expected) / ((rows + columns) / 2 - expected)


def mutual_information(cells_CG: np.ndarray) -> float:
    """Mutual information divided by the mean of the two entropies."""
    joint = cells_CG / cells_CG.sum()
    rows, columns = joint.sum(1), joint.sum(0)
    entropies = _entropy(rows) + _entropy(columns)
    if entropies == 0:
        return 1.0  # One part each.
    shared = _entropy(rows) + _entropy(columns) - _entropy(joint.ravel())
    return float(min(1.0, max(0.0, 2 * shared / entropies)))


def purity(cells_CG: np.ndarray) -> float:
    """The share of things whose second label is the most frequent one under their first."""
    return float(cells_CG.max(1).sum() / cells_CG.sum())


def _pairs(counts: np.ndarray) -> int:
    """How many pairs of things lie together."""
    return int((counts * (counts - 1)).sum()) // 2


def _entropy(shares: np.ndarray) -> float:
    positive = shares[shares > 0]
    return float(-(positive * np.log(positive)).sum())
