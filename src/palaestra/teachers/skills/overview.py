"""The summary of a skill discovery, with its agreement with the task's own skills, for `summary.json` and the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from palaestra.core.records import Failure, Json
from palaestra.teachers.skills.discovery import STAGES
from palaestra.teachers.skills.records import Category, SkillMap


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
    """

    adjusted_rand: float | None
    mutual_information: float | None
    purity: float | None
    problems: int
    left_out: int
    categories: int
    gold: int


def agreement(discovered: SkillMap, gold: SkillMap) -> Agreement:
    """Compare discovered skills with gold skills (`map_own_skills`)."""
    both = [problem for problem in gold.assignment if problem in discovered.assignment]
    labels = [discovered.assignment[problem] for problem in both]
    other = [gold.assignment[problem] for problem in both]
    known = {id_ for several in (discovered, gold) for id_ in (*several.assignment, *several.unassigned)}
    counts = len(both), len(known) - len(both), len(set(labels)), len(set(other))
    if not both:
        return Agreement(None, None, None, *counts)
    cells = contingency(labels, other)
    return Agreement(compute_rand_index(cells), mutual_information(cells), purity(cells), *counts)


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
    entropies = _entropy(joint.sum(1)) + _entropy(joint.sum(0))
    if entropies == 0:
        return 1.0  # Each has a single cluster.
    shared = entropies - _entropy(joint.ravel())
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


TEST = "test"
"""The last stage: test problems are assigned to the categories, which they did not shape."""
OWN = "own"
"""Not a stage: the task's own skills, stored with the stages for a comparison."""


@dataclass(frozen=True, slots=True)
class CategoryRow:
    """A category with its contents.

    Arguments:
        problems: the number of problems that shaped the categories.
        test: the number of test problems.
        names: the names of stage 1 with their numbers of problems, the most frequent first.
        gold: its `problems` by the task's own skill, the most frequent first.
    """

    name: str
    description: str
    problems: int
    test: int
    names: Mapping[str, int]
    gold: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Overview:
    """The numbers of a discovery.

    Arguments:
        stage: the last finished stage.
        wanted: the requested number of categories; 0: the model decided.
        problems, test: the problems that shaped the categories, and those that were only assigned.
        names: the number of different names of stage 1.
        unnamed, unassigned: problems that could not be named or assigned, by cause; test problems are never named.
        agreement: with the task's own skills, over the problems that shaped the categories; `None` if the task has none.
        agreement_test: the same over the test problems.
    """

    stage: str
    models: tuple[str, ...]
    wanted: int
    rows: tuple[CategoryRow, ...]
    problems: int
    test: int
    names: int
    unnamed: Mapping[str, int] = field(default_factory=dict)
    unassigned: Mapping[str, int] = field(default_factory=dict)
    repairs: tuple[str, ...] = ()
    reasked: Mapping[str, int] = field(default_factory=dict)
    agreement: Agreement | None = None
    agreement_test: Agreement | None = None

    def plain(self) -> Json:
        """Convert to plain values for a summary."""
        rows = {row.name: {k: v for k, v in asdict(row).items() if k != "name"} for row in self.rows}
        data = asdict(self) | {"models": list(self.models), "repairs": list(self.repairs), "rows": rows}
        data |= {"agreement": _plain(self.agreement), "agreement_test": _plain(self.agreement_test)}
        return {"categories" if name == "rows" else name: value for name, value in data.items() if name != "stage"}


def last_stage(stages: Mapping[str, SkillMap]) -> str:
    """The last stored stage; empty if there is none."""
    return next((stage for stage in (TEST, *reversed(STAGES)) if stage in stages), "")


def overview(stages: Mapping[str, SkillMap]) -> Overview | None:
    """Summarize a discovery from its stored stages; `None` if no stage is finished."""
    stage = last_stage(stages)
    if not stage:
        return None
    skills, gold = stages[stage], stages.get(OWN)
    # Stage 1 covers exactly the problems that shaped the categories. Skills from a file have no stage 1; their assignment
    # stage has these problems.
    shaping = stages.get("assignment", skills)
    source = {*skills.names, *skills.unnamed} if skills.models else {*shaping.assignment, *shaping.unassigned}
    of_source = skills.select(source)
    of_test = skills.select({*skills.assignment, *skills.unassigned} - source)
    return Overview(
        stage=stage,
        models=skills.models,
        wanted=skills.wanted,
        rows=tuple(_row(category, of_source, of_test, gold) for category in skills.categories),
        problems=len(source),
        test=len(of_test.assignment) + len(of_test.unassigned),
        names=len(set(skills.names.values())),
        unnamed=_causes(skills.unnamed.values()),
        unassigned=_causes(skills.unassigned.values()),
        repairs=skills.repairs,
        reasked=skills.reasked,
        agreement=_compare(of_source, gold),
        agreement_test=_compare(of_test, gold),
    )


def _row(category: Category, source: SkillMap, test: SkillMap, gold: SkillMap | None) -> CategoryRow:
    own = [id_ for id_, name in source.assignment.items() if name == category.name]
    named = Counter(source.names.values())
    golds = Counter(gold.skill(id_) for id_ in own if gold.skill(id_)) if gold is not None else Counter()
    members = {name: named[name] for name in category.members}
    names, skills = (dict(sorted(n.items(), key=lambda pair: (-pair[1], pair[0]))) for n in (members, golds))
    tested = sum(name == category.name for name in test.assignment.values())
    return CategoryRow(category.name, category.description, len(own), tested, names, skills)


def _compare(skills: SkillMap, gold: SkillMap | None) -> Agreement | None:
    """The agreement over the problems of `skills`; `None` if the task has only one skill."""
    if gold is None or not skills.assignment:
        return None
    compared = agreement(skills, gold.select({*skills.assignment, *skills.unassigned}))
    return compared if compared.gold > 1 else None


def _causes(failures: Iterable[Failure]) -> dict[str, int]:
    return dict(sorted(Counter(str(failure.cause) for failure in failures).items()))


def _plain(measures: Agreement | None) -> Json | None:
    if measures is None:
        return None
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in asdict(measures).items()}
