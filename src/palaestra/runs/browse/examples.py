"""Training examples with the results of their quality checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from palaestra.core.records import Example
from palaestra.runs.browse.conditions import Where, join_contents, join_texts, match_text
from palaestra.runs.store import Store


@dataclass(frozen=True, slots=True)
class ExampleEntry:
    """An example with the result of its checks.

    Arguments:
        state: `kept`, `dropped` or `withheld` (a check failed to run on it).
        place: the index among the examples of the same round and state.
        check, reason, detail: the check that dropped or withheld it, and why.
    """

    round: int
    state: str
    place: int
    example: Example
    check: str = ""
    reason: str = ""
    detail: str = ""


_EXAMPLES = {
    "kept": "SELECT round, position AS place, skill, subskill, data, '' AS name, '' AS reason, '' AS detail FROM examples",
    "dropped": """
        SELECT i.round, d.key AS place, json_extract(d.value, '$.example.skill') AS skill,
               json_extract(d.value, '$.example.subskill') AS subskill, json_extract(d.value, '$.example') AS data,
               json_extract(d.value, '$.check') AS name, json_extract(d.value, '$.reason') AS reason,
               json_extract(d.value, '$.detail') AS detail
        FROM inspections AS i, json_each(i.data, '$.dropped') AS d""",
    "withheld": """
        SELECT i.round, f.key * 1000000 + x.key AS place, json_extract(x.value, '$.skill') AS skill,
               json_extract(x.value, '$.subskill') AS subskill, x.value AS data, json_extract(f.value, '$.check') AS name,
               'the check failed to run' AS reason, json_extract(f.value, '$.failure.message') AS detail
        FROM inspections AS i, json_each(i.data, '$.failures') AS f, json_each(f.value, '$.examples') AS x""",
}
STATES = tuple(_EXAMPLES)


@dataclass(frozen=True, slots=True)
class ExampleFilter:
    """Which examples of a run to show; empty values match all."""

    round: int | None = None
    state: str = ""
    skill: str = ""
    subskill: str = ""
    check: str = ""
    text: str = ""
    place: int | None = None

    def where(self) -> Where:
        spoken = join_texts("json_extract(data, '$.response')", join_contents("data", "$.messages"))
        return Where.join(
            *((f"{name} = ?", (value,)) if value not in ("", None) else ("", ()) for name, value in (
                ("round", self.round), ("place", self.place), ("skill", self.skill), ("subskill", self.subskill), ("name", self.check),
            )),
            match_text(self.text, "data", spoken),
        )  # fmt: skip


def count_examples(store: Store, wanted: ExampleFilter) -> dict[str, int]:
    """Return the number of matching examples by state."""
    where = wanted.where()
    return {
        state: int(store.select(f"SELECT COUNT(*) FROM ({query}) WHERE {where.text}", where.values)[0][0])
        if wanted.state in ("", state)
        else 0
        for state, query in _EXAMPLES.items()
    }


def find_examples(
    store: Store, wanted: ExampleFilter, limit: int, offset: int = 0, counts: Mapping[str, int] | None = None
) -> Iterator[ExampleEntry]:
    """Yield matching examples: those that were kept, by round, then those that were not.

    Arguments:
        counts: the result of `count_examples`, if it is known.
    """
    where = wanted.where()
    for state, count in (count_examples(store, wanted) if counts is None else counts).items():
        if offset >= count:
            offset -= count
            continue
        query = f"SELECT round, place, data, name, reason, detail FROM ({_EXAMPLES[state]}) WHERE {where.text} ORDER BY round, place LIMIT ? OFFSET ?"
        rows = store.select(query, (*where.values, limit, offset))
        for round_, place, data, *why in rows:
            yield ExampleEntry(round_, state, place, store.parse(Example, data), *why)
        limit, offset = limit - len(rows), 0
        if limit <= 0:
            return


def list_checks(store: Store, round_: int) -> list[tuple[str, int, int]]:
    """Return the quality checks of a round in order: name, examples that it was given, and those that it did not judge."""
    query = (
        "SELECT json_extract(c.value, '$.name'), json_extract(c.value, '$.given'), json_extract(c.value, '$.not_judged') "
        "FROM inspections AS i, json_each(i.data, '$.checks') AS c WHERE i.round = ? ORDER BY c.key"
    )
    return [(str(name), int(given), int(unjudged)) for name, given, unjudged in store.select(query, (round_,))]
