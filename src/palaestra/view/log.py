"""The log of a run as a page and as a file."""

from __future__ import annotations

from starlette.responses import PlainTextResponse, Response

from palaestra.runs.log import read_failure, read_log
from palaestra.view.pages import ViewerPage, render
from palaestra.view.query import PagePlace, Query
from palaestra.view.runs import RunCard

_LINES = 500
"""Lines of one page; the first page has the last lines."""


def render_log(card: RunCard, query: Query) -> ViewerPage | Response:
    """The lines of a log with a text, or all of them."""
    lines, words = read_log(card.folder), query.get("q", "").lower()
    if query.get("format") == "txt":
        return PlainTextResponse("\n".join(lines).encode("utf-8", "replace"))
    matching = [line for line in lines if words in line.lower()]
    place = PagePlace.find(query, len(matching), _LINES)
    shown = matching[max(0, len(matching) - place.offset - _LINES) : len(matching) - place.offset]
    failure = read_failure(card.folder, card.problem) if card.status == "failed" else None
    values = {
        "failure": failure,
        "lines": shown,
        "place": place,
        "total": len(lines),
        "count": len(matching),
        "text": query.get("q", ""),
    }
    return render("log", values, card, "log", query)
