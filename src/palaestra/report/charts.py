"""Charts as SVG: accuracy and loss curves, rates with intervals, metrics over the iterations of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Literal, TypeVar

from markupsafe import Markup

from palaestra.core.records import Report
from palaestra.report.formatting import counts, interval, percent, plain, tick_words, whole
from palaestra.report.svg import Point, Scale, circle, drawing, element, line, number, polygon, polyline, text, ticks

WIDTH, HEIGHT = 520, 300
CURVE_LEFT, RIGHT, TOP, BOTTOM = 52, 18, 14, 46
SERIES = 6
"""Colours of the style sheet for lines; further lines are dashed."""
RAW_ROUNDS = 4
"""The most rounds for which single batches are drawn; more would hide the means."""
MOST_POINTS = 400
"""The most points of one line; a screen shows no more."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Moment:
    """The accuracy of the student after a round, and the training examples so far."""

    round: int
    examples: int
    report: Report


def accuracy_curve(moments: Sequence[Moment], kept: Moment | None = None, split: str = "validation") -> Markup:
    """Draw accuracy over the training examples so far, with intervals and a ring around the kept round."""
    known = [moment for moment in moments if moment.report.accuracy is not None]
    low, high = _accuracy_range(known)
    x = Scale(0, max([moment.examples for moment in known] + [1]), CURVE_LEFT, WIDTH - RIGHT)
    y = Scale(low, high, HEIGHT - BOTTOM, TOP)
    grid = frame(
        x, y, _example_ticks(known, x), ticks(low, high, 5), "training examples so far", f"{split} accuracy (%)"
    )
    labels = [
        text(
            x(moment.examples),
            y(100 * moment.report.high) - 6,
            f"{100 * (moment.report.accuracy or 0):.1f}",
            "value",
            _anchor(x, moment),
        )
        for moment in known
        if len(known) <= 8
    ]
    ring = []
    for moment in known:
        if kept is not None and moment.round == kept.round:
            place = (x(moment.examples), y(100 * (moment.report.accuracy or 0.0)))
            ring = [circle(place, 8, "kept", f"kept: round {kept.round}")]
    label = f"{split} accuracy by examples: " + "; ".join(_describe_moment(moment) for moment in known)
    return drawing(WIDTH, HEIGHT, label, *grid, *_band(known, x, y), *ring, *labels, class_="chart")


def accuracy_multiple(moments: Sequence[Moment], most_examples: int) -> Markup:
    """Draw the accuracy of one skill as a small chart; all skills have the same axes."""
    known = [moment for moment in moments if moment.report.accuracy is not None]
    width, height = 190, 104
    x, y = Scale(0, max(1, most_examples), 30, width - 10), Scale(0, 100, height - 18, 8)
    frame = []
    for value in (0, 50, 100):
        frame += [
            line((30, y(value)), (width - 10, y(value)), "grid"),
            text(25, y(value) + 4, str(value), "tick", "end"),
        ]
    frame += [
        text(x(0), height - 4, "0", "tick", "middle"),
        text(x(max(1, most_examples)), height - 4, whole(most_examples), "tick", "end"),
    ]
    label = "; ".join(_describe_moment(moment) for moment in known)
    return drawing(width, height, label, *frame, *_band(known, x, y), class_="chart")


