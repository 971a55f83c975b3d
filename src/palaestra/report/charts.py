"""Charts with axes as SVG: metrics over the iterations of a run, and learning curves."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import fmean, median
from typing import Literal, TypeVar

from markupsafe import Markup

from palaestra.core.records import Json, Report
from palaestra.report import svg
from palaestra.report.formatting import NOTHING, counts, format_span, interval, percent, plain, tick_words, whole

_WIDTH, _PLOT, _GAP, _FOOT = 520, 240, 26, 46
"""Width of a chart; height of a plot, of the gap between two panels, and of the space below the last panel."""
_LEFT, _RIGHT, _TOP = 62, 18, 14
_SMALL_WIDTH, _SMALL_PLOT = 190, 78
_COLORS = 6
"""Number of line colors in the style sheet."""
_LINE_COLORS = 5
"""Colors of many lines; the sixth is that of a baseline."""
_DASHES = ("", "8 3", "2 3", "9 3 2 3")
"""Dash patterns of many lines, one for each repetition of the colors."""
_MAX_POINTS = 400
"""Maximum points of one line; a screen shows no more."""
_MAX_MARKS = 40
"""Maximum points of a line that have a mark each; more marks would hide the line."""
NOISY = 80
"""With more points than this, a small chart draws means of neighbors, and the points themselves faintly."""
_MAX_PATH_POINTS = 24
"""Maximum points of a path; more are averaged with their neighbors."""
_MAX_LISTED = 60
"""Maximum rows of the table behind a chart; if there are more positions, evenly spaced ones are listed."""
_LOSS_SMOOTHING = 0.9
"""The weight of the past in the mean of the training loss."""

T = TypeVar("T")
Metrics = Mapping[int, Mapping[str, float]]
"""Metrics by iteration and name, as the store returns them."""


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """A metric of one iteration at position `x` of the axis, with its 95 % interval and count if known.

    `title` replaces the description that is built from the numbers.
    """

    iteration: int
    x: float
    value: float
    low: float | None = None
    high: float | None = None
    count: int | None = None
    title: str = ""


@dataclass(frozen=True, slots=True)
class Series:
    """Points that are drawn together.

    Arguments:
        name: for the text for screen readers; an unnamed series is left out of it.
        class_: a color of the style sheet, `s1` to `s6`.
        style: a line with its band; marks with whiskers; marks alone; a line alone; a path from mark to mark; or a ring.
        labels: a text above each point; fewer labels than points belong to the last points.
        dashes: the dash pattern of the line.
        column: its name in the table behind the chart; empty: `name`, and without both it is not in the table.
    """

    name: str
    points: Sequence[MetricPoint]
    class_: str = "s1"
    style: Literal["band", "marks", "points", "line", "path", "ring"] = "band"
    labels: Sequence[str] = ()
    dashes: str = ""
    column: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """Series that share a y axis. Without `y_range`, the axis fits the values.

    Arguments:
        log: draw a logarithmic axis; all values are above 0.
    """

    y_label: str
    series: Sequence[Series]
    y_range: tuple[float, float] | None = None
    log: bool = False


def metric_points(table: Metrics, name: str, *, along: str = "", count: str = "") -> list[MetricPoint]:
    """Return the metric `name` of every iteration that has it, by iteration or by the metric `along`.

    >>> metric_points({2: {"reward": 0.5, "reward_low": 0.4, "reward_high": 0.6}, 3: {}}, "reward")
    [MetricPoint(iteration=2, x=2.0, value=0.5, low=0.4, high=0.6, count=None, title='')]
    """
    points = []
    for iteration, row in sorted(table.items()):
        x = row.get(along) if along else float(iteration)
        if name in row and x is not None:
            many = row.get(count or f"{name}_count")
            low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
            points.append(MetricPoint(iteration, x, row[name], low, high, None if many is None else round(many)))
    return points


def line_chart(
    panels: Sequence[Panel],
    x_label: str,
    label: str,
    *,
    x_high: float = 0.0,
    x_range: tuple[float, float] | None = None,
    small: bool = False,
    table: bool = True,
    legend: svg.Legend = (),
) -> svg.Plot:
    """Draw panels one above the other over one x axis, with a folded table of the values behind them.

    Arguments:
        label: the start of the text for screen readers.
        x_high: the end of the x axis, if the points do not reach it.
        x_range: the whole x axis, instead of one that starts at 0 and fits the points.
        small: draw a small multiple, without axis names and without a table.
        table: whether there is a table; no, if the page has one of its own.
        legend: the marks with their meanings.
    """
    panels = [replace(p, series=[s for s in p.series if s.points]) for p in panels]
    places = [r.x for panel in panels for series in panel.series for r in series.points]
    integral = all(place == round(place) for place in places)
    width, left = (_SMALL_WIDTH, 48) if small else (_WIDTH, _LEFT)
    ends = x_range or (min([0.0, *places]), max([1.0 if integral else 1e-9, x_high, *places]))
    x = svg.Scale(*ends, left, width - _RIGHT)
    x_ticks = [x.low, x.high] if small else [t for t in svg.ticks(x.low, x.high, 6) if not integral or t == round(t)]
    plot, top = _SMALL_PLOT if small else _PLOT if len(panels) == 1 else 0.62 * _PLOT, 8.0 if small else float(_TOP)
    parts: list[Markup] = []
    drawn: list[Json] = []
    for panel in panels:
        low, high = panel.y_range or axis_range([r for series in panel.series for r in series.points], panel.log)
        if panel.y_label.endswith("(%)"):
            low, high = max(0.0, low), min(100.0, high)
        y = svg.Scale(low, high, top + plot, top, panel.log)
        last = panel is panels[-1]
        parts += _draw_axes(x, y, x_ticks if last else [], 5 if len(panels) == 1 and not small else 4)
        if not small:
            parts += _draw_axis_names(x, y, x_label if last else "", panel.y_label)
        for series in panel.series:
            parts += _draw_series(series, x, y)
            drawn += _list_points(series, series.column or series.name or panel.y_label or label, y)
        top += plot + _GAP
    named = [_describe_series(series) for panel in panels for series in panel.series if series.name]
    height = top - _GAP + (18 if small else _FOOT)
    words = ": ".join([label, "; ".join(named)] if named else [label])
    shown = {s.column or s.name: s.points for panel in panels for s in panel.series if s.column or s.name}
    values = _make_table(shown, x_label) if table and shown and not small else svg.EMPTY
    axis = {"label": x_label or "iteration", "scale": [*ends, x.start, x.end]}
    data = json.dumps({"x": axis, "series": drawn}, separators=(",", ":")) if drawn else ""
    return svg.Plot(width, height, words, Markup("").join(parts), legend=legend, table=values, data=data)


def _list_points(series: Series, name: str, y: svg.Scale) -> Iterator[Json]:
    """Yield the points of a series for the viewer's script: x, value, and the ends of the interval. Faint lines have none."""
    if series.style not in ("ring", "points") and not series.class_.startswith(("raw", "level")):
        rows = [
            [r.x, r.value] if r.low is None or r.high is None else [r.x, r.value, r.low, r.high] for r in series.points
        ]
        points = [[float(f"{value:.5g}") for value in row] for row in thin(rows)]
        scale = [y.low, y.high, y.start, y.end, int(y.log)]
        yield {"name": name, "class": series.class_, "scale": scale, "points": points}


