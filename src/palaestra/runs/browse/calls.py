"""The calls to models that a run has stored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from palaestra.runs.browse.conditions import Where, join_contents, join_texts, match_text
from palaestra.runs.calls import CallRecord
from palaestra.runs.store import Store


@dataclass(frozen=True, slots=True)
class CallFilter:
    """Which calls to show: of a phase, failed ones, those with a text in prompt or answer."""

    phase: str = ""
    failed: bool | None = None
    text: str = ""

    def where(self) -> Where:
        spoken = join_texts(
            "json_extract(data, '$.answer')",
            "json_extract(data, '$.failure.message')",
            join_contents("data", "$.messages"),
        )
        return Where.join(
            ("phase = ?" if self.phase else "", (self.phase,)),
            ("failed = ?" if self.failed is not None else "", (self.failed,)),
            match_text(self.text, "data", spoken),
        )


def count_calls(store: Store, wanted: CallFilter) -> int:
    where = wanted.where()
    return int(store.select(f"SELECT COUNT(*) FROM calls WHERE {where.text}", where.values)[0][0])


def find_calls(store: Store, wanted: CallFilter, limit: int, offset: int = 0) -> Iterator[tuple[int, CallRecord]]:
    """Yield matching calls with their numbers, in the order in which they were stored."""
    where = wanted.where()
    query = f"SELECT position, data FROM calls WHERE {where.text} ORDER BY position LIMIT ? OFFSET ?"
    for position, data in store.select(query, (*where.values, limit, offset)):
        yield position, store.parse(CallRecord, data)


def read_call(store: Store, position: int) -> CallRecord | None:
    rows = store.select("SELECT data FROM calls WHERE position = ?", (position,)) if store.has_table("calls") else []
    return store.parse(CallRecord, rows[0][0]) if rows else None


def list_call_phases(store: Store) -> list[str]:
    rows = store.select("SELECT phase FROM calls GROUP BY phase ORDER BY MIN(position)")
    return [str(phase) for (phase,) in rows]


def sum_calls(store: Store, wanted: CallFilter) -> dict[str, float]:
    """Return the tokens and the price of the matching calls that this run has made."""
    where, names = wanted.where(), ("calls", "prompt_tokens", "completion_tokens", "money", "unpriced")
    sums = ", ".join(f"COALESCE(SUM({name}), 0)" for name in names)
    rows = store.select(f"SELECT {sums} FROM calls WHERE calls > 0 AND {where.text}", where.values)
    return dict(zip(names, rows[0], strict=True))
