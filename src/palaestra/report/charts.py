"""Charts as SVG: metrics over the iterations of a run, learning curves, rates with intervals.

Colours and fonts are classes; the style sheet defines them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Literal, TypeVar

from markupsafe import Markup, escape

from palaestra.core.records import Report
from palaestra.core.statistics import Mean
from palaestra.report.formatting import (
    counts,
    format_signed,
    interval,
    percent,
    plain,
    points_interval,
    tick_words,
    whole,
)

WIDTH, PLOT, GAP, FOOT = 520, 240, 26, 46
"""Width of a chart; height of a plot, of the gap between two panels, and of the space below the last panel."""
LEFT, RIGHT, TOP = 62, 18, 14
SMALL_WIDTH, SMALL_PLOT = 190, 78
BAR_WIDTH = 220
"""Width of a picture in a table row."""
COLOURS = 6
"""Number of line colours in the style sheet."""
MOST_POINTS = 400
"""Maximum points of one line; a screen shows no more."""
MARKED = 40
"""Maximum points of a line that have a mark each; more marks would hide the line."""
NOISY = 80
"""With more points than this, a small chart draws means of neighbours, and single points faintly."""
PATH = 24
"""Maximum points of a path; more are averaged with their neighbours."""
BARS = 60
"""Maximum bars of a chart; more are averaged with their neighbours."""
RAW_ROUNDS = 4
"""Maximum rounds for which single batches are drawn; more would hide the means."""

T = TypeVar("T")
Point = tuple[float, float]
Metrics = Mapping[int, Mapping[str, float]]
"""Metrics by iteration and name, as the store returns them."""


# SVG elements


def number(value: float) -> str:
    """Format a coordinate with at most two decimals.

    >>> number(3.0), number(1 / 3)
    ('3', '0.33')
    """
    return f"{value:.2f}".rstrip("0").rstrip(".")


def element(tag: str, *children: str, **attributes: str | float) -> Markup:
    """Build one element. Text and attributes are escaped, `Markup` children are not.

    Underscores in attribute names become hyphens; a trailing one is dropped (`class_`).

    >>> element("text", "a < b", x=1.5, class_="label", text_anchor="end")
    Markup('<text x="1.5" class="label" text-anchor="end">a &lt; b</text>')
    """
    written = Markup("").join(
        Markup(' {}="{}"').format(
            name.rstrip("_").replace("_", "-"), value if isinstance(value, str) else number(value)
        )
        for name, value in attributes.items()
    )
    return Markup("<{0}{1}>{2}</{0}>").format(tag, written, Markup("").join(escape(child) for child in children))


def drawing(width: float, height: float, label: str, *children: str, class_: str = "") -> Markup:
    """Build a picture that scales with its place. `label` is the text for screen readers."""
    box = f"0 0 {number(width)} {number(height)}"
    return element(
        "svg", *children, viewBox=box, width=width, height=height, role="img", aria_label=label, class_=class_
    )


def text(
    x: float, y: float, content: str, class_: str = "", anchor: str = "start", **attributes: str | float
) -> Markup:
    """Draw text at a point; `anchor` is start, middle or end."""
    return element("text", content, x=x, y=y, text_anchor=anchor, class_=class_, **attributes)


def line(start: Point, end: Point, class_: str) -> Markup:
    return element("line", x1=start[0], y1=start[1], x2=end[0], y2=end[1], class_=class_)


def circle(centre: Point, radius: float, class_: str, title: str = "") -> Markup:
    hint = (element("title", title),) if title else ()
    return element("circle", *hint, cx=centre[0], cy=centre[1], r=radius, class_=class_)


def polyline(points: Sequence[Point], class_: str, dashes: str = "", tag: str = "polyline") -> Markup:
    style = {"stroke_dasharray": dashes} if dashes else {}
    return element(tag, points=" ".join(f"{number(x)},{number(y)}" for x, y in points), class_=class_, **style)


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values from `low` to `high` to coordinates from `start` to `end`.

    >>> Scale(0, 100, 10, 210)(50)
    110.0
    """

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / ((self.high - self.low) or 1.0) * (self.end - self.start)

    def clamp(self, value: float) -> float:
        """The coordinate of a value, or of the nearest end of the scale if the value is outside."""
        return self(min(max(value, self.low), self.high))


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Return about `about` round values from `low` to `high`.

    >>> ticks(0, 76, 4)
    [0.0, 20.0, 40.0, 60.0]
    """
    rough = (high - low) / max(1, about)
    if rough <= 0:
        return [low]
    magnitude = 10 ** math.floor(math.log10(rough))
    step = next(m * magnitude for m in (1, 2, 5, 10) if m * magnitude >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [float(k * step) for k in range(first, last + 1)]


# Charts with axes


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
        class_: a colour of the style sheet, `s1` to `s6`.
        style: a line with its band; marks with whiskers; marks alone; a line alone; a path from mark to mark; or a ring.
        labels: a text above each point; fewer labels than points belong to the last points.
        dashes: the dash pattern of the line.
    """

    name: str
    points: Sequence[MetricPoint]
    class_: str = "s1"
    style: Literal["band", "marks", "points", "line", "path", "ring"] = "band"
    labels: Sequence[str] = ()
    dashes: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """Series that share a y axis. Without `y_range`, the axis fits the values."""

    y_label: str
    series: Sequence[Series]
    y_range: tuple[float, float] | None = None


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
    panels: Sequence[Panel], x_label: str, label: str, *, x_high: float = 0.0, small: bool = False
) -> Markup:
    """Draw panels one above the other over one x axis.

    Arguments:
        label: the start of the text for screen readers.
        x_high: the end of the x axis, if the points do not reach it.
        small: draw a small multiple, without axis names.
    """
    panels = [replace(p, series=[s for s in p.series if s.points]) for p in panels]
    places = [r.x for panel in panels for series in panel.series for r in series.points]
    integral = all(place == round(place) for place in places)
    width, left = (SMALL_WIDTH, 48) if small else (WIDTH, LEFT)
    x = Scale(min([0.0, *places]), max([1.0 if integral else 1e-9, x_high, *places]), left, width - RIGHT)
    x_ticks = [x.low, x.high] if small else [t for t in ticks(x.low, x.high, 6) if not integral or t == round(t)]
    plot, top = SMALL_PLOT if small else PLOT if len(panels) == 1 else 0.62 * PLOT, 8.0 if small else float(TOP)
    parts: list[Markup] = []
    for panel in panels:
        low, high = panel.y_range or axis_range([r for series in panel.series for r in series.points])
        y = Scale(low, high, top + plot, top)
        last = panel is panels[-1]
        parts += _draw_axes(x, y, x_ticks if last else [], 5 if len(panels) == 1 and not small else 4)
        if not small:
            parts += _draw_axis_names(x, y, x_label if last else "", panel.y_label)
        for series in panel.series:
            parts += _draw_series(series, x, y)
        top += plot + GAP
    named = [_describe_series(series) for panel in panels for series in panel.series if series.name]
    height = top - GAP + (18 if small else FOOT)
    return drawing(width, height, ": ".join([label, "; ".join(named)] if named else [label]), *parts, class_="chart")


