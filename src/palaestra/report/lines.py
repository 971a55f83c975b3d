"""Charts over the iterations of a run: lines with their bands, marks with whiskers, paths, stacked bars."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, median
from typing import Literal

from markupsafe import Markup

from palaestra.report.curves import RIGHT, TOP, WIDTH, frame, thin
from palaestra.report.figures import NOTHING, whole
from palaestra.report.svg import Point, Scale, circle, drawing, element, line, polygon, polyline, text, ticks

LEFT = 62
"""Room for the ticks of the y axis, which a narrow screen writes larger."""
PLOT, GAP, FOOT = 240, 26, 46
"""Heights: of a chart's plot, between two panels, and below the last."""
MARKED = 40
"""Up to so many readings of a line have a mark each; with more, they would hide it."""
NOISY = 80
"""With more readings than these, a small picture has means of neighbours, and each only faintly."""
PATH = 24
"""Points of a path; neighbours are averaged where there are more."""
BARS = 60
"""Bars of a chart; neighbouring iterations are averaged where there are more."""

Metrics = Mapping[int, Mapping[str, float]]
"""Metrics by iteration and name, as the store gives them."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A figure of one iteration, with its 95 % interval and count where there are any, at a place `x` of an axis."""

    iteration: int
    x: float
    value: float
    low: float | None = None
    high: float | None = None
    count: int | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """Readings that are drawn together.

    Arguments:
        name: for the words that a screen reader says.
        class_: `s1` to `s6`, a colour of the style sheet.
        style: a line with its band; marks with whiskers; a dashed line; or a path from mark to mark.
    """

    name: str
    readings: Sequence[Reading]
    class_: str = "s1"
    style: Literal["band", "marks", "dashed", "path"] = "band"


@dataclass(frozen=True, slots=True)
class Panel:
    """Series that share a y axis, which begins `from_zero` where a difference would look larger than it is."""

    y_label: str
    series: Sequence[Series]
    from_zero: bool = False


def readings(table: Metrics, name: str, *, along: str = "", count: str = "") -> list[Reading]:
    """The figure `name` of every iteration that has it, over the iterations or over the figure `along`.

    >>> readings({2: {"reward": 0.5, "reward_low": 0.4, "reward_high": 0.6}, 3: {}}, "reward")
    [Reading(iteration=2, x=2.0, value=0.5, low=0.4, high=0.6, count=None)]
    """
    found = []
    for iteration, row in sorted(table.items()):
        x = row.get(along) if along else float(iteration)
        if name in row and x is not None:
            many = row.get(count or f"{name}_count")
            low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
            found.append(Reading(iteration, x, row[name], low, high, None if many is None else round(many)))
    return found


def chart(panels: Sequence[Panel], x_label: str, label: str) -> Markup:
    """Panels one above the other over one x axis; `label` opens what a screen reader says."""
    panels = [replace(p, series=[s for s in p.series if s.readings]) for p in panels]
    places = [r.x for panel in panels for series in panel.series for r in series.readings]
    iterations = all(r.x == r.iteration for panel in panels for series in panel.series for r in series.readings)
    x = Scale(min([0.0, *places]), max([1.0 if iterations else 1e-9, *places]), LEFT, WIDTH - RIGHT)
    x_ticks = [t for t in ticks(x.low, x.high, 6) if not iterations or t == round(t)]
    plot = PLOT if len(panels) == 1 else 0.62 * PLOT
    height = TOP + plot * len(panels) + GAP * (len(panels) - 1) + FOOT
    parts: list[Markup] = []
    for k, panel in enumerate(panels):
        top = TOP + k * (plot + GAP)
        low, high = axis_range([r for series in panel.series for r in series.readings])
        y = Scale(min(0.0, low) if panel.from_zero else low, high, top + plot, top)
        y_ticks, last = ticks(y.low, y.high, 5 if len(panels) == 1 else 3), panel is panels[-1]
        parts += frame(
            x, y, x_ticks, y_ticks, x_label if last else "", panel.y_label, top + plot + FOOT - 8,
            tick_words(x_ticks) if last else lambda _: "", tick_words(y_ticks),
        )  # fmt: skip
        for series in panel.series:
            parts += _drawn(series, x, y)
    said = "; ".join(_summed(series) for panel in panels for series in panel.series)
    return drawing(WIDTH, height, f"{label}: {said}", *parts, class_="chart")