def loss_curve(curves: Mapping[int, Sequence[tuple[int, float]]]) -> Markup:
    """Draw the training loss by step, one line per round: the running mean, and each batch faintly."""
    shown = {round_: curve for round_, curve in curves.items() if curve}
    means = {round_: running_mean(curve) for round_, curve in shown.items()}
    last = max((curve[-1][0] for curve in shown.values()), default=1)
    # A single hard batch must not flatten everything else: the axis ends at what nearly all stay below.
    losses = sorted(loss for curve in shown.values() for _, loss in curve)
    tallest = max([losses[int(0.98 * (len(losses) - 1))]] if losses else [1.0])
    tallest = max([tallest, *(value for mean in means.values() for _, value in mean)]) * 1.05
    x, y = Scale(0, last, CURVE_LEFT, WIDTH - RIGHT), Scale(0, tallest, HEIGHT - BOTTOM, TOP)
    grid = frame(
        x,
        y,
        ticks(0, last, 6),
        ticks(0, tallest, 5),
        "training step (batch) of the round",
        "training loss (nats a token)",
    )
    lines = []
    for round_, curve in shown.items() if len(shown) <= RAW_ROUNDS else ():
        lines.append(polyline([(x(s), y(min(v, tallest))) for s, v in thin(curve)], f"line raw {round_series(round_)}"))
    for round_, mean in means.items():
        dashes = {"stroke_dasharray": "6 3"} if round_ > SERIES else {}
        lines.append(polyline([(x(s), y(v)) for s, v in thin(mean)], f"line {round_series(round_)}", **dashes))
    ends = ", ".join(f"round {round_} ends at {mean[-1][1]:.2f}" for round_, mean in means.items())
    return drawing(WIDTH, HEIGHT, f"training loss: {ends}", *grid, *lines, class_="chart")


def round_series(round_: int) -> str:
    """Return the style class of a round's line."""
    return f"s{(round_ - 1) % SERIES + 1}"


