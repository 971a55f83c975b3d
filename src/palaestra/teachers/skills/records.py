"""What skill discovery found: plain records, which a run's store keeps stage by stage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from palaestra.core.records import Failure, Problem


@dataclass(frozen=True, slots=True)
class Category:
    """A skill that was discovered.

    Arguments:
        members: the names of stage 1 that it holds; no name is in two categories.
    """

    name: str
    description: str = ""
    members: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SkillMap:
    """Which skill every problem exercises, and how that was found.

    A problem is in `assignment` or in `unassigned`, or nobody has asked yet (`missing`). One that could not be named
    may still be assigned: the model picks a category from its question.

    Arguments:
        names: the skill that stage 1 named, by the id of the problem.
        categories: what stage 2 made of the names; empty until it is done.
        assignment: the category's name, by the id of the problem.
        unnamed, unassigned: what went wrong with a problem, by its id.
        wanted: the number of categories that was asked for; 0 left it to the model.
        repairs: what was wrong with the model's categories to the end, and what was done about it.
        reasked: how often an answer did not fit and the model was asked again, by stage.
        models: who answered; nobody where the skills are the task's own.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    categories: tuple[Category, ...] = ()
    assignment: Mapping[str, str] = field(default_factory=dict)
    unnamed: Mapping[str, Failure] = field(default_factory=dict)
    unassigned: Mapping[str, Failure] = field(default_factory=dict)
    wanted: int = 0
    repairs: tuple[str, ...] = ()
    reasked: Mapping[str, int] = field(default_factory=dict)
    models: tuple[str, ...] = ()

    def skills(self) -> dict[str, tuple[str, ...]]:
        """Every category with its members: skills and subskills, as a task has them."""
        return {category.name: category.members for category in self.categories}

    def skill(self, problem: str) -> str:
        """The category of the problem with this id; empty where it has none."""
        return self.assignment.get(problem, "")

    def subskill(self, problem: str) -> str:
        """The problem's own name, where it is a member of its category; else empty."""
        name, skill = self.names.get(problem, ""), self.skill(problem)
        return name if any(name in category.members for category in self.categories if category.name == skill) else ""

    def missing(self, problems: Iterable[Problem]) -> list[Problem]:
        """The problems that nobody has asked about yet."""
        return [p for p in problems if p.id not in self.assignment and p.id not in self.unassigned]

    def select(self, problems: Iterable[str]) -> SkillMap:
        """The same map for some problems only, by their ids."""
        ids = set(problems)
        return replace(
            self,
            names={id_: name for id_, name in self.names.items() if id_ in ids},
            assignment={id_: skill for id_, skill in self.assignment.items() if id_ in ids},
            unnamed={id_: failure for id_, failure in self.unnamed.items() if id_ in ids},
            unassigned={id_: failure for id_, failure in self.unassigned.items() if id_ in ids},
        )