def multiple(found: Sequence[Reading], last: int, label: str, level: float) -> Markup:
    """One figure by iteration, small, on an axis of its own; a `level` within the axis is a dashed line."""
    width, height, left = 190, 104, 40
    low, high = axis_range(found)
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
    inside = [replace(r, value=held(r.value, y)) for r in found]
    lines = (
        [(inside, "line after")]
        if len(found) <= NOISY
        else [(inside, "line raw after"), (averaged(inside, MARKED), "line after")]
    )
    drawn = [polyline([(x(r.x), y(r.value)) for r in thin(curve)], class_) for curve, class_ in lines]
    mark = circle((x(found[-1].x), y(held(found[-1].value, y))), 3, "mark after", _said(found[-1]))
    return drawing(width, height, _summed(Series(label, found)), *frame_, *drawn, mark, class_="chart")


def stacked(table: Metrics, names: Mapping[str, str], y_label: str, label: str) -> Markup:
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


def averaged(found: Sequence[Reading], most: int = PATH) -> list[Reading]:
    """At most `most` readings: neighbours become their mean, whose interval takes them as independent.

    >>> averaged([Reading(1, 0.0, 1.0), Reading(2, 2.0, 3.0)], 1)
    [Reading(iteration=2, x=1.0, value=2.0, low=None, high=None, count=None)]
    """
    size = max(1, math.ceil(len(found) / most))
    if size == 1:
        return list(found)
    means = []
    for k in range(0, len(found), size):
        part = found[k : k + size]
        x, value = fmean(r.x for r in part), fmean(r.value for r in part)
        halves = [(r.high - r.low) / 2 for r in part if r.low is not None and r.high is not None]
        half = math.hypot(*halves) / len(part) if len(halves) == len(part) else None
        counts = [r.count for r in part if r.count is not None]
        means.append(
            Reading(part[-1].iteration, x, value, None if half is None else value - half,
                    None if half is None else value + half, sum(counts) if len(counts) == len(part) else None)
        )  # fmt: skip
    return means


def axis_range(found: Sequence[Reading]) -> tuple[float, float]:
    """From the lowest to the highest value, and intervals as far as they do not squeeze the values.

    The interval of two or three episodes can be many times as wide as everything else on the chart, and so can
    a single outlier be far away: both are cut at the edge.
    """
    values = sorted(r.value for r in found)
    cut = len(values) // 20
    inner = values[cut : len(values) - cut] or [0.0]
    spread = inner[-1] - inner[0]
    low, high = max(values[0], inner[0] - spread), min(values[-1], inner[-1] + spread)
    halves = [(r.high - r.low) / 2 for r in found if r.low is not None and r.high is not None]
    room = max(0.15 * (high - low), 1.5 * median(halves)) if halves else 0.0
    floor = 0.0 if values and values[0] >= 0 else -math.inf
    low = max(floor, low - room, min([low, *(r.low for r in found if r.low is not None)]))
    high = min(high + room, max([high, *(r.high for r in found if r.high is not None)]))
    if low == high == 0:
        return 0.0, 1.0
    pad = 0.05 * (high - low) or 0.05 * abs(high)
    # An axis goes below 0 only where a value does, and one that is near 0 begins there.
    down = 0.0 if 0 <= low < 0.3 * high else low - pad
    return (down, 0.0 if high == 0 and low < 0 else high + pad)


def held(value: float, scale: Scale) -> float:
    """A value, or the edge of the axis that it lies beyond."""
    return min(max(value, scale.low), scale.high)


def plain(value: float | None, size: float = 0.0) -> str:
    """A number of any size with three figures or more; written like one of `size`, if that is larger.

    >>> plain(0.57039), plain(460.75), plain(-3.2437), plain(0.0), plain(0.00002)
    ('0.570', '460.8', '−3.24', '0', '2.0e−05')
    >>> plain(-0.0009, 0.1)
    '−0.001'
    """
    if value is None:
        return NOTHING
    size = max(size, abs(value))
    if size == 0 or size >= 1000:
        written = whole(value)
    elif size < 0.001:
        written = f"{value:.1e}"
    else:
        written = f"{value:.{1 if size >= 100 else 2 if size >= 1 else 3 if size >= 0.1 else 4}f}"
        # Rounded to nothing, a number has no sign.
        written = written if float(written) else written.lstrip("-")
    return written.replace("-", "−")


def span(found: Reading | None) -> str:
    """The 95 % interval of a reading.

    >>> span(Reading(1, 1.0, 0.5, -0.05, 0.75))
    '−0.050 to 0.750'
    """
    if found is None or found.low is None or found.high is None:
        return "no interval"
    size = max(abs(found.low), abs(found.high))
    return f"{plain(found.low, size)} to {plain(found.high, size)}"


def share(value: float | None) -> str:
    """A share from 0 to 1 in percent.

    >>> share(0.125), share(1.0)
    ('12.5 %', '100 %')
    """
    return NOTHING if value is None else f"{100 * value:.1f}".removesuffix(".0").replace("-", "−") + " %"


