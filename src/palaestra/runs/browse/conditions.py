"""Conditions of queries, and the search in the texts of records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from palaestra.runs.files import to_json
from palaestra.runs.store import escape_like

T = TypeVar("T")


class Where(NamedTuple):
    """Conditions of a query with their values."""

    text: str
    values: tuple[Any, ...]

    @classmethod
    def join(cls, *conditions: tuple[str, Sequence[Any]]) -> Where:
        """Join the conditions whose text is not empty."""
        used = [(text, values) for text, values in conditions if text]
        return cls(" AND ".join(f"({text})" for text, _ in used) or "1", tuple(v for _, vs in used for v in vs))


def match_text(text: str, column: str, spoken: str) -> tuple[str, tuple[str, ...]]:
    """The condition that a record contains a text. Letters of ASCII match in any case.

    Arguments:
        column: the record as JSON. Looking for the text as JSON has it needs no parsing and comes first.
        spoken: an SQL expression for the texts of the record.
    """
    if not text:
        return "", ()
    pattern = "{} LIKE ? ESCAPE '\\'"
    wanted = tuple(f"%{escape_like(part)}%" for part in (to_json(text)[1:-1], text))
    return f"{pattern.format(column)} AND {pattern.format(spoken)}", wanted


def join_contents(column: str, path: str) -> str:
    """SQL for the contents of the messages at a path of a record."""
    return f"(SELECT group_concat(json_extract(m.value, '$.content'), ' ') FROM json_each({column}, '{path}') AS m)"


def join_texts(*texts: str) -> str:
    """SQL for several texts, one after another."""
    return " || ' ' || ".join(f"COALESCE({text}, '')" for text in texts)


def iterate(read: Callable[[int, int], Iterable[T]], chunk: int = 500) -> Iterator[T]:
    """Yield all rows of `read(limit, offset)`, some at a time."""
    offset = 0
    while rows := list(read(chunk, offset)):
        yield from rows
        offset += len(rows)