def small_chart(points: Sequence[MetricPoint], last: int, label: str, level: float) -> Markup:
    """Draw one metric by iteration as a small chart. A `level` within the axis is a dashed line."""
    low, high = axis_range(points)
    series = [Series(label, points[-1:], "after", "marks")]
    series.insert(0, Series("", points, "raw after" if len(points) > NOISY else "after", "line"))
    if len(points) > NOISY:
        series.append(Series("", average_neighbours(points, MARKED), "after", "line"))
    if low < level < high:
        series.append(Series("", [MetricPoint(0, x, level) for x in (0, last)], "level", "line"))
    text = _describe_series(Series(label, points))
    return line_chart(
        [Panel("", [replace(s, name="") for s in series], (low, high))], "", text, x_high=last, small=True
    )


def bar_chart(table: Metrics, names: Mapping[str, str], y_label: str, label: str) -> Markup:
    """Draw a stacked bar for each iteration from the metrics in `names` (with their classes), bottom to top."""
    rows = sorted(table.items())
    size = max(1, math.ceil(len(rows) / BARS))
    groups = [rows[k : k + size] for k in range(0, len(rows), size)]
    means = [{name: fmean(row.get(name, 0.0) for _, row in group) for name in names} for group in groups]
    first, last = rows[0][0], rows[-1][0]
    tallest = max(sum(mean.values()) for mean in means) * 1.05 or 1.0
    x, y = Scale(first - 0.5, last + 0.5, LEFT, WIDTH - RIGHT), Scale(0, tallest, TOP + PLOT, TOP)
    parts = _draw_axes(x, y, [t for t in ticks(first, last, 6) if t == round(t)], 5)
    parts += _draw_axis_names(x, y, "iteration", y_label)
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

    >>> [(point.x, point.value) for point in average_neighbours([MetricPoint(1, 0.0, 1.0), MetricPoint(2, 2.0, 3.0)], 1)]
    [(1.0, 2.0)]
    """
    size = max(1, math.ceil(len(points) / most))
    if size == 1:
        return list(points)
    means = []
    for k in range(0, len(points), size):
        part = points[k : k + size]
        mean = MetricPoint(part[-1].iteration, fmean(r.x for r in part), fmean(r.value for r in part))
        halves = [(r.high - r.low) / 2 for r in part if r.low is not None and r.high is not None]
        if len(halves) == len(part):
            half = math.hypot(*halves) / len(part)
            mean = replace(mean, low=mean.value - half, high=mean.value + half)
        known = [r.count for r in part if r.count is not None]
        means.append(replace(mean, count=sum(known)) if len(known) == len(part) else mean)
    return means


def axis_range(points: Sequence[MetricPoint]) -> tuple[float, float]:
    """Return the range of the y axis: all values, and intervals as far as they do not squeeze the values.

    The interval of two or three episodes can be many times as wide as the rest of the chart, and a single outlier can
    be far away: both are cut at the edge.
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
    # The axis goes below 0 only if a value does. If the values are near 0, it starts at 0.
    down = 0.0 if 0 <= low < 0.3 * high else low - pad
    return (down, 0.0 if high == 0 and low < 0 else high + pad)