def tick_words(values: Sequence[float]) -> Callable[[float], str]:
    """How the ticks of an axis are written: all with the decimals that tell them apart.

    >>> [tick_words([0.0, 0.005])(value) for value in (0.0, 0.005)]
    ['0.000', '0.005']
    >>> tick_words([0.0, 5000.0])(5000.0)
    '5k'
    """
    step = min((b - a for a, b in pairwise(values)), default=1.0)
    if step >= 1000:
        return lambda value: f"{value / 1000:g}k".replace("-", "−") if value else "0"
    decimals = max(0, -math.floor(math.log10(step) + 1e-9)) if step > 0 else 0
    if decimals > 4:
        return lambda value: f"{value:.0e}".replace("-", "−") if value else "0"
    return lambda value: (whole(value) if decimals == 0 else f"{value:.{decimals}f}").replace("-", "−")


FILTERS: dict[str, Callable[..., str]] = {"plain": plain, "span": span, "share": share}


def _drawn(series: Series, x: Scale, y: Scale) -> list[Markup]:
    found, class_ = series.readings, series.class_
    points: list[Point] = [(x(r.x), y(held(r.value, y))) for r in found]
    if series.style == "dashed":
        drawn = [(x(r.x), y(held(r.value, y))) for r in thin(found)]
        return [polyline(drawn, f"line {class_}", stroke_dasharray="6 4")]
    if series.style == "path":
        middle = [circle(point, 2.5, f"mark {class_}", _said(r)) for point, r in zip(points, found, strict=True)][1:-1]
        ends = [(points[0], found[0], f"ring {class_}"), (points[-1], found[-1], f"mark {class_}")][-len(points) :]
        named = [
            circle(point, 4.5, kind, _said(r))
            + text(point[0], point[1] - 9, f"{r.iteration}", "value halo", "end" if point[0] > x.end - 20 else "middle")
            for point, r, kind in ends
        ]
        return [polyline(points, f"line faint-line {class_}"), *middle, *named]
    if series.style == "marks":
        marks: list[Markup] = []
        for point, r in zip(points, found, strict=True):
            marks += _whisker(r, point[0], y, class_)
            marks.append(circle(point, 4, f"mark {class_}", _said(r)))
        return [polyline(points, f"line thin {class_}"), *marks]
    drawn_of = thin(found)
    parts: list[Markup] = []
    for stretch in _with_interval(drawn_of):
        upper = [(x(r.x), y(held(r.high or 0.0, y))) for r in stretch]
        lower = [(x(r.x), y(held(r.low or 0.0, y))) for r in stretch]
        # A single reading has no area: its interval is a whisker.
        parts += (
            [polygon([*upper, *reversed(lower)], f"band {class_}")]
            if len(stretch) > 1
            else _whisker(stretch[0], x(stretch[0].x), y, class_)
        )
    parts.append(polyline([(x(r.x), y(held(r.value, y))) for r in drawn_of], f"line {class_}"))
    if len(found) <= MARKED:
        parts += [circle(point, 2.5, f"mark {class_}", _said(r)) for point, r in zip(points, found, strict=True)]
    return parts


def _with_interval(found: Sequence[Reading]) -> list[list[Reading]]:
    """The stretches of neighbours that have an interval: one episode has none, and its band would be a guess."""
    stretches: list[list[Reading]] = [[]]
    for reading in found:
        if reading.low is not None and reading.high is not None:
            stretches[-1].append(reading)
        elif stretches[-1]:
            stretches.append([])
    return [stretch for stretch in stretches if stretch]


def _whisker(reading: Reading, x: float, y: Scale, class_: str) -> list[Markup]:
    if reading.low is None or reading.high is None:
        return []
    low, high = y(held(reading.low, y)), y(held(reading.high, y))
    caps = [line((x - 3, end), (x + 3, end), f"whisker {class_}") for end in (low, high)]
    return [line((x, low), (x, high), f"whisker {class_}"), *caps]


def _summed(series: Series) -> str:
    first, last = series.readings[0], series.readings[-1]
    return f"{series.name}: {_said(first)}" + (f", {_said(last)}" if last is not first else "")


def _said(reading: Reading) -> str:
    interval = f" ({span(reading)})" if reading.low is not None and reading.high is not None else ""
    count = "" if reading.count is None else f", n {whole(reading.count)}"
    place = "" if reading.x == reading.iteration else f" at {plain(reading.x)}"
    return f"iteration {reading.iteration}{place}: {plain(reading.value)}{interval}{count}"
