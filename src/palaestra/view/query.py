"""Query parsing and pagination."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

PAGE = 50
"""Rows of one page of a list."""
Query = Mapping[str, str]
"""The query of an address, by name."""


def read_query_number(query: Query, name: str) -> int | None:
    """Return a whole number of a query; `None` if it has none."""
    try:
        return int(query.get(name, ""))
    except ValueError:
        return None


def with_query(query: Query, **changes: str | int | None) -> str:
    """Return the query of a link: the current one with `changes`; `None` removes a part.

    >>> with_query({"q": "a b", "page": "3"}, page=None, format="csv")
    '?q=a+b&format=csv'
    """
    parts = {name: value for name, value in {**query, **changes}.items() if value not in (None, "")}
    return f"?{urlencode(parts)}"


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
    def find(cls, query: Query, count: int, size: int) -> PagePlace:
        """Read `page` of a query. A page outside of the `count` rows becomes the nearest one."""
        pages = max(1, -(-count // size))
        return cls(min(max(1, read_query_number(query, "page") or 1), pages), pages, size)

    @property
    def offset(self) -> int:
        return (self.number - 1) * self.size