def thin(curve: Sequence[T]) -> list[T]:
    """Return at most `MOST_POINTS` points of a curve, including the last."""
    step = math.ceil(len(curve) / MOST_POINTS)
    return [*curve[: -1 if curve else None : step], *curve[-1:]] if step > 1 else list(curve)


def span(point: MetricPoint | None) -> str:
    """Format the 95 % interval of a point.

    >>> span(MetricPoint(1, 1.0, 0.5, -0.05, 0.75))
    '−0.050 to 0.750'
    """
    if point is None or point.low is None or point.high is None:
        return "no interval"
    size = max(abs(point.low), abs(point.high))
    return f"{plain(point.low, size)} to {plain(point.high, size)}"


def _draw_axes(x: Scale, y: Scale, x_ticks: Sequence[float], y_count: int) -> list[Markup]:
    y_ticks = ticks(y.low, y.high, y_count)
    x_words, y_words = tick_words(x_ticks), tick_words(y_ticks)
    parts = [line((x.start, y.start), (x.end, y.start), "axis")]
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
    return parts


def _draw_axis_names(x: Scale, y: Scale, x_label: str, y_label: str) -> list[Markup]:
    middle = (y.start + y.end) / 2
    return [
        text((x.start + x.end) / 2, y.start + FOOT - 8, x_label, "axis-name", "middle"),
        text(13, middle, y_label, "axis-name", "middle", transform=f"rotate(-90 13 {number(middle)})"),
    ]


