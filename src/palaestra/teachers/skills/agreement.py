"""Measures of agreement between two clusterings of the same problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from palaestra.teachers.skills.records import SkillMap


@dataclass(frozen=True, slots=True)
class Agreement:
    """The agreement of discovered skills with gold skills, over the problems that have both.

    Arguments:
        adjusted_rand: the adjusted Rand index: 1 for equal clusterings, about 0 for random ones.
        mutual_information: normalised by the mean of the two entropies, from 0 to 1; grows by chance with the number of
            categories.
        purity: the fraction of problems in their category's most frequent gold skill.
        problems: the number of compared problems. Without any, the measures are `None`.
        left_out: problems of either map without a category in the other.
        categories, gold: the number of different categories and gold skills.
        table: problems by gold skill and category.
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
    """Compare discovered skills with gold skills (`map_own_skills`)."""
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
    """The contingency table of two labellings, as an array `cells_CG`."""
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
    # Both have a single cluster, or only clusters of one: they are equal, and the index is undefined.
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
    """The fraction of items with the most frequent second label of their first label."""
    return float(cells_CG.max(1).sum() / cells_CG.sum())


def _pairs(counts: np.ndarray) -> int:
    """The number of pairs within the same cell."""
    return int((counts * (counts - 1)).sum()) // 2


def _entropy(shares: np.ndarray) -> float:
    positive = shares[shares > 0]
    return float(-(positive * np.log(positive)).sum())
