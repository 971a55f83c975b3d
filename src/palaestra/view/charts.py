"""The charts of one run or of several: chosen metrics along a chosen axis, with groups of runs as means with bands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from palaestra.report.figures import FigureGroup
from palaestra.report.overlay import ChartChoice, RunCurves, draw_legend, draw_metric, is_main, read_curves
from palaestra.view.cache import recall
from palaestra.view.pages import GROUPS, ViewerPage, flatten_settings, get_value, list_differing, render
from palaestra.view.runs import RunCard

SEEDS = "all but the seed"
"""The choice that groups runs whose settings differ in nothing but the seed."""
_RECIPES = ("train", "teach", "research")
"""The recipes with curves; other runs are left out."""
_OWN = ("seed", "name", "tags")
"""Settings that do not tell groups apart."""
_MAX_CHARTS = 40
"""Maximum charts of a page."""
MAX_CHARTED = 100
"""Maximum runs of a page; as groups they are fewer lines."""
_MAX_SMOOTHING = 0.99


def render_charts(cards: Sequence[RunCard], query: QueryParams) -> ViewerPage:
    """The charts of runs. Everything that can be chosen is part of the address."""
    cards = [card for card in cards if card.kind in _RECIPES]
    curves = {card.id: recall(card, "curves", lambda card=card: read_curves(card.folder)) for card in cards}  # type: ignore[misc]
    axes = list(dict.fromkeys(axis for run in curves.values() for axis in run.axes))
    titles = list(dict.fromkeys(title for run in curves.values() for title in run.metrics))
    chosen = [t for t in query.getlist("metric") if t in titles] or [t for t in titles if is_main(t)] or titles
    axis, group = query.get("axis", ""), query.get("group", "")
    smoothing, start, end = (_read_number(query, name) for name in ("smooth", "from", "to"))
    axis = axis if axis in axes else next(iter(axes), "")
    smoothing = min(max(smoothing or 0.0, 0.0), _MAX_SMOOTHING)
    choice = ChartChoice(axis, smoothing, query.get("log") == "on", start, end)
    groups = dict(_group_runs(cards, curves, group))
    drawn = {title: draw_metric(title, groups, choice) for title in chosen[:_MAX_CHARTS]}
    charts = {title: chart for title, chart in drawn.items() if chart is not None}
    whole = urlencode([(name, value) for name, value in query.multi_items() if name not in ("from", "to")])
    shown = {"axes": axes, "titles": titles, "chosen": chosen, "choice": choice, "charts": charts, "whole": whole}
    names = {"group": group, "group_names": (SEEDS, *GROUPS, *list_differing(cards)), "groups": groups}
    figures: list[FigureGroup] = [("charts", title, [chart]) for title, chart in charts.items()]
    values = {**shown, **names, "cards": cards, "legend": draw_legend(list(groups))}
    return render("charts", values, cards[0] if len(cards) == 1 else None, "charts", dict(query), figures)


def _read_number(query: QueryParams, name: str) -> float | None:
    with suppress(ValueError):
        value = float(query.get(name, ""))
        return value if abs(value) < 1e300 else None
    return None


def _group_runs(
    cards: Sequence[RunCard], curves: dict[str, RunCurves], group: str
) -> Iterator[tuple[str, list[RunCurves]]]:
    """Yield the groups by name. Without a grouping each run is its own group."""
    groups: dict[str, list[RunCard]] = {}
    for card in cards:
        settings = sorted((name, str(value)) for name, value in flatten_settings(card).items() if name not in _OWN)
        key = card.id if not group else str(settings) if group == SEEDS else get_value(card, group)
        groups.setdefault(key, []).append(card)
    for key, members in groups.items():
        name = key if group and group != SEEDS else members[0].label
        count = f", {len(members)} runs" if len(members) > 1 else ""
        yield f"{name}{count}", [curves[card.id] for card in members]
