"""Stage 2: cluster the names into disjoint categories.

The first call clusters as many names as one answer can hold. Further calls sort the remaining names, and those that the
model left out, into these categories. The most frequent names come first; a hash breaks ties.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from palaestra.core.records import Failure
from palaestra.engines.base import Request
from palaestra.runs.cache import digest
from palaestra.teachers.skills.category_repair import Repair, SkillGroups, repair_categories
from palaestra.teachers.skills.llm_queries import SkillQueries, is_transient
from palaestra.teachers.skills.records import Category
from palaestra.teachers.skills.spelling import quote_names

NAMES_A_CALL = 150
"""Names per answer. With more, models begin to leave some out."""
TOKENS_A_NAME = 24
"""Tokens of the answer per name."""


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