def _make_table(columns: Mapping[str, Sequence[MetricPoint]], x_label: str) -> Markup:
    """The values of curves by position on the x axis, at most `_MAX_LISTED` positions, folded."""
    places = sorted({point.x for points in columns.values() for point in points})
    shown = [*places[: -1 : -(-len(places) // _MAX_LISTED)], *places[-1:]]
    by_place = [{point.x: point for point in points} for points in columns.values()]
    head = [svg.element("th", name, scope="col") for name in (x_label, *columns)]
    rows = []
    for x in shown:
        name = svg.element("th", f"{x:.0f}" if x == round(x) else plain(x), scope="row")
        rows.append(svg.element("tr", name, *(_write_cell(points.get(x)) for points in by_place)))
    table = svg.element(
        "table", svg.element("thead", svg.element("tr", *head)), svg.element("tbody", *rows), class_="numbers"
    )
    return svg.element(
        "details", svg.element("summary", "Values"), svg.element("div", table, class_="scroll"), class_="values"
    )


def table_behind(charts: Sequence[Json], x_label: str) -> Markup:
    """One table for several small charts, each with its `name` and its `points`."""
    return _make_table({chart["name"] or "no name": chart["points"] for chart in charts}, x_label)


def _write_cell(point: MetricPoint | None) -> Markup:
    if point is None:
        return svg.element("td", NOTHING)
    count = "" if point.count is None else f", n {whole(point.count)}"
    return svg.element("td", plain(point.value) + (f" ({span(point)}{count})" if point.low is not None else ""))


def small_chart(points: Sequence[MetricPoint], last: int, label: str, level: float) -> svg.Plot:
    """Draw one metric by iteration as a small chart. A `level` within the axis is a dashed line."""
    low, high = axis_range(points)
    noisy = len(points) > NOISY
    series = [Series("", points, "raw after" if noisy else "after", "line")]
    if noisy:
        series.append(Series("", average_neighbors(points, _MAX_MARKS), "after", "line"))
    series.append(Series("", points[-1:], "after", "points"))
    if low < level < high:
        series.append(Series("", [MetricPoint(0, x, level) for x in (0, last)], "level", "line"))
    text = _describe_series(Series(label, points))
    return line_chart([Panel("", series, (low, high))], "", text, x_high=last, small=True)


def average_neighbors(points: Sequence[MetricPoint], most: int = _MAX_PATH_POINTS) -> list[MetricPoint]:
    """Reduce points to at most `most` by averaging neighbors. A mean of several has no interval.

    >>> [(point.x, point.value) for point in average_neighbors([MetricPoint(1, 0.0, 1.0), MetricPoint(2, 2.0, 3.0)], 1)]
    [(1.0, 2.0)]
    """
    size = max(1, math.ceil(len(points) / most))
    parts = [points[k : k + size] for k in range(0, len(points), size)] if size > 1 else []
    means = [MetricPoint(part[-1].iteration, fmean(r.x for r in part), fmean(r.value for r in part)) for part in parts]
    return means or list(points)


def smooth(points: Sequence[MetricPoint], weight: float) -> list[MetricPoint]:
    """The exponential mean of points and of their intervals, without a bias towards the first.

    >>> [round(r.value, 2) for r in smooth([MetricPoint(k, k, float(k)) for k in (1, 2, 4)], 0.5)]
    [1.0, 1.67, 3.0]
    """
    total = norm = low = high = 0.0
    means = []
    for r in points:
        total, norm = weight * total + r.value, weight * norm + 1
        ends: tuple[float | None, float | None] = (None, None)
        if r.low is not None and r.high is not None:
            low, high = weight * low + r.value - r.low, weight * high + r.high - r.value
            ends = (total - low) / norm, (total + high) / norm
        means.append(MetricPoint(r.iteration, r.x, total / norm, *ends, r.count))
    return means


def axis_range(points: Sequence[MetricPoint], log: bool = False) -> tuple[float, float]:
    """Return the range of the y axis: all values, and intervals unless they would compress the values.

    The interval of two or three episodes can be much wider than the rest of the chart, and a single outlier can be far
    away: both are cut at the edge.
    """
    values = sorted(r.value for r in points)
    if log:
        low, high = (values[0], values[-1]) if values else (1.0, 10.0)
        return (low / 1.1, high * 1.1) if high > 1.5 * low else (low / 2, high * 2)
    cut = len(values) // 20
    inner = values[cut : len(values) - cut] or [0.0]
    spread = inner[-1] - inner[0]
    low, high = max(values[0], inner[0] - spread), min(values[-1], inner[-1] + spread)
    halves = [(r.high - r.low) / 2 for r in points if r.low is not None and r.high is not None]
    room = max(0.15 * (high - low), 1.5 * median(halves)) if halves else 0.0
    floor = 0.0 if values and values[0] >= 0 else -math.inf
    low = max(floor, low - room, min([low, *(r.low for r in points if r.low is not None)]))
    high = min(high + room, max([high, *(r.high for r in points if r.high is not None)]))
    if low == high == 0:
        return 0.0, 1.0
    pad = 0.05 * (high - low) or 0.05 * abs(high)
    # The axis goes below 0 only if a value does. If the values are near 0, it starts at 0.
    down = 0.0 if 0 <= low < 0.3 * high else low - pad
    return (down, 0.0 if high == 0 and low < 0 else high + pad)


def thin(curve: Sequence[T]) -> list[T]:
    """Return at most `_MAX_POINTS` points of a curve, including the last."""
    step = math.ceil(len(curve) / _MAX_POINTS)
    return [*curve[: -1 if curve else None : step], *curve[-1:]] if step > 1 else list(curve)


def span(point: MetricPoint | None) -> str:
    """Format the 95 % interval of a point.

    >>> span(MetricPoint(1, 1.0, 0.5, -0.05, 0.75))
    '−0.050 to 0.750'
    """
    if point is None or point.low is None or point.high is None:
        return "no interval"
    return format_span(point.low, point.high)


def line_style(place: int) -> tuple[str, str]:
    """Return the color and the dash pattern of one of many lines.

    >>> line_style(0), line_style(5)
    (('s1', ''), ('s1', '8 3'))
    """
    return f"s{place % _LINE_COLORS + 1}", _DASHES[place // _LINE_COLORS % len(_DASHES)]


def draw_sample(label: str, class_: str, dashes: str) -> Markup:
    """Draw a short sample of a line, for legends."""
    return svg.drawing(34, 12, label, svg.polyline([(0, 6), (34, 6)], f"line {class_}", dashes), class_="inline")


def _draw_axes(x: svg.Scale, y: svg.Scale, x_ticks: Sequence[float], y_count: int) -> list[Markup]:
    y_ticks = svg.log_ticks(y.low, y.high) if y.log else svg.ticks(y.low, y.high, y_count)
    x_words, y_words = tick_words(x_ticks), (lambda value: f"{value:g}") if y.log else tick_words(y_ticks)
    parts = [svg.line((x.start, y.start), (x.end, y.start), "axis")]
    for value in y_ticks:
        parts += [
            svg.line((x.start, y(value)), (x.end, y(value)), "grid"),
            svg.text(x.start - 7, y(value) + 4, y_words(value), "tick", "end"),
        ]
    for value in x_ticks:
        parts += [
            svg.line((x(value), y.start), (x(value), y.start + 4), "axis"),
            svg.text(x(value), y.start + 17, x_words(value), "tick", "middle"),
        ]
    return parts


def _draw_axis_names(x: svg.Scale, y: svg.Scale, x_label: str, y_label: str) -> list[Markup]:
    middle = (y.start + y.end) / 2
    return [
        svg.text((x.start + x.end) / 2, y.start + _FOOT - 8, x_label, "axis-name", "middle"),
        svg.text(13, middle, y_label, "axis-name", "middle", transform=f"rotate(-90 13 {svg.number(middle)})"),
    ]


def _draw_series(series: Series, x: svg.Scale, y: svg.Scale) -> list[Markup]:
    points, class_ = series.points, series.class_
    places: list[svg.Point] = [(x(r.x), y.clamp(r.value)) for r in points]
    marks = [
        svg.circle(place, 3, f"mark {class_}", _describe_point(r)) for place, r in zip(places, points, strict=True)
    ]
    labels = list(zip(places[len(places) - len(series.labels) :], series.labels, strict=True))
    texts = [
        svg.text(
            at, height - 9, label, "value halo", "end" if at > x.end - 20 else "start" if at == x.start else "middle"
        )
        for (at, height), label in labels
    ]
    if series.style == "points":
        return marks
    if series.style == "ring":
        return [svg.circle(place, 8, class_, _describe_point(r)) for place, r in zip(places, points, strict=True)]
    if series.style == "line":
        return [svg.polyline(thin(places), f"line {class_}", series.dashes), *texts]
    if series.style == "path":
        ends = [svg.circle(places[0], 4.5, f"ring {class_}", _describe_point(points[0]))] if len(points) > 1 else []
        ends.append(svg.circle(places[-1], 4.5, f"mark {class_}", _describe_point(points[-1])))
        return [svg.polyline(places, f"line faint-line {class_}"), *marks[1:-1], *ends, *texts]
    if series.style == "marks":
        whiskers = [part for r in points for part in _draw_whisker(r, x, y, class_)]
        return [svg.polyline(places, f"line thin {class_}"), *whiskers, *marks, *texts]
    bands: list[Markup] = []
    for stretch in _split_by_interval(thin(points)):
        upper = [(x(r.x), y.clamp(r.high or 0.0)) for r in stretch]
        lower = [(x(r.x), y.clamp(r.low or 0.0)) for r in stretch]
        # A single point has no area: its interval is a whisker.
        area = svg.polyline([*upper, *reversed(lower)], f"band {class_}", tag="polygon")
        bands += [area] if len(stretch) > 1 else _draw_whisker(stretch[0], x, y, class_)
    return [
        *bands,
        svg.polyline(thin(places), f"line {class_}", series.dashes),
        *(marks if len(points) <= _MAX_MARKS else ()),
        *texts,
    ]


def _split_by_interval(points: Sequence[MetricPoint]) -> list[list[MetricPoint]]:
    """Return the groups of consecutive points with an interval. The value of a single episode has none."""
    groups = groupby(points, lambda r: r.low is not None and r.high is not None)
    return [list(group) for is_known, group in groups if is_known]


def _draw_whisker(point: MetricPoint, x: svg.Scale, y: svg.Scale, class_: str) -> list[Markup]:
    if point.low is None or point.high is None:
        return []
    at, low, high = x(point.x), y.clamp(point.low), y.clamp(point.high)
    caps = [svg.line((at - 3, end), (at + 3, end), f"whisker {class_}") for end in (low, high)]
    return [svg.line((at, low), (at, high), f"whisker {class_}"), *caps]


def _describe_series(series: Series) -> str:
    first, last = series.points[0], series.points[-1]
    return f"{series.name}: {_describe_point(first)}" + (f", {_describe_point(last)}" if last is not first else "")


def _describe_point(point: MetricPoint) -> str:
    if point.title:
        return point.title
    bounds = f" ({span(point)})" if point.low is not None and point.high is not None else ""
    count = "" if point.count is None else f", n {whole(point.count)}"
    place = "" if point.x == point.iteration else f" at {plain(point.x)}"
    return f"iteration {point.iteration}{place}: {plain(point.value)}{bounds}{count}"


# Learning curves of a teach run


@dataclass(frozen=True, slots=True)
class Moment:
    """The accuracy of the student after a round, and the training examples so far."""

    round: int
    examples: int
    report: Report


def accuracy_chart(
    moments: Sequence[Moment], label: str, kept: Moment | None = None, *, most: int = 0, small: bool = False
) -> svg.Plot:
    """Draw accuracy over the training examples so far, with a ring around the kept round.

    Arguments:
        label: the y axis, for example "test accuracy".
        most: the end of the x axis of a small chart, whose y axis goes from 0 to 100.
    """
    points = {moment.round: accuracy_point(moment) for moment in moments if moment.report.accuracy is not None}
    labels = [f"{point.value:.1f}" for point in points.values()] if len(points) <= 8 and not small else []
    series = [Series("", list(points.values()), "after", labels=labels)]
    if kept is not None and kept.round in points:
        series.append(Series("", [replace(points[kept.round], title=f"kept: round {kept.round}")], "kept", "ring"))
    # Whole tens around all intervals, at least 30 points apart, so that noise does not look large.
    low = math.floor(min((point.low or 0.0 for point in points.values()), default=0.0) / 10) * 10
    high = math.ceil(max((point.high or 0.0 for point in points.values()), default=100.0) / 10) * 10
    while high - low < 30:
        low, high = max(0, low - 10), min(100, high + 10)
    panel = Panel(f"{label} (%)", series, (0.0, 100.0) if small else (low, high))
    text = f"{label} by examples: " + "; ".join(point.title for point in points.values())
    return line_chart([panel], "training examples so far", text, x_high=most, small=small, table=False)


def accuracy_point(moment: Moment) -> MetricPoint:
    """The point of a learning curve, in percent over the examples so far."""
    report = moment.report
    title = f"round {moment.round}, {whole(moment.examples)} examples: {percent(report)} ({interval(report)}; {counts(report)})"
    value, low, high = 100 * (report.accuracy or 0.0), 100 * report.low, 100 * report.high
    return MetricPoint(moment.round, moment.examples, value, low, high, title=title)


def loss_chart(curves: Mapping[int, Sequence[tuple[int, float]]]) -> svg.Plot:
    """Draw the training loss by step, one line per round: the exponential mean over the batches."""
    shown = {round_: [MetricPoint(s, s, loss) for s, loss in curve] for round_, curve in curves.items() if curve}
    means = {round_: smooth(curve, _LOSS_SMOOTHING) for round_, curve in shown.items()}
    tallest = max(point.value for mean in means.values() for point in mean) * 1.05
    series = []
    for round_, mean in means.items():
        dashes, name = "6 3" if round_ > _COLORS else "", f"round {round_}, mean"
        series.append(Series("", mean, round_color(round_), "line", dashes=dashes, column=name))
    ends = ", ".join(f"round {round_} ends at {mean[-1].value:.2f}" for round_, mean in means.items())
    panel = Panel("training loss (nats per token)", series, (0.0, tallest))
    legend = tuple((round_color(round_), f"round {round_}") for round_ in curves)
    return line_chart([panel], "training step (batch) of the round", f"training loss: {ends}", legend=legend)


def round_color(round_: int) -> str:
    """Return the style class of a round's line."""
    return f"s{(round_ - 1) % _COLORS + 1}"
