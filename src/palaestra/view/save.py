"""Figures and tables of any page as files: the address of the page with `save=NAME.FORMAT`."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from palaestra.report.figures import find_parts
from palaestra.view.pages import render

TYPES = {
    "svg": "image/svg+xml", "png": "image/png", "csv": "text/csv; charset=utf-8", "tex": "text/x-tex; charset=utf-8"
}  # fmt: skip
MARKER = "<!-- save -->"
"""Where the links stand in a page."""


def add_links(page: str, path: str, query: Sequence[tuple[str, str]]) -> str:
    """Put links to the figures and tables of a rendered page in the place of its marker."""
    if MARKER not in page:
        return page
    figures, tables = find_parts(page)
    address = f"{quote(path)}?{''.join(f'{quote(name)}={quote(value)}&' for name, value in query)}"
    links = render("save", figures=figures, tables=tables, address=address) if figures or tables else ""
    return page.replace(MARKER, links, 1)


def save_part(page: str, name: str) -> tuple[bytes, str] | None:
    """One figure or table of a rendered page with its media type; `None` if the page has none of that name.

    Raises:
        MissingExtraError: a PNG is asked for and resvg is not installed.
    """
    stem, _, kind = name.rpartition(".")
    for part in (part for parts in find_parts(page) for part in parts):
        if part.name == stem and kind in part.formats:
            return part.write(kind), TYPES[kind]
    return None
