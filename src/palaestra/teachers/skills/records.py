"""The records of skill discovery, which a run stores stage by stage, and the spelling of skill names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from palaestra.core.records import Failure, Problem


@dataclass(frozen=True, slots=True)
class Category:
    """A discovered skill.

    Arguments:
        members: its names of stage 1; no name is in two categories.
    """

    name: str
    description: str = ""
    members: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SkillMap:
    """The skill of every problem.

    A problem is in `assignment`, in `unassigned`, or not processed yet (`missing`). A problem without a name can still be
    assigned, by its question.

    Arguments:
        names: the names of stage 1 by problem id.
        categories: the result of stage 2; empty before it.
        assignment: the names of categories by problem id.
        unnamed, unassigned: failures by problem id.
        wanted: the requested number of categories; 0: the model decides.
        repairs: errors in the model's last answer, and their repairs.
        reasked: repeated questions after an invalid answer, by stage.
        models: the models that answered; empty if the skills are the task's own.
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
        """Categories with their members, as the skills and subskills of a task."""
        return {category.name: category.members for category in self.categories}

    def skill(self, problem: str) -> str:
        """The category of the problem with this id; empty if it has none."""
        return self.assignment.get(problem, "")

    def subskill(self, problem: str) -> str:
        """The name of the problem if it is a member of its category; otherwise empty."""
        name, skill = self.names.get(problem, ""), self.skill(problem)
        return name if any(name in category.members for category in self.categories if category.name == skill) else ""

    def missing(self, problems: Iterable[Problem]) -> list[Problem]:
        """The problems that are neither assigned nor unassigned."""
        return [p for p in problems if p.id not in self.assignment and p.id not in self.unassigned]

    def select(self, problems: Iterable[str]) -> SkillMap:
        """Restrict the map to the problems with these ids."""
        ids = set(problems)
        return replace(
            self,
            names={id_: name for id_, name in self.names.items() if id_ in ids},
            assignment={id_: skill for id_, skill in self.assignment.items() if id_ in ids},
            unnamed={id_: failure for id_, failure in self.unnamed.items() if id_ in ids},
            unassigned={id_: failure for id_, failure in self.unassigned.items() if id_ in ids},
        )


LONGEST = 80
"""Maximum characters of a name."""
_AROUND = " \t.,;:!\"'`*_-"


def tidy(name: str) -> str:
    """Remove line breaks, and the quotes and full stops around a name.

    >>> tidy(' "Adding\\n fractions". ')
    'Adding fractions'
    """
    return " ".join(name.split()).strip(_AROUND)


def make_key(name: str) -> str:
    """A key that is equal for all spellings of a name.

    >>> make_key("Two-digit_sums.") == make_key("two digit  Sums")
    True
    """
    return " ".join(tidy(name).casefold().replace("-", " ").replace("_", " ").split())


def describe_fault(name: str) -> str:
    """Describe the error of a name, in words that a model can act on; empty if it is valid."""
    if not make_key(name):
        return "a name is empty"
    if len(tidy(name)) > LONGEST:
        return (
            f"the name {tidy(name)[:30]!r}... has {len(tidy(name))} characters, expected at most {LONGEST}; shorten it"
        )
    return ""


def quote_names(names: Iterable[str], most: int = 10) -> str:
    """Quote the first of some names for a message."""
    given = list(names)
    more = f" and {len(given) - most} more" if len(given) > most else ""
    return ", ".join(repr(name[:LONGEST]) for name in given[:most]) + more
