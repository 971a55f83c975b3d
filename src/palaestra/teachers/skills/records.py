"""The records of skill discovery, which a run stores stage by stage; names of skills; the repair of categories.

A model receives the list of errors in its categories and may answer again; after the last answer the list reports the
repairs. No name is assigned by guessing: names without a category are sorted by a further question, and stage 3 asks about
the problems of names that are still without one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, TypeAdapter

from palaestra.core.errors import SettingsError
from palaestra.core.records import Failure, FailureCause, Problem
from palaestra.runs.files import from_json, to_json, write_text

_MAX_NAME = 80
"""Maximum characters of a name."""
_AROUND = " \t.,;:!\"'`*_-"
SKILLS_FILE = "skills.json"
_NO_SKILL = Failure(FailureCause.INVALID_REQUEST, "the skills file has no skill for this problem")
_LABELS = TypeAdapter(dict[str, str | Annotated[list[str], Field(min_length=1, max_length=2)] | None])


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
        ids, parts = set(problems), ("names", "assignment", "unnamed", "unassigned")
        selected: Any = {part: {k: value for k, value in getattr(self, part).items() if k in ids} for part in parts}
        return replace(self, **selected)


def tidy_name(name: str) -> str:
    """Remove line breaks, and the quotes and full stops around a name.

    >>> tidy_name(' "Adding\\n fractions". ')
    'Adding fractions'
    """
    return " ".join(name.split()).strip(_AROUND)


def make_key(name: str) -> str:
    """A key that is equal for all spellings of a name.

    >>> make_key("Two-digit_sums.") == make_key("two digit  Sums")
    True
    """
    return " ".join(tidy_name(name).casefold().replace("-", " ").replace("_", " ").split())


def describe_fault(name: str) -> str:
    """Describe the error of a name, in words that a model can act on; empty if it is valid."""
    tidy = tidy_name(name)
    if len(tidy) > _MAX_NAME:
        return f"the name {tidy[:30]!r}... has {len(tidy)} characters, expected at most {_MAX_NAME}; shorten it"
    return "" if make_key(name) else "a name is empty"


def quote_names(names: Iterable[str], most: int = 10) -> str:
    """Quote the first of some names for a message."""
    given = list(names)
    more = f" and {len(given) - most} more" if len(given) > most else ""
    return ", ".join(repr(name[:_MAX_NAME]) for name in given[:most]) + more


class SkillGroup(BaseModel):
    """One category in the model's answer."""

    name: str = Field(description="what the category is called, in one to five words")
    description: str = Field("", description="one sentence that tells what belongs into it")
    skills: list[str] = Field(description="the skills in it, spelled as they were given")


class SkillGroups(BaseModel):
    """The schema of the model's answer."""

    categories: list[SkillGroup]


@dataclass(frozen=True, slots=True)
class Repair:
    """An error, in words that a model can act on, and its repair."""

    wrong: str
    done: str

    def __str__(self) -> str:
        return f"{self.wrong} ({self.done})"


def repair_categories(
    groups: SkillGroups, names: Mapping[str, int], wanted: int = 0, allowed: Sequence[Category] = ()
) -> tuple[list[Category], list[Repair]]:
    """Repair categories: they become unique and not empty, and no name is in two of them. Returns them with the repairs.

    Arguments:
        names: the names to sort, each with the number of its problems.
        wanted: the number of categories; 0: the model decides.
        allowed: the categories that may be used, which may stay empty; empty: any.
    """
    spelled = {make_key(name): name for name in names}
    may = {make_key(category.name): category.name for category in allowed}
    members: dict[str, list[str]] = {}
    called: dict[str, tuple[str, str]] = {}
    placed: set[str] = set()
    bad, twice, foreign, invented, repeated = [], [], [], [], []
    for group in groups.categories:
        own = make_key(group.name)
        if complaint := describe_fault(group.name):
            bad.append(complaint)
            continue
        if may and own not in may:
            foreign.append(tidy_name(group.name))
            continue
        if own in called:
            twice.append(called[own][0])
        called.setdefault(own, (may.get(own, tidy_name(group.name)), " ".join(group.description.split())))
        inside = members.setdefault(own, [])
        for skill in group.skills:
            key = make_key(skill)
            if key not in spelled:
                invented.append(tidy_name(skill))
            elif key in placed:
                repeated.append(spelled[key])
            else:
                placed.add(key)
                inside.append(spelled[key])
    empty = [called[own][0] for own, inside in members.items() if not inside and not may]
    left = [name for own, name in spelled.items() if own not in placed]
    later = "their problems are asked about one by one" if may else "sorted by a further question"
    findings = [
        (bad, "; ".join(bad[:3]), "a category without a usable name is dissolved"),
        (foreign, f"categories that were not given: {quote_names(foreign)}", "left out"),
        (twice, f"categories that are there more than once: {quote_names(twice)}", "made one"),
        (invented, f"not in the list of skills: {quote_names(invented)}", "left out"),
        (repeated, f"in more than one place: {quote_names(repeated)}", "the first counts"),
        (left, f"in no category: {quote_names(left)}", later),
        (empty, f"categories that hold no skill of the list: {quote_names(empty)}", "left out"),
    ]
    repairs = [Repair(wrong, done) for several, wrong, done in findings if several]
    categories = [Category(*called[own], tuple(inside)) for own, inside in members.items() if inside or may]
    if wanted and len(categories) != wanted:
        mismatch = f"expected exactly {wanted} categories that hold skills of the list; got {len(categories)}"
        categories, done = _fit(categories, names, wanted)
        repairs.append(Repair(mismatch, done))
    return categories, repairs


