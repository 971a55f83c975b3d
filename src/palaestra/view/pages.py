"""The pages of the viewer, from the templates of the report and its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from markupsafe import Markup

from palaestra.report.page import make_environment, read_page
from palaestra.report.svg import Scale, circle, drawing, polyline
from palaestra.runs.store import Store
from palaestra.version import __version__
from palaestra.view.memory import recall
from palaestra.view.runs import RunCard
from palaestra.view.tables import with_query
from palaestra.view.tabs import list_tabs
from palaestra.view.texts import mark_words

SORTS = {
    "started": lambda card: card.started,
    "kind": lambda card: card.kind,
    "subject": lambda card: card.subject,
    "model": lambda card: card.model,
    "figure": lambda card: card.figure[0] if card.figure else float("-inf"),
    "seconds": lambda card: card.seconds,
    "money": lambda card: card.money,
}  # type: dict[str, Any]
"""Columns by which the list can be sorted."""
GROUPS = ("kind", "subject", "model", "method", "tags", "status", "host")
"""Columns by which the list can be grouped."""


def render(template: str, **values: Any) -> str:
    """Render a template of the viewer or of the report."""
    environment = make_environment("palaestra.view")
    environment.filters |= {"with_query": with_query, "marked": mark_words, "list_tabs": list_tabs}
    return environment.get_template(f"{template}.html.j2").render(version=__version__, **values)


def render_runs(cards: Sequence[RunCard], query: Mapping[str, str]) -> str:
    """The list of runs: filtered by words, sorted by a column, grouped by another."""
    words = query.get("q", "").lower().split()
    shown = [card for card in cards if all(word in _searchable(card) for word in words)]
    sort, descending = query.get("sort", "started"), query.get("order", "down") == "down"
    shown.sort(key=SORTS.get(sort, SORTS["started"]), reverse=descending)
    group = query.get("group", "")
    groups: dict[str, list[RunCard]] = {}
    for card in shown:
        groups.setdefault(_write_value(getattr(card, group)) if group in GROUPS else "", []).append(card)
    sparks = {card.id: draw_spark(card.spark) for card in shown if len(card.spark) > 1}
    return render(
        "runs", groups=groups, total=len(cards), count=len(shown), query=dict(query), sort=sort, descending=descending,
        group=group, group_names=GROUPS, sparks=sparks, folder="", run=None, tab="",
    )  # fmt: skip


def _searchable(card: RunCard) -> str:
    return " ".join(
        (card.id, card.kind, card.status, card.subject, card.model, card.method, card.host, *card.tags)
    ).lower()


@lru_cache(maxsize=2048)
def draw_spark(values: tuple[float, ...]) -> Markup:
    """A line without axes, as wide as a column of the list."""
    low, high = min(values), max(values)
    x, y = Scale(0, len(values) - 1, 3, 97), Scale(low, high if high > low else low + 1, 21, 3)
    places = [(x(k), y(value)) for k, value in enumerate(values)]
    label = f"from {values[0]:.3g} to {values[-1]:.3g}"
    return drawing(
        100, 24, label, polyline(places, "line after"), circle(places[-1], 2.5, "mark after"), class_="spark"
    )


def render_run(card: RunCard) -> str:
    """The page of one run, as its report shows it. The page of a study or a bench depends on files of other folders."""

    def read() -> str:
        template, page = read_page(card.folder, with_texts=False)
        return render(template, page=page, folder=card.folder.name, run=card, tab="overview", query={})

    return read() if card.kind in ("study", "bench") else recall(card, ("overview", card.id, card.status), read)


def render_settings(cards: Sequence[RunCard]) -> str:
    """The settings of several runs side by side; those that differ come first."""
    rows = list_differences(cards)
    return render("settings", cards=cards, rows=rows, query={}, folder="", run=None, tab="")


def list_differences(cards: Sequence[RunCard]) -> list[dict[str, Any]]:
    """The values of each setting by run; those that differ come first."""
    flat = [{**card.settings, **card.settings.get("hyperparameters", {})} for card in cards]
    for settings in flat:
        settings.pop("hyperparameters", None)
    names = list(dict.fromkeys(name for settings in flat for name in settings))
    rows = [{"name": name, "values": [_write_value(settings.get(name, "–")) for settings in flat]} for name in names]
    for row in rows:
        row["differs"] = any(value != row["values"][0] for value in row["values"])
    rows.sort(key=lambda row: not row["differs"])
    return rows


def _write_value(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


@contextmanager
def open_store(card: RunCard) -> Iterator[Store]:
    """Open the store of a run for reading."""
    store = Store(card.folder / "store.sqlite", read_only=True)
    try:
        yield store
    finally:
        store.close()
