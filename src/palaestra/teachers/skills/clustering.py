"""Find and repair errors in the categories that a model made.

The model receives the list of errors and may answer again; after the last answer the list reports the repairs. No name is
assigned by guessing: names without a category are sorted by a further question, and stage 3 asks about the problems of
names that are still without one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, Field

from palaestra.teachers.skills.records import Category, describe_fault, make_key, quote_names, tidy


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
            foreign.append(tidy(group.name))
            continue
        if own in called:
            twice.append(called[own][0])
        called.setdefault(own, (may.get(own, tidy(group.name)), " ".join(group.description.split())))
        inside = members.setdefault(own, [])
        for skill in group.skills:
            if make_key(skill) not in spelled:
                invented.append(tidy(skill))
            elif make_key(skill) in placed:
                repeated.append(spelled[make_key(skill)])
            else:
                placed.add(make_key(skill))
                inside.append(spelled[make_key(skill)])
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
        rest = Category(largest.name, largest.description, tuple(n for n in largest.members if n != name))
        categories = [rest if category is largest else category for category in categories] + [
            Category(name, "", (name,))
        ]
        taken.append(name)
    return categories, f"taken out of the largest: {quote_names(taken)}" if taken else "there is nothing to divide"