def _fit(categories: list[Category], names: Mapping[str, int], wanted: int) -> tuple[list[Category], str]:
    """Change the number of categories to `wanted`, as far as possible. Returns them with a description of the repair.

    Too many: the smallest are dissolved. Too few: the most frequent name of the largest becomes a category of its own.
    """

    def size(category: Category) -> int:
        return sum(names[name] for name in category.members)

    if len(categories) > wanted:
        small = sorted(categories, key=lambda category: (size(category), category.name))[: len(categories) - wanted]
        kept = [category for category in categories if category not in small]
        listed = quote_names(category.name for category in small)
        return kept, f"dissolved, and sorted by a further question: {listed}"
    taken: list[str] = []
    while len(categories) < wanted:
        used = {make_key(category.name) for category in categories}
        # The largest category first. A name that is already a category cannot become another one.
        pairs = [(size(c), names[name], c, name) for c in categories if len(c.members) > 1 for name in c.members]
        pairs = [pair for pair in pairs if make_key(pair[3]) not in used]
        if not pairs:
            break
        _, _, largest, name = max(pairs, key=lambda pair: (pair[0], pair[1], pair[2].name, pair[3]))
        rest = replace(largest, members=tuple(member for member in largest.members if member != name))
        categories = [rest if category is largest else category for category in categories]
        categories.append(Category(name, "", (name,)))
        taken.append(name)
    return categories, f"taken out of the largest: {quote_names(taken)}" if taken else "there is nothing to divide"


class SkillRow(BaseModel):
    """A line of a skills file."""

    id: str
    skill: str | None
    subskill: str = ""


def write_skills(path: Path, skills: SkillMap) -> None:
    """Write a skill map as a file that `read_skills` reads."""
    write_text(path, to_json(skills) + "\n")


def read_skills(path: Path) -> SkillMap:
    """Read a skills file, or the skills file of a run folder.

    Raises:
        SettingsError: the file is missing or has an unknown format; the message names the location.
    """
    path = path.expanduser()
    path = path / SKILLS_FILE if path.is_dir() else path
    try:
        skills = _parse(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise SettingsError(f"the skills file {path} does not exist") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise SettingsError(f"the skills file {path} cannot be read: {message}") from None
    if not skills.categories:
        raise SettingsError(f"the skills file {path} contains no skills")
    known = {category.name for category in skills.categories}
    for problem, skill in skills.assignment.items():
        if skill not in known:
            raise SettingsError(f"the skills file {path} assigns {problem} to {skill!r}, which is not among its skills")
    return skills


def _parse(text: str) -> SkillMap:
    try:
        data = json.loads(text)
    except json.JSONDecodeError:
        return _from_rows([SkillRow.model_validate_json(line) for line in text.splitlines() if line.strip()])
    if "categories" in data and "assignment" in data:
        return from_json(SkillMap, text)
    if "skill_categories" in data and "instance_id_to_skill_category" in data:
        return _from_dataenvgym(data)
    if "skill" in data and "id" in data:
        return _from_rows([SkillRow.model_validate(data)])
    labels = {
        problem: (label, "") if isinstance(label, str | None) else (*label, "")[:2]
        for problem, label in _LABELS.validate_python(data).items()
    }
    return _from_rows([SkillRow(id=problem, skill=skill, subskill=part) for problem, (skill, part) in labels.items()])


def _from_rows(rows: Sequence[SkillRow]) -> SkillMap:
    members: dict[str, dict[str, None]] = {}
    names: dict[str, str] = {}
    assignment: dict[str, str] = {}
    unassigned: dict[str, Failure] = {}
    for row in rows:
        if row.id in assignment or row.id in unassigned:
            raise ValueError(f"problem {row.id} is listed twice; list each problem once")
        if not row.skill:
            unassigned[row.id] = _NO_SKILL
            continue
        assignment[row.id] = row.skill
        parts = members.setdefault(row.skill, {})
        if row.subskill:
            names[row.id] = row.subskill
            parts[row.subskill] = None
    categories = tuple(Category(skill, "", tuple(parts)) for skill, parts in members.items())
    return SkillMap(names=names, categories=categories, assignment=assignment, unassigned=unassigned)


def _from_dataenvgym(data: Any) -> SkillMap:
    names = {entry["instance_id"]: entry["skill"]["name"] for entry in data["labeled_instructions"]}
    categories = [Category(entry["descriptive_name"], "", tuple(entry["skills"])) for entry in data["skill_categories"]]
    assigned = data["instance_id_to_skill_category"].items()
    return SkillMap(names, tuple(categories), {problem: entry["descriptive_name"] for problem, entry in assigned})