def _draw_series(series: Series, x: Scale, y: Scale) -> list[Markup]:
    points, class_ = series.points, series.class_
    places: list[Point] = [(x(r.x), y.clamp(r.value)) for r in points]
    marks = [circle(place, 3, f"mark {class_}", _describe_point(r)) for place, r in zip(places, points, strict=True)]
    labels = list(zip(places[len(places) - len(series.labels) :], series.labels, strict=True))
    texts = [
        text(at, height - 9, label, "value halo", "end" if at > x.end - 20 else "start" if at == x.start else "middle")
        for (at, height), label in labels
    ]
    if series.style == "points":
        return marks
    if series.style == "ring":
        return [circle(place, 8, class_, _describe_point(r)) for place, r in zip(places, points, strict=True)]
    if series.style == "line":
        return [polyline(thin(places), f"line {class_}", series.dashes), *texts]
    if series.style == "path":
        ends = [circle(places[0], 4.5, f"ring {class_}", _describe_point(points[0]))] if len(points) > 1 else []
        ends.append(circle(places[-1], 4.5, f"mark {class_}", _describe_point(points[-1])))
        return [polyline(places, f"line faint-line {class_}"), *marks[1:-1], *ends, *texts]
    if series.style == "marks":
        whiskers = [part for r in points for part in _draw_whisker(r, x, y, class_)]
        return [polyline(places, f"line thin {class_}"), *whiskers, *marks, *texts]
    bands: list[Markup] = []
    for stretch in _split_by_interval(thin(points)):
        upper = [(x(r.x), y.clamp(r.high or 0.0)) for r in stretch]
        lower = [(x(r.x), y.clamp(r.low or 0.0)) for r in stretch]
        # A single point has no area: its interval is a whisker.
        area = polyline([*upper, *reversed(lower)], f"band {class_}", tag="polygon")
        bands += [area] if len(stretch) > 1 else _draw_whisker(stretch[0], x, y, class_)
    return [*bands, polyline(thin(places), f"line {class_}"), *(marks if len(points) <= MARKED else ()), *texts]


def _split_by_interval(points: Sequence[MetricPoint]) -> list[list[MetricPoint]]:
    """Return the stretches of neighbours with an interval. The value of a single episode has none."""
    stretches: list[list[MetricPoint]] = [[]]
    for point in points:
        if point.low is not None and point.high is not None:
            stretches[-1].append(point)
        elif stretches[-1]:
            stretches.append([])
    return [stretch for stretch in stretches if stretch]


def _draw_whisker(point: MetricPoint, x: Scale, y: Scale, class_: str) -> list[Markup]:
    if point.low is None or point.high is None:
        return []
    at, low, high = x(point.x), y.clamp(point.low), y.clamp(point.high)
    caps = [line((at - 3, end), (at + 3, end), f"whisker {class_}") for end in (low, high)]
    return [line((at, low), (at, high), f"whisker {class_}"), *caps]


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
) -> Markup:
    """Draw accuracy over the training examples so far, with a ring around the kept round.

    Arguments:
        label: the y axis, for example "test accuracy".
        most: the end of the x axis of a small chart, whose y axis goes from 0 to 100.
    """
    points = {moment.round: _accuracy_point(moment) for moment in moments if moment.report.accuracy is not None}
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
    return line_chart([panel], "training examples so far", text, x_high=most, small=small)


def _accuracy_point(moment: Moment) -> MetricPoint:
    report = moment.report
    title = f"round {moment.round}, {whole(moment.examples)} examples: {percent(report)} ({interval(report)}; {counts(report)})"
    value, low, high = 100 * (report.accuracy or 0.0), 100 * report.low, 100 * report.high
    return MetricPoint(moment.round, moment.examples, value, low, high, title=title)


def loss_chart(curves: Mapping[int, Sequence[tuple[int, float]]]) -> Markup:
    """Draw the training loss by step, one line per round: the running mean, and each batch faintly."""
    shown = {round_: [MetricPoint(s, s, loss) for s, loss in curve] for round_, curve in curves.items() if curve}
    means = {round_: [MetricPoint(s, s, loss) for s, loss in running_mean(curves[round_])] for round_ in shown}
    # A single hard batch must not flatten the rest: the axis ends at the 98th percentile.
    losses = sorted(point.value for curve in shown.values() for point in curve)
    tallest = max(losses[int(0.98 * (len(losses) - 1))], *(p.value for mean in means.values() for p in mean)) * 1.05
    series = [
        Series("", curve, f"raw {round_colour(round_)}", "line")
        for round_, curve in shown.items()
        if len(shown) <= RAW_ROUNDS
    ]
    for round_, mean in means.items():
        series.append(Series("", mean, round_colour(round_), "line", dashes="6 3" if round_ > COLOURS else ""))
    ends = ", ".join(f"round {round_} ends at {mean[-1].value:.2f}" for round_, mean in means.items())
    panel = Panel("training loss (nats per token)", series, (0.0, tallest))
    return line_chart([panel], "training step (batch) of the round", f"training loss: {ends}")


