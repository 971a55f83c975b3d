"""Stage 2: cluster the names into disjoint categories.

The first call clusters as many names as one answer can hold. Further calls sort the remaining names, and those that the
model left out, into these categories. The most frequent names come first; a hash breaks ties.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import BaseModel, Field

from palaestra.core.records import Failure
from palaestra.engines.base import Request
from palaestra.runs.cache import digest
from palaestra.teachers.skills.records import Category, fault, key, quote_names, tidy
from palaestra.teachers.skills.stages import SkillQueries, is_transient

NAMES_A_CALL = 150
"""Names per answer. With more, models begin to leave some out."""
TOKENS_A_NAME = 24
"""Tokens of the answer per name."""


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


@dataclass(frozen=True, slots=True)
class Clustering:
    """The result of stage 2; without categories, `failure` has the cause."""

    categories: tuple[Category, ...] = ()
    repairs: tuple[str, ...] = ()
    failure: Failure | None = None


def cluster(
    names: Mapping[str, int], asking: SkillQueries, wanted: int = 0, names_a_call: int = NAMES_A_CALL
) -> Clustering:
    """Cluster `names`, each with the number of its problems, into categories; at least one name.

    Arguments:
        wanted: the number of categories; 0: the model decides. With no more names than that, each is a category.
    """
    ordered = sorted(names, key=lambda name: (-names[name], digest(name)))
    if len(ordered) <= max(wanted, 1):
        short = Repair(f"expected {wanted} categories; got {len(ordered)} different names", "each is one")
        alone = tuple(Category(name, "", (name,)) for name in ordered)
        return Clustering(alone, (str(short),) if len(ordered) < wanted else ())
    most = max(names_a_call, wanted)
    first = ordered[:most]
    request = _request(asking, "cluster", first, wanted=wanted)
    answers, failures = _ask(asking, [request], [{name: names[name] for name in first}], wanted)
    # If the service failed before a correction, the first answer is not used.
    if answers[0] is None or (0 in failures and is_transient(failures[0])):
        return Clustering(failure=failures[0])
    categories, wrong = answers[0]
    repairs = list(map(str, wrong))
    placed = {name for category in categories for name in category.members}
    rest = [name for name in ordered if name not in placed]
    if rest:
        categories, more = _sort_rest(rest, names, categories, asking, most)
        repairs += more
    return Clustering(tuple(categories), tuple(repairs))


def _sort_rest(
    rest: Sequence[str], names: Mapping[str, int], categories: Sequence[Category], asking: SkillQueries, most: int
) -> tuple[list[Category], list[str]]:
    """Sort the names of `rest` into the categories. Returns these with the repairs."""
    parts = [rest[start : start + most] for start in range(0, len(rest), most)]
    requests = [_request(asking, "sort", part, categories=categories) for part in parts]
    answers, failures = _ask(asking, requests, [{name: names[name] for name in part} for part in parts], 0, categories)
    members = {category.name: list(category.members) for category in categories}
    repairs = []
    for index, (part, repaired) in enumerate(zip(parts, answers, strict=True)):
        if repaired is None:
            text = f"not sorted ({failures[index].message}): {quote_names(part)}"
            repairs.append(str(Repair(text, "their problems are asked about one by one")))
            continue
        repairs += list(map(str, repaired[1]))
        for category in repaired[0]:
            members[category.name] += category.members
    return [replace(category, members=tuple(members[category.name])) for category in categories], repairs


def _request(asking: SkillQueries, prompt: str, names: Sequence[str], **variables: object) -> Request:
    room = asking.max_tokens + TOKENS_A_NAME * len(names)
    return asking.request(prompt, max_tokens=room, names=names, **variables)


Repaired = tuple[list[Category], list[Repair]]


def _ask(
    asking: SkillQueries,
    requests: Sequence[Request],
    names: Sequence[Mapping[str, int]],
    wanted: int,
    allowed: Sequence[Category] = (),
) -> tuple[list[Repaired | None], dict[int, Failure]]:
    """Ask for categories. Returns the best repaired answer to each request, and the failures by index."""
    best: list[Repaired | None] = [None] * len(requests)

    def check(index: int, groups: SkillGroups) -> str:
        repaired = repair_categories(groups, names[index], wanted, allowed)
        before = best[index]
        # Of two equally good answers the later one is used.
        if repaired[0] and (before is None or _demerit(repaired) <= _demerit(before)):
            best[index] = repaired
        return "; ".join(repair.wrong for repair in repaired[1])

    answers = asking.ask(requests, SkillGroups, check=check)
    return best, {index: answer for index, answer in enumerate(answers) if isinstance(answer, Failure)}


def _demerit(repaired: Repaired) -> tuple[int, int]:
    """A sort key, lower is better: first the number of names without a category, then the number of repairs."""
    return -sum(len(category.members) for category in repaired[0]), len(repaired[1])


def repair_categories(
    groups: SkillGroups, names: Mapping[str, int], wanted: int = 0, allowed: Sequence[Category] = ()
) -> tuple[list[Category], list[Repair]]:
    """Repair categories: they become unique and not empty, and no name is in two of them. Returns them with the repairs.

    Arguments:
        names: the names to sort, each with the number of its problems.
        wanted: the number of categories; 0: the model decides.
        allowed: the categories that may be used, which may stay empty; empty: any.
    """
    spelled = {key(name): name for name in names}
    may = {key(category.name): category.name for category in allowed}
    members: dict[str, list[str]] = {}
    called: dict[str, tuple[str, str]] = {}
    placed: set[str] = set()
    bad, twice, foreign, invented, repeated = [], [], [], [], []
    for group in groups.categories:
        own = key(group.name)
        if complaint := fault(group.name):
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
            if key(skill) not in spelled:
                invented.append(tidy(skill))
            elif key(skill) in placed:
                repeated.append(spelled[key(skill)])
            else:
                placed.add(key(skill))
                inside.append(spelled[key(skill)])
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
        used = {key(category.name) for category in categories}
        # The largest category first. A name that is already a category cannot become another one.
        pairs = [(size(c), names[name], c, name) for c in categories if len(c.members) > 1 for name in c.members]
        pairs = [pair for pair in pairs if key(pair[3]) not in used]
        if not pairs:
            break
        _, _, largest, name = max(pairs, key=lambda pair: (pair[0], pair[1], pair[2].name, pair[3]))
        rest = Category(largest.name, largest.description, tuple(n for n in largest.members if n != name))
        categories = [rest if category is largest else category for category in categories] + [
            Category(name, "", (name,))
        ]
        taken.append(name)
    return categories, f"taken out of the largest: {quote_names(taken)}" if taken else "there is nothing to divide"
