"""Curves over a run: accuracy by the examples given, loss by the step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from markupsafe import Markup

from palaestra.core.records import Report
from palaestra.report.figures import counts, interval, percent, whole
from palaestra.report.svg import Point, Scale, circle, drawing, line, number, polygon, polyline, text, ticks

WIDTH, HEIGHT = 520, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 18, 14, 46
SERIES = 6
"""How many colours the style sheet has for lines; further lines are dashed."""
RAW_ROUNDS = 4
"""Up to so many rounds each batch is drawn too; with more, they would hide the means."""
MOST_POINTS = 400
"""Points of one line that are drawn; a screen shows no more."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Moment:
    """The student on validation problems after a round, and how many examples it had been given."""

    round: int
    examples: int
    report: Report


def accuracy_curve(moments: Sequence[Moment], kept: Moment | None = None, split: str = "validation") -> Markup:
    """Accuracy in percent with its interval as a band, by the examples so far; a ring around the round that is kept."""
    known = [moment for moment in moments if moment.report.accuracy is not None]
    low, high = _accuracy_range(known)
    x = Scale(0, max([moment.examples for moment in known] + [1]), LEFT, WIDTH - RIGHT)
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
    label = f"{split} accuracy by examples: " + "; ".join(_said(moment) for moment in known)
    return drawing(WIDTH, HEIGHT, label, *grid, *_band(known, x, y), *ring, *labels, class_="chart")


def accuracy_multiple(moments: Sequence[Moment], most_examples: int) -> Markup:
    """The same for one skill, small, with axes that are alike for all skills."""
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
    label = "; ".join(_said(moment) for moment in known)
    return drawing(width, height, label, *frame, *_band(known, x, y), class_="chart")


def loss_curve(curves: Mapping[int, Sequence[tuple[int, float]]]) -> Markup:
    """The training loss by step, a line a round: the running mean, and faintly each batch."""
    shown = {round_: curve for round_, curve in curves.items() if curve}
    means = {round_: running_mean(curve) for round_, curve in shown.items()}
    last = max((curve[-1][0] for curve in shown.values()), default=1)
    # A single hard batch must not flatten everything else: the axis ends at what nearly all stay below.
    losses = sorted(loss for curve in shown.values() for _, loss in curve)
    tallest = max([losses[int(0.98 * (len(losses) - 1))]] if losses else [1.0])
    tallest = max([tallest, *(value for mean in means.values() for _, value in mean)]) * 1.05
    x, y = Scale(0, last, LEFT, WIDTH - RIGHT), Scale(0, tallest, HEIGHT - BOTTOM, TOP)
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
        lines.append(polyline([(x(s), y(min(v, tallest))) for s, v in thin(curve)], f"line raw {series(round_)}"))
    for round_, mean in means.items():
        dashes = {"stroke_dasharray": "6 3"} if round_ > SERIES else {}
        lines.append(polyline([(x(s), y(v)) for s, v in thin(mean)], f"line {series(round_)}", **dashes))
    ends = ", ".join(f"round {round_} ends at {mean[-1][1]:.2f}" for round_, mean in means.items())
    return drawing(WIDTH, HEIGHT, f"training loss: {ends}", *grid, *lines, class_="chart")


def series(round_: int) -> str:
    """The class of a round's line in the style sheet."""
    return f"s{(round_ - 1) % SERIES + 1}"


def running_mean(curve: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Each loss averaged with those before it, over a tenth of the curve but at least eight batches.

    A curve shorter than that is averaged over its half. The first steps, with nothing to average, are left out.

    >>> running_mean([(1, 2.0), (2, 4.0), (3, 8.0), (4, 2.0)])
    [(2, 3.0), (3, 6.0), (4, 5.0)]
    """
    window = max(1, min(max(8, len(curve) // 10), len(curve) // 2))
    losses = [loss for _, loss in curve]
    return [(curve[k][0], sum(losses[k + 1 - window : k + 1]) / window) for k in range(window - 1, len(curve))]


def thin(curve: Sequence[T]) -> list[T]:
    """At most `MOST_POINTS` of a curve, its last one among them."""
    step = math.ceil(len(curve) / MOST_POINTS)
    return [*curve[: -1 if curve else None : step], *curve[-1:]] if step > 1 else list(curve)


def _accuracy_range(moments: Sequence[Moment]) -> tuple[float, float]:
    """Whole tens around all intervals, at least thirty points apart, so that noise does not look large."""
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
    """Grid, axes, ticks and the names of the axes; that of the x axis stands at `foot`."""
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
    marks = [circle(point, 3.5, "mark after", _said(m)) for point, m in zip(centre, moments, strict=True)]
    return [*area, polyline(centre, "line after"), *marks]


def _anchor(x: Scale, moment: Moment) -> str:
    return "start" if moment.examples == x.low else "end" if moment.examples == x.high else "middle"


def _said(moment: Moment) -> str:
    report = moment.report
    return f"round {moment.round}, {whole(moment.examples)} examples: {percent(report)} ({interval(report)}; {counts(report)})"
