"""What lists read alike: numbers in a query, and the position of a page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from palaestra.runs.files import read_json
from palaestra.view.runs import RunCard

PAGE = 50
"""Rows of one page of a list."""
Query = Mapping[str, str]
"""The query of an address, by name."""
Row = dict[str, Any]
"""What a template shows of one record."""


def read_number(query: Mapping[str, str], name: str) -> int | None:
    """Return a whole number of a query; `None` if it has none."""
    try:
        return int(query.get(name, ""))
    except ValueError:
        return None


def read_kept_round(card: RunCard) -> int:
    """Return the round whose student a teach run has kept; 0 before its end."""
    path = card.folder / "summary.json"
    return int(read_json(path).get("kept_round") or 0) if path.exists() else 0


@dataclass(frozen=True, slots=True)
class PagePlace:
    """Which page of how many.

    >>> place = PagePlace.find({"page": "9"}, 120, 50)
    >>> place.number, place.pages, place.offset
    (3, 3, 100)
    """

    number: int
    pages: int
    size: int

    @classmethod
    def find(cls, query: Mapping[str, str], count: int, size: int) -> PagePlace:
        """Read `page` of a query. A page outside of the `count` rows becomes the nearest one."""
        pages = max(1, -(-count // size))
        return cls(min(max(1, read_number(query, "page") or 1), pages), pages, size)

    @property
    def offset(self) -> int:
        return (self.number - 1) * self.size
