"""The summary of a skill discovery from its stored stages, for `summary.json` and the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from palaestra.core.records import Failure
from palaestra.teachers.skills.agreement import Agreement, agreement
from palaestra.teachers.skills.discovery import STAGES
from palaestra.teachers.skills.records import Category, SkillMap

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

    def plain(self) -> dict[str, Any]:
        """Convert to plain values for a summary."""
        return {
            "models": list(self.models),
            "wanted": self.wanted,
            "categories": {
                row.name: {
                    "description": row.description,
                    "problems": row.problems,
                    "test": row.test,
                    "names": dict(row.names),
                    "gold": dict(row.gold),
                }
                for row in self.rows
            },
            "problems": self.problems,
            "test": self.test,
            "names": self.names,
            "unnamed": dict(self.unnamed),
            "unassigned": dict(self.unassigned),
            "repairs": list(self.repairs),
            "reasked": dict(self.reasked),
            "agreement": _plain(self.agreement),
            "agreement_test": _plain(self.agreement_test),
        }


def last_stage(stages: Mapping[str, SkillMap]) -> str:
    """The last stored stage; empty if there is none."""
    return next((stage for stage in (TEST, *reversed(STAGES)) if stage in stages), "")


def overview(stages: Mapping[str, SkillMap]) -> Overview | None:
    """Summarize a discovery from its stored stages; `None` if no stage is finished."""
    stage = last_stage(stages)
    if not stage:
        return None
    skills, gold = stages[stage], stages.get(OWN)
    # Stage 1 covers exactly the problems that shaped the categories. Skills of a file have no stage 1; their assignment
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
    return CategoryRow(
        category.name,
        category.description,
        len(own),
        sum(name == category.name for name in test.assignment.values()),
        dict(sorted(((name, named[name]) for name in category.members), key=lambda pair: (-pair[1], pair[0]))),
        dict(sorted(golds.items(), key=lambda pair: (-pair[1], pair[0]))),
    )


def _compare(skills: SkillMap, gold: SkillMap | None) -> Agreement | None:
    """The agreement over the problems of `skills`; `None` if the task has one skill only."""
    if gold is None or not skills.assignment:
        return None
    compared = agreement(skills, gold.select({*skills.assignment, *skills.unassigned}))
    return compared if compared.gold > 1 else None


def _causes(failures: Iterable[Failure]) -> dict[str, int]:
    return dict(sorted(Counter(str(failure.cause) for failure in failures).items()))


def _plain(skills: Agreement | None) -> dict[str, Any] | None:
    if skills is None:
        return None

    def shorten(value: float | None) -> float | None:
        return None if value is None else round(value, 4)

    return {
        "adjusted_rand": shorten(skills.adjusted_rand),
        "mutual_information": shorten(skills.mutual_information),
        "purity": shorten(skills.purity),
        "problems": skills.problems,
        "left_out": skills.left_out,
        "categories": skills.categories,
        "gold": skills.gold,
    }
