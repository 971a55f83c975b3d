"""The pages of the viewer: the list of runs, one run, and several runs that are compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache, partial
from typing import NamedTuple
from urllib.parse import quote

from jinja2 import Environment
from markupsafe import Markup

from palaestra.core.records import Json
from palaestra.report.figures import FigureGroup, PageFigure, PageTable, find_tables, name_figures
from palaestra.report.formatting import short_path
from palaestra.report.overlay import compare_curves, compare_to_first, draw_legend
from palaestra.report.page import add_contents, make_environment, read_page
from palaestra.report.parts import list_images, truncate
from palaestra.report.svg import Scale, circle, drawing, polyline
from palaestra.runs.store import Store
from palaestra.version import __version__
from palaestra.view.cache import recall
from palaestra.view.query import Query, with_query
from palaestra.view.runs import RunCard
from palaestra.view.texts import LONG, excerpt, join_messages, mark_words

_COLUMNS = {
    "status": "Status", "subject": "Subject", "model": "Model", "method": "Method", "curve": "Curve", "figure": "Main metric",
    "seconds": "Time", "money": "Cost", "started": "Started", "host": "Host", "notes": "Notes",
}  # fmt: skip
"""The columns of the list, beside those of settings."""
_SHOWN = ("status", "subject", "model", "curve", "figure", "seconds", "started")
"""The columns that are shown if none are chosen."""
GROUPS = ("kind", "subject", "model", "method", "tags", "status", "host")
"""Columns by which the list can be grouped, beside settings."""
_TABS = {
    "language": ("episodes", "problems", "charts", "log"),
    "train": ("charts", "log"),
    "teach": ("examples", "problems", "calls", "charts", "log"),
    "research": ("conversation", "charts", "log"),
    "evaluate": ("problems", "log"),
    "trajectories": ("episodes", "conversation"),
}
"""The pages of a run by its recipe; those of a train run depend on its policy."""
MAX_RUNS = 20
"""Maximum runs of one comparison: as many as there are lines that can be told apart."""
_NO_QUERY: Query = {}
_SAVE = "<!-- save -->"
"""Where the links to the figures and tables of a page stand."""


class ViewerPage(NamedTuple):
    """A page with its figures, which can be saved."""

    html: str
    figures: Sequence[PageFigure] = ()

    def add_links(self, path: str, query: Sequence[tuple[str, str]]) -> str:
        """Return the page with links to its figures and tables: its own address with `save=NAME.FORMAT`."""
        if _SAVE not in self.html:
            return self.html
        charts, tables = self.figures, find_tables(self.html)
        address = f"{quote(path)}?{''.join(f'{quote(name)}={quote(value)}&' for name, value in query)}"
        links = (
            render("save", {"charts": charts, "tables": tables, "address": address}).html if charts or tables else ""
        )
        return self.html.replace(_SAVE, links, 1)

    def find_part(self, name: str) -> tuple[PageFigure | PageTable, str] | None:
        """Find a figure or a table by the name of its file. Returns it with the format."""
        stem, _, kind = name.rpartition(".")
        parts: list[PageFigure | PageTable] = [*self.figures, *find_tables(self.html)]
        return next(((part, kind) for part in parts if part.name == stem and kind in part.formats), None)


def render(
    template: str,
    values: Mapping[str, object],
    card: RunCard | None = None,
    tab: str = "",
    query: Query = _NO_QUERY,
    figures: Iterable[FigureGroup] = (),
) -> ViewerPage:
    """Render a template of the viewer or of the report.

    Arguments:
        values: what the template shows.
        card: the run that the page belongs to.
        tab: the tab of the run.
    """
    shared = {"version": __version__, "run": card, "folder": card.folder.name if card else "", "tab": tab}
    html = _make_environment().get_template(f"{template}.html.j2").render(shared, query=dict(query), **values)
    return ViewerPage(add_contents(html), name_figures(figures))


@cache
def _make_environment() -> Environment:
    environment = make_environment("palaestra.view")
    shown = {
        "marked": mark_words,
        "cut": partial(truncate, most=LONG),
        "excerpt": excerpt,
        "conversation": join_messages,
        "images": list_images,
    }
    environment.filters |= {"with_query": with_query, "list_tabs": list_tabs, **shown}
    return environment


def list_tabs(card: RunCard) -> Iterator[tuple[str, str]]:
    """Yield the pages of a run beside its report: the part of the address, and the title."""
    is_language = card.kind == "train" and card.settings.get("policy") == "lm"
    for name in _TABS.get("language" if is_language else card.kind, ()):
        yield name, "Teacher calls" if name == "calls" else name.capitalize()


@contextmanager
def open_store(card: RunCard) -> Iterator[Store]:
    """Open the store of a run for reading."""
    store = Store(card.folder / "store.sqlite", read_only=True)
    try:
        yield store
    finally:
        store.close()


def render_runs(cards: Sequence[RunCard], query: Query, columns: Sequence[str] = ()) -> ViewerPage:
    """The list of runs: filtered by words, sorted by a column, grouped by another.

    Arguments:
        columns: the columns that are shown; names of settings are columns as well.
    """
    words = query.get("q", "").lower().split()
    shown = [card for card in cards if all(word in _searchable(card) for word in words)]
    sort, descending = query.get("sort", "started"), query.get("order", "down") == "down"
    shown.sort(key=lambda card: _sort_key(card, sort), reverse=descending)
    group = query.get("group", "")
    groups: dict[str, list[RunCard]] = {}
    for card in shown:
        groups.setdefault(get_value(card, group) if group else "", []).append(card)
    sparks = {card.id: _draw_spark(card.spark) for card in shown if len(card.spark) > 1}
    differing = list_differing(shown)
    order = {"sort": sort, "descending": descending, "group": group, "group_names": (*GROUPS, *differing)}
    values = {"groups": groups, "total": len(cards), "count": len(shown), "sparks": sparks, "titles": _COLUMNS, **order}
    most = max((card.money for card in shown), default=0.0)
    chosen = {
        "columns": columns or (*_SHOWN, "money")[: None if most else -1],
        "differing": differing,
        "value": get_value,
    }
    # One unit for the whole column.
    units = {"cents": 2 if most >= 1 else 4, "edited": query.get("edit", "")}
    return render("runs", {**values, **chosen, **units}, query=query)


def get_value(card: RunCard, column: str) -> str:
    """The value of a run in a column of the list, which may be a setting."""
    return _write_value(_read_value(card, column))


def _read_value(card: RunCard, column: str) -> object:
    return getattr(card, column) if column in RunCard.__slots__ else flatten_settings(card).get(column, "–")


def list_differing(cards: Sequence[RunCard]) -> list[str]:
    """The settings that differ between the runs that have them, without those that the list shows anyway."""
    known = {row["name"]: {value for value in row["values"] if value != "–"} for row in _list_differences(cards)}
    return [name for name, values in known.items() if len(values) > 1 and name not in ("name", "tags", "model")]


def _sort_key(card: RunCard, column: str) -> tuple[str, float, str]:
    """Numbers come after texts. Main metrics are sorted within their unit."""
    if column == "figure":
        return card.figure_name, card.figure[0] if card.figure else float("-inf"), ""
    value = card.label.lower() if column == "name" else _read_value(card, column)
    return ("number", float(value), "") if isinstance(value, int | float) else ("", 0.0, _write_value(value))


def _searchable(card: RunCard) -> str:
    texts = (card.id, card.name, card.notes, card.kind, card.status, card.subject, card.model, card.method, card.host)
    return " ".join((*texts, card.problem, *card.tags)).lower()


@lru_cache(maxsize=2048)
def _draw_spark(values: tuple[float, ...]) -> Markup:
    """A line without axes, as wide as a column of the list."""
    low, high = min(values), max(values)
    x, y = Scale(0, len(values) - 1, 3, 97), Scale(low, high if high > low else low + 1, 21, 3)
    places = [(x(k), y(value)) for k, value in enumerate(values)]
    parts = polyline(places, "line after"), circle(places[-1], 2.5, "mark after")
    return drawing(100, 24, f"from {values[0]:.3g} to {values[-1]:.3g}", *parts, class_="spark")


def render_run(card: RunCard, query: Query) -> ViewerPage:
    """The page of one run, as its report shows it. The page of a study or a bench depends on files of other folders."""

    def read() -> ViewerPage:
        template, page = read_page(card.folder, with_texts=False)
        return render(template, {"page": page}, card, "overview", figures=page.get("figures", ()))

    return read() if card.kind in ("study", "bench") else recall(card, ("overview", card.id, card.status), read)


def render_settings(cards: Sequence[RunCard]) -> ViewerPage:
    """The settings of several runs side by side; those that differ come first."""
    return render("settings", {"cards": cards, "rows": _list_differences(cards)})


def render_comparison(cards: Sequence[RunCard]) -> ViewerPage:
    """Compare runs: curves in common charts, paired tests against the first, settings that differ."""
    folders = {card.id: card.folder for card in cards}
    tests, whole = compare_to_first(folders)
    curves = compare_curves(folders)
    differing = [row for row in _list_differences(cards) if row["differs"]]
    values = {"legend": draw_legend(list(folders)), "curves": curves, "tests": {row["name"]: row for row in tests}}
    figures: list[FigureGroup] = [("curves", title, [chart]) for title, chart in curves.items()]
    tested = sum(row["comparison"] is not None for row in tests)
    more = {"cards": cards, "page": whole, "differing": differing, "tested": tested}
    return render("comparison_of_runs", {**values, **more}, figures=figures)


def flatten_settings(card: RunCard) -> Json:
    """The settings of a run with its hyperparameters."""
    inner = card.settings.get("hyperparameters")
    settings = {**card.settings, **(inner if isinstance(inner, Mapping) else {})}
    settings.pop("hyperparameters", None)
    return settings


def _list_differences(cards: Sequence[RunCard]) -> list[Json]:
    """The values of each setting by run; those that differ come first."""
    flat = [flatten_settings(card) for card in cards]
    names = dict.fromkeys(name for settings in flat for name in settings)
    rows: list[Json] = [
        {"name": name, "values": [_write_value(part.get(name, "–")) for part in flat]} for name in names
    ]
    for row in rows:
        row["differs"] = any(value != row["values"][0] for value in row["values"])
    return sorted(rows, key=lambda row: not row["differs"])


def _write_value(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else short_path(str(value))
