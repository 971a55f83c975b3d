"""Stage 2: cluster the names into categories that share no name and leave none out.

As many names as one answer can hold make the categories. What has none then, because there were more names or because the
model left some out, is sorted into those, all calls side by side. The commonest names come first. Among equals a hash
decides, so that the first are no alphabet's beginning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from palaestra.core.records import Failure
from palaestra.engines.base import Request
from palaestra.runs.cache import digest
from palaestra.teachers.skills.category_repair import Groups, Repair, settle
from palaestra.teachers.skills.llm_queries import Asking, may_pass
from palaestra.teachers.skills.records import Category
from palaestra.teachers.skills.spelling import quoted

NAMES_A_CALL = 150
"""Names that one answer sorts: a model that has to write down more begins to lose some."""
TOKENS_A_NAME = 24
"""Room in the answer for each name, with its share of the rest."""


@dataclass(frozen=True, slots=True)
class Clustering:
    """What came of stage 2; `failure` says why there are no categories."""

    categories: tuple[Category, ...] = ()
    repairs: tuple[str, ...] = ()
    failure: Failure | None = None


def cluster(names: Mapping[str, int], asking: Asking, wanted: int = 0, names_a_call: int = NAMES_A_CALL) -> Clustering:
    """Categories for `names`, each given with the number of its problems; at least one name.

    Arguments:
        wanted: how many categories; 0 leaves it to the model. Where there are no more names than that, each is one.
    """
    ordered = sorted(names, key=lambda name: (-names[name], digest(name)))
    if len(ordered) <= max(wanted, 1):
        short = Repair(f"expected {wanted} categories; got {len(ordered)} different names", "each is one")
        alone = tuple(Category(name, "", (name,)) for name in ordered)
        return Clustering(alone, (str(short),) if len(ordered) < wanted else ())
    most = max(names_a_call, wanted)
    first = ordered[:most]
    request = _request(asking, "cluster", first, wanted=wanted)
    said, failures = _ask(asking, [request], [{name: names[name] for name in first}], wanted)
    # A poor first answer is not kept because the service broke before it could be mended.
    if said[0] is None or (0 in failures and may_pass(failures[0])):
        return Clustering(failure=failures[0])
    made, wrong = said[0]
    repairs = list(map(str, wrong))
    placed = {name for category in made for name in category.members}
    rest = [name for name in ordered if name not in placed]
    if rest:
        made, more = _sort_rest(rest, names, made, asking, most)
        repairs += more
    return Clustering(tuple(made), tuple(repairs))


def _sort_rest(
    rest: Sequence[str], names: Mapping[str, int], made: Sequence[Category], asking: Asking, most: int
) -> tuple[list[Category], list[str]]:
    """The categories with the names of `rest` sorted into them, and what went wrong."""
    parts = [rest[start : start + most] for start in range(0, len(rest), most)]
    requests = [_request(asking, "sort", part, categories=made) for part in parts]
    said, failures = _ask(asking, requests, [{name: names[name] for name in part} for part in parts], 0, made)
    members = {category.name: list(category.members) for category in made}
    repairs = []
    for index, (part, found) in enumerate(zip(parts, said, strict=True)):
        if found is None:
            told = f"not sorted ({failures[index].message}): {quoted(part)}"
            repairs.append(str(Repair(told, "their problems are asked about one by one")))
            continue
        repairs += list(map(str, found[1]))
        for category in found[0]:
            members[category.name] += category.members
    return [replace(category, members=tuple(members[category.name])) for category in made], repairs


def _request(asking: Asking, prompt: str, names: Sequence[str], **variables: object) -> Request:
    room = asking.max_tokens + TOKENS_A_NAME * len(names)
    return asking.request(prompt, max_tokens=room, names=names, **variables)


Settled = tuple[list[Category], list[Repair]]


def _ask(
    asking: Asking,
    requests: Sequence[Request],
    names: Sequence[Mapping[str, int]],
    wanted: int,
    allowed: Sequence[Category] = (),
) -> tuple[list[Settled | None], dict[int, Failure]]:
    """The best categories that the model gave for each request, put right; and its failures by index."""
    best: list[Settled | None] = [None] * len(requests)

    def check(index: int, groups: Groups) -> str:
        found = settle(groups, names[index], wanted, allowed)
        before = best[index]
        # The later answer of two that are as good knows more of what was wanted.
        if found[0] and (before is None or _demerit(found) <= _demerit(before)):
            best[index] = found
        return "; ".join(repair.wrong for repair in found[1])

    answers = asking.ask(requests, Groups, check=check)
    return best, {index: answer for index, answer in enumerate(answers) if isinstance(answer, Failure)}


def _demerit(found: Settled) -> tuple[int, int]:
    """What makes an answer a bad one: first the names that it does not place, then what else had to be put right."""
    return -sum(len(category.members) for category in found[0]), len(found[1])