def round_colour(round_: int) -> str:
    """Return the style class of a round's line."""
    return f"s{(round_ - 1) % COLOURS + 1}"


def running_mean(curve: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Average each loss with those before it, over a tenth of the curve but at least eight batches.

    A shorter curve is averaged over half its length. The first steps, which have too few predecessors, are left out.

    >>> running_mean([(1, 2.0), (2, 4.0), (3, 8.0), (4, 2.0)])
    [(2, 3.0), (3, 6.0), (4, 5.0)]
    """
    window = max(1, min(max(8, len(curve) // 10), len(curve) // 2))
    losses = [loss for _, loss in curve]
    return [(curve[k][0], sum(losses[k + 1 - window : k + 1]) / window) for k in range(window - 1, len(curve))]


# Intervals in table rows

_RATES = Scale(0, 1, 12, BAR_WIDTH - 12)


def rate_bar(*reports: Report | None) -> Markup:
    """Draw one rate with its interval, or two: before as a ring, after as a disc below it."""
    names = ("before", "after")[-len(reports) :]
    height = 8 + 10 * len(reports)
    label = ", ".join(
        f"{name} {percent(report)} ({interval(report)})" for name, report in zip(names, reports, strict=True)
    )
    parts = [line((_RATES(share), 0), (_RATES(share), height), "grid") for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    for place, (name, report) in enumerate(zip(names, reports, strict=True)):
        if report is not None and report.accuracy is not None:
            y = 9.0 + 10 * place
            parts += draw_interval(_RATES, y, report.low, report.high, name)
            parts.append(circle((_RATES(report.accuracy), y), 4, f"mark {name}"))
    return drawing(
        BAR_WIDTH, height, label if len(reports) > 1 else label.removeprefix("after "), *parts, class_="inline"
    )


def rate_axis() -> Markup:
    """Draw the axis of `rate_bar`, for the head of its column."""
    return scale_axis(_RATES, [0.0, 0.5, 1.0], lambda share: f"{100 * share:.0f}", "scale from 0 to 100 %")


def scale_axis(x: Scale, values: Sequence[float], words: Callable[[float], str], label: str) -> Markup:
    """Draw the axis of pictures in table rows, for the head of their column."""
    labels = [text(x(value), 11, words(value), "tick", "middle") for value in values]
    return drawing(BAR_WIDTH, 14, label, *labels, class_="inline")


def mean_bar(mean: Mean, x: Scale) -> Markup:
    """Draw a mean difference with its interval, and a line at 0."""
    label = f"{format_signed(mean.value)} ({points_interval(mean)})"
    return drawing(BAR_WIDTH, 22, label, line((x(0), 0), (x(0), 22), "axis"), *draw_mean(mean, x, 11), class_="inline")


def draw_mean(mean: Mean, x: Scale, y: float) -> list[Markup]:
    """Draw a diamond at the mean, with its interval."""
    if not mean.count:
        return []
    middle = x(mean.value)
    diamond = [(middle - 6, y), (middle, y - 6), (middle + 6, y), (middle, y + 6)]
    bounds = draw_interval(x, y, mean.low, mean.high, "mean") if mean.count > 1 else []
    return [*bounds, polyline(diamond, "mark mean", tag="polygon")]


def draw_interval(x: Scale, y: float, low: float, high: float, class_: str) -> list[Markup]:
    """Draw a horizontal interval. An end outside the scale is cut and has no end mark."""
    ends = [(x.clamp(end), x.low <= end <= x.high) for end in (low, high)]
    caps = [line((end, y - 3), (end, y + 3), f"whisker {class_}") for end, inside in ends if inside]
    return [line((ends[0][0], y), (ends[1][0], y), f"whisker {class_}"), *caps]