def running_mean(curve: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Each loss average_neighbours with those before it, over a tenth of the curve but at least eight batches.

    A curve shorter than that is average_neighbours over its half. The first steps, with nothing to average, are left out.

    >>> running_mean([(1, 2.0), (2, 4.0), (3, 8.0), (4, 2.0)])
    [(2, 3.0), (3, 6.0), (4, 5.0)]
    """
    window = max(1, min(max(8, len(curve) // 10), len(curve) // 2))
    losses = [loss for _, loss in curve]
    return [(curve[k][0], sum(losses[k + 1 - window : k + 1]) / window) for k in range(window - 1, len(curve))]


def thin(curve: Sequence[T]) -> list[T]:
    """Return at most `MOST_POINTS` points of a curve, including the last."""
    step = math.ceil(len(curve) / MOST_POINTS)
    return [*curve[: -1 if curve else None : step], *curve[-1:]] if step > 1 else list(curve)


def _accuracy_range(moments: Sequence[Moment]) -> tuple[float, float]:
    """Return whole tens around all intervals, at least 30 points apart, so that noise does not look large."""
    low = math.floor(10 * min((m.report.low for m in moments), default=0.0)) * 10
    high = math.ceil(10 * max((m.report.high for m in moments), default=1.0)) * 10
    while high - low < 30:
        low, high = max(0, low - 10), min(100, high + 10)
    return float(low), float(high)


def _example_ticks(moments: Sequence[Moment], x: Scale) -> list[float]:
    return [float(m.examples) for m in moments] if 1 < len(moments) <= 8 else ticks(0, x.high, 6)


def frame(
    x: Scale,
    y: Scale,
    x_ticks: Sequence[float],
    y_ticks: Sequence[float],
    x_label: str,
    y_label: str,
    foot: float = HEIGHT - 8,
    x_words: Callable[[float], str] = whole,
    y_words: Callable[[float], str] = number,
) -> list[Markup]:
    """Draw grid, axes, ticks and axis names; the name of the x axis is at height `foot`."""
    parts = []
    for value in y_ticks:
        parts += [
            line((x.start, y(value)), (x.end, y(value)), "grid"),
            text(x.start - 7, y(value) + 4, y_words(value), "tick", "end"),
        ]
    for value in x_ticks:
        parts += [
            line((x(value), y.start), (x(value), y.start + 4), "axis"),
            text(x(value), y.start + 17, x_words(value), "tick", "middle"),
        ]
    middle = (y.start + y.end) / 2
    return [
        *parts,
        line((x.start, y.start), (x.end, y.start), "axis"),
        text((x.start + x.end) / 2, foot, x_label, "axis-name", "middle"),
        text(13, middle, y_label, "axis-name", "middle", transform=f"rotate(-90 13 {number(middle)})"),
    ]


def _band(moments: Sequence[Moment], x: Scale, y: Scale) -> list[Markup]:
    upper: list[Point] = [(x(m.examples), y(100 * m.report.high)) for m in moments]
    lower: list[Point] = [(x(m.examples), y(100 * m.report.low)) for m in moments]
    centre: list[Point] = [(x(m.examples), y(100 * (m.report.accuracy or 0.0))) for m in moments]
    # A single moment has no area: its interval is a whisker.
    area = (
        [polygon([*upper, *reversed(lower)], "band")]
        if len(moments) > 1
        else [line(a, b, "whisker after") for a, b in zip(upper, lower, strict=True)]
    )
    marks = [circle(point, 3.5, "mark after", _describe_moment(m)) for point, m in zip(centre, moments, strict=True)]
    return [*area, polyline(centre, "line after"), *marks]


def _anchor(x: Scale, moment: Moment) -> str:
    return "start" if moment.examples == x.low else "end" if moment.examples == x.high else "middle"


def _describe_moment(moment: Moment) -> str:
    report = moment.report
    return f"round {moment.round}, {whole(moment.examples)} examples: {percent(report)} ({interval(report)}; {counts(report)})"


BAR_WIDTH = 220
_BAR_X = Scale(0, 1, 8, BAR_WIDTH - 8)


def dumbbell(before: Report | None, after: Report | None) -> Markup:
    """Draw two rates one above the other: before as a ring, after as a disc, with whiskers."""
    label = f"before {percent(before)} ({interval(before)}), after {percent(after)} ({interval(after)})"
    marks = [*_draw_bar_grid(28), *_draw_rate(before, 9, "before"), *_draw_rate(after, 19, "after")]
    return drawing(BAR_WIDTH, 28, label, *marks, class_="inline")


def interval_bar(report: Report) -> Markup:
    """Draw one rate with whiskers."""
    return drawing(
        BAR_WIDTH,
        18,
        f"{percent(report)} ({interval(report)})",
        *_draw_bar_grid(18),
        *_draw_rate(report, 9, "after"),
        class_="inline",
    )


def rate_axis() -> Markup:
    """Draw the axis of `dumbbell` and `interval_bar`, for the head of their column."""
    labels = [
        text(_BAR_X(share), 11, f"{100 * share:.0f}{' %' if share == 1 else ''}", "tick", anchor)
        for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end"))
    ]
    return drawing(BAR_WIDTH, 14, "scale from 0 to 100 %", *labels, class_="inline")


def _draw_bar_grid(height: float) -> list[Markup]:
    return [line((_BAR_X(share), 0), (_BAR_X(share), height), "grid") for share in (0.0, 0.25, 0.5, 0.75, 1.0)]


def _draw_rate(report: Report | None, y: float, class_: str) -> list[Markup]:
    if report is None or report.accuracy is None:
        return []
    low, high = _BAR_X(report.low), _BAR_X(report.high)
    return [
        line((low, y), (high, y), f"whisker {class_}"),
        line((low, y - 3), (low, y + 3), f"whisker {class_}"),
        line((high, y - 3), (high, y + 3), f"whisker {class_}"),
        circle((_BAR_X(report.accuracy), y), 4, f"mark {class_}"),
    ]


LEFT = 62
"""Width of the y ticks, which are larger on a narrow screen."""
PLOT, GAP, FOOT = 240, 26, 46
"""Heights: of a plot, between two panels, and below the last panel."""
MARKED = 40
"""The most points of a line that have a mark each; more marks would hide the line."""
NOISY = 80
"""With more points than this, a small chart draws means of neighbours, and single points faintly."""
PATH = 24
"""The most points of a path; more are averaged with their neighbours."""
BARS = 60
"""The most bars of a chart; more are averaged with their neighbours."""

Metrics = Mapping[int, Mapping[str, float]]
"""Metrics by iteration and name, as the store gives them."""


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """A metric of one iteration at position `x` of the axis, with its 95 % interval and count if known."""

    iteration: int
    x: float
    value: float
    low: float | None = None
    high: float | None = None
    count: int | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """Points that are drawn together.

    Arguments:
        name: for the words that a screen reader says.
        class_: `s1` to `s6`, a colour of the style sheet.
        style: a line with its band; marks with whiskers; a dashed line; or a path from mark to mark.
    """

    name: str
    points: Sequence[MetricPoint]
    class_: str = "s1"
    style: Literal["band", "marks", "dashed", "path"] = "band"


@dataclass(frozen=True, slots=True)
class Panel:
    """Series that share a y axis. `from_zero` starts the axis at 0."""

    y_label: str
    series: Sequence[Series]
    from_zero: bool = False


def metric_points(table: Metrics, name: str, *, along: str = "", count: str = "") -> list[MetricPoint]:
    """The figure `name` of every iteration that has it, over the iterations or over the figure `along`.

    >>> metric_points({2: {"reward": 0.5, "reward_low": 0.4, "reward_high": 0.6}, 3: {}}, "reward")
    [MetricPoint(iteration=2, x=2.0, value=0.5, low=0.4, high=0.6, count=None)]
    """
    points = []
    for iteration, row in sorted(table.items()):
        x = row.get(along) if along else float(iteration)
        if name in row and x is not None:
            many = row.get(count or f"{name}_count")
            low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
            points.append(MetricPoint(iteration, x, row[name], low, high, None if many is None else round(many)))
    return points


def line_chart(panels: Sequence[Panel], x_label: str, label: str) -> Markup:
    """Draw panels one above the other over one x axis; `label` starts the text for screen readers."""
    panels = [replace(p, series=[s for s in p.series if s.points]) for p in panels]
    places = [r.x for panel in panels for series in panel.series for r in series.points]
    iterations = all(r.x == r.iteration for panel in panels for series in panel.series for r in series.points)
    x = Scale(min([0.0, *places]), max([1.0 if iterations else 1e-9, *places]), LEFT, WIDTH - RIGHT)
    x_ticks = [t for t in ticks(x.low, x.high, 6) if not iterations or t == round(t)]
    plot = PLOT if len(panels) == 1 else 0.62 * PLOT
    height = TOP + plot * len(panels) + GAP * (len(panels) - 1) + FOOT
    parts: list[Markup] = []
    for k, panel in enumerate(panels):
        top = TOP + k * (plot + GAP)
        low, high = axis_range([r for series in panel.series for r in series.points])
        y = Scale(min(0.0, low) if panel.from_zero else low, high, top + plot, top)
        y_ticks, last = ticks(y.low, y.high, 5 if len(panels) == 1 else 3), panel is panels[-1]
        parts += frame(
            x, y, x_ticks, y_ticks, x_label if last else "", panel.y_label, top + plot + FOOT - 8,
            tick_words(x_ticks) if last else lambda _: "", tick_words(y_ticks),
        )  # fmt: skip
        for series in panel.series:
            parts += _draw_series(series, x, y)
    summary = "; ".join(_describe_series(series) for panel in panels for series in panel.series)
    return drawing(WIDTH, height, f"{label}: {summary}", *parts, class_="chart")


def small_chart(points: Sequence[MetricPoint], last: int, label: str, level: float) -> Markup:
    """Draw one metric by iteration as a small chart; a `level` within the axis is a dashed line."""
    width, height, left = 190, 104, 40
    low, high = axis_range(points)
    x, y = Scale(0, max(1, last), left, width - 8), Scale(low, high, height - 18, 8)
    y_ticks = ticks(low, high, 4)
    words = tick_words(y_ticks)
    frame_: list[Markup] = []
    for value in y_ticks:
        frame_ += [
            line((left, y(value)), (width - 8, y(value)), "grid"),
            text(left - 5, y(value) + 4, words(value), "tick", "end"),
        ]
    frame_ += [text(left, height - 4, "0", "tick", "middle"), text(width - 8, height - 4, whole(last), "tick", "end")]
    if low < level < high:
        frame_.append(line((left, y(level)), (width - 8, y(level)), "level"))
    inside = [replace(r, value=clamp(r.value, y)) for r in points]
    lines = (
        [(inside, "line after")]
        if len(points) <= NOISY
        else [(inside, "line raw after"), (average_neighbours(inside, MARKED), "line after")]
    )
    drawn = [polyline([(x(r.x), y(r.value)) for r in thin(curve)], class_) for curve, class_ in lines]
    mark = circle((x(points[-1].x), y(clamp(points[-1].value, y))), 3, "mark after", _describe_point(points[-1]))
    return drawing(width, height, _describe_series(Series(label, points)), *frame_, *drawn, mark, class_="chart")


def bar_chart(table: Metrics, names: Mapping[str, str], y_label: str, label: str) -> Markup:
    """A bar an iteration, made of the metrics in `names` (each with its class), the first at the bottom."""
    rows = sorted(table.items())
    size = max(1, math.ceil(len(rows) / BARS))
    groups = [rows[k : k + size] for k in range(0, len(rows), size)]
    means = [{name: fmean(row.get(name, 0.0) for _, row in group) for name in names} for group in groups]
    first, last = rows[0][0], rows[-1][0]
    tallest = max([sum(mean.values()) for mean in means]) * 1.05 or 1.0
    x, y = Scale(first - 0.5, max(first, last) + 0.5, LEFT, WIDTH - RIGHT), Scale(0, tallest, TOP + PLOT, TOP)
    x_ticks = [t for t in ticks(first, last, 6) if t == round(t)]
    y_ticks = ticks(0, tallest, 5)
    parts = frame(
        x, y, x_ticks, y_ticks, "iteration", y_label, TOP + PLOT + FOOT - 8, tick_words(x_ticks), tick_words(y_ticks)
    )
    for group, mean in zip(groups, means, strict=True):
        start, end, below = x(group[0][0] - 0.5), x(group[-1][0] + 0.5), 0.0
        gap = min(2.0, 0.2 * (end - start))
        for name, class_ in names.items():
            top = below + mean[name]
            place = {"x": start + gap / 2, "y": y(top), "width": end - start - gap, "height": y(below) - y(top)}
            parts.append(element("rect", class_=f"bar {class_}", **place))
            below = top
    return drawing(WIDTH, TOP + PLOT + FOOT, label, *parts, class_="chart")


def average_neighbours(points: Sequence[MetricPoint], most: int = PATH) -> list[MetricPoint]:
    """Reduce points to at most `most` by averaging neighbours, which are taken as independent.

    >>> average_neighbours([MetricPoint(1, 0.0, 1.0), MetricPoint(2, 2.0, 3.0)], 1)
    [MetricPoint(iteration=2, x=1.0, value=2.0, low=None, high=None, count=None)]
    """
    size = max(1, math.ceil(len(points) / most))
    if size == 1:
        return list(points)
    means = []
    for k in range(0, len(points), size):
        part = points[k : k + size]
        x, value = fmean(r.x for r in part), fmean(r.value for r in part)
        halves = [(r.high - r.low) / 2 for r in part if r.low is not None and r.high is not None]
        half = math.hypot(*halves) / len(part) if len(halves) == len(part) else None
        counts = [r.count for r in part if r.count is not None]
        means.append(
            MetricPoint(part[-1].iteration, x, value, None if half is None else value - half,
                    None if half is None else value + half, sum(counts) if len(counts) == len(part) else None)
        )  # fmt: skip
    return means


def axis_range(points: Sequence[MetricPoint]) -> tuple[float, float]:
    """Return the range of the y axis: all values, and intervals as far as they do not squeeze the values.

    The interval of two or three episodes can be many times as wide as everything else on the line_chart, and so can
    a single outlier be far away: both are cut at the edge.
    """
    values = sorted(r.value for r in points)
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
    # An axis goes below 0 only where a value does, and one that is near 0 begins there.
    down = 0.0 if 0 <= low < 0.3 * high else low - pad
    return (down, 0.0 if high == 0 and low < 0 else high + pad)


def clamp(value: float, scale: Scale) -> float:
    """Return a value, or the edge of the axis if the value is beyond it."""
    return min(max(value, scale.low), scale.high)


def span(point: MetricPoint | None) -> str:
    """Return the 95 % interval of a point as text.

    >>> span(MetricPoint(1, 1.0, 0.5, -0.05, 0.75))
    '−0.050 to 0.750'
    """
    if point is None or point.low is None or point.high is None:
        return "no interval"
    size = max(abs(point.low), abs(point.high))
    return f"{plain(point.low, size)} to {plain(point.high, size)}"


def _draw_series(series: Series, x: Scale, y: Scale) -> list[Markup]:
    points, class_ = series.points, series.class_
    places: list[Point] = [(x(r.x), y(clamp(r.value, y))) for r in points]
    if series.style == "dashed":
        line_ = [(x(r.x), y(clamp(r.value, y))) for r in thin(points)]
        return [polyline(line_, f"line {class_}", stroke_dasharray="6 4")]
    if series.style == "path":
        middle = [
            circle(point, 2.5, f"mark {class_}", _describe_point(r)) for point, r in zip(places, points, strict=True)
        ][1:-1]
        ends = [(places[0], points[0], f"ring {class_}"), (places[-1], points[-1], f"mark {class_}")][-len(places) :]
        named = [
            circle(point, 4.5, kind, _describe_point(r))
            + text(point[0], point[1] - 9, f"{r.iteration}", "value halo", "end" if point[0] > x.end - 20 else "middle")
            for point, r, kind in ends
        ]
        return [polyline(places, f"line faint-line {class_}"), *middle, *named]
    if series.style == "marks":
        marks: list[Markup] = []
        for point, r in zip(places, points, strict=True):
            marks += _draw_whisker(r, point[0], y, class_)
            marks.append(circle(point, 4, f"mark {class_}", _describe_point(r)))
        return [polyline(places, f"line thin {class_}"), *marks]
    drawn = thin(points)
    parts: list[Markup] = []
    for stretch in _split_by_interval(drawn):
        upper = [(x(r.x), y(clamp(r.high or 0.0, y))) for r in stretch]
        lower = [(x(r.x), y(clamp(r.low or 0.0, y))) for r in stretch]
        # A single point has no area: its interval is a whisker.
        parts += (
            [polygon([*upper, *reversed(lower)], f"band {class_}")]
            if len(stretch) > 1
            else _draw_whisker(stretch[0], x(stretch[0].x), y, class_)
        )
    parts.append(polyline([(x(r.x), y(clamp(r.value, y))) for r in drawn], f"line {class_}"))
    if len(points) <= MARKED:
        parts += [
            circle(point, 2.5, f"mark {class_}", _describe_point(r)) for point, r in zip(places, points, strict=True)
        ]
    return parts


def _split_by_interval(points: Sequence[MetricPoint]) -> list[list[MetricPoint]]:
    """The stretches of neighbours that have an interval: one episode has none, and its band would be a guess."""
    stretches: list[list[MetricPoint]] = [[]]
    for reading in points:
        if reading.low is not None and reading.high is not None:
            stretches[-1].append(reading)
        elif stretches[-1]:
            stretches.append([])
    return [stretch for stretch in stretches if stretch]


def _draw_whisker(reading: MetricPoint, x: float, y: Scale, class_: str) -> list[Markup]:
    if reading.low is None or reading.high is None:
        return []
    low, high = y(clamp(reading.low, y)), y(clamp(reading.high, y))
    caps = [line((x - 3, end), (x + 3, end), f"whisker {class_}") for end in (low, high)]
    return [line((x, low), (x, high), f"whisker {class_}"), *caps]


def _describe_series(series: Series) -> str:
    first, last = series.points[0], series.points[-1]
    return f"{series.name}: {_describe_point(first)}" + (f", {_describe_point(last)}" if last is not first else "")


def _describe_point(reading: MetricPoint) -> str:
    interval = f" ({span(reading)})" if reading.low is not None and reading.high is not None else ""
    count = "" if reading.count is None else f", n {whole(reading.count)}"
    place = "" if reading.x == reading.iteration else f" at {plain(reading.x)}"
    return f"iteration {reading.iteration}{place}: {plain(reading.value)}{interval}{count}"
