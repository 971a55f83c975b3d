"""SVG elements, scales, and pictures of intervals in table rows. Colors and fonts are classes of the style sheet."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from palaestra.core.records import Report
from palaestra.core.statistics import Mean
from palaestra.report.formatting import format_signed, interval, percent, points_interval

BAR_WIDTH = 220
"""Width of a picture in a table row."""

Point = tuple[float, float]
EMPTY = Markup("")
Legend = tuple[tuple[str, str], ...]
"""Marks with their meanings. A mark is a class of the style sheet (`s1`, `dot s2`, `block s3`), or a drawing."""


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
    # A page has thousands of elements; joining plain texts is faster than formatting `Markup`.
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(value) if isinstance(value, str) else number(value)}"'
        for name, value in attributes.items()
    )
    return Markup(f"<{tag}{written}>{''.join(escape(child) for child in children)}</{tag}>")


def drawing(width: float, height: float, label: str, *children: str, class_: str = "", **more: str) -> Markup:
    """Build a picture that scales with its container. `label` is the text for screen readers."""
    box = f"0 0 {number(width)} {number(height)}"
    return element(
        "svg", *children, viewBox=box, width=width, height=height, role="img", aria_label=label, class_=class_, **more
    )


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure of a page, which can also be saved as a file.

    Arguments:
        label: what it shows, for screen readers.
        legend: explained below the figure; a page writes it as text.
        table: the values behind it, which follow it in a page.
        data: its series as JSON, for the values that the viewer shows under the pointer.
    """

    width: float
    height: float
    label: str
    content: Markup
    class_: str = "chart"
    legend: Legend = ()
    table: Markup = EMPTY
    data: str = ""

    def __html__(self) -> str:
        more = {"data_chart": self.data} if self.data else {}
        return drawing(self.width, self.height, self.label, self.content, class_=self.class_, **more) + self.table


def text(
    x: float, y: float, content: str, class_: str = "", anchor: str = "start", **attributes: str | float
) -> Markup:
    """Draw text at a point; `anchor` is start, middle or end."""
    return element("text", content, x=x, y=y, text_anchor=anchor, class_=class_, **attributes)


def line(start: Point, end: Point, class_: str) -> Markup:
    return element("line", x1=start[0], y1=start[1], x2=end[0], y2=end[1], class_=class_)


def circle(center: Point, radius: float, class_: str, title: str = "") -> Markup:
    hint = (element("title", title),) if title else ()
    return element("circle", *hint, cx=center[0], cy=center[1], r=radius, class_=class_)


def polyline(points: Sequence[Point], class_: str, dashes: str = "", tag: str = "polyline") -> Markup:
    style = {"stroke_dasharray": dashes} if dashes else {}
    return element(tag, points=" ".join(f"{number(x)},{number(y)}" for x, y in points), class_=class_, **style)


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values from `low` to `high` to coordinates from `start` to `end`. On a logarithmic scale `low` is above 0.

    >>> Scale(0, 100, 10, 210)(50)
    110.0
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        if self.log:
            return Scale(math.log(self.low), math.log(self.high), self.start, self.end)(math.log(value))
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


def log_ticks(low: float, high: float) -> list[float]:
    """Return round values from `low` to `high` on a logarithmic scale; those of `ticks` if the range is narrow.

    >>> log_ticks(0.03, 8)
    [0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0]
    """
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    if high < 5 * low:
        return ticks(low, high)
    steps = (1, 2, 5) if len(decades) <= 4 else (1,)
    values = [float(f"{step}e{k}") for k in decades[:: -(-len(decades) // 8)] for step in steps]
    return [value for value in values if low <= value <= high]


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
            parts += _draw_interval(_RATES, y, report.low, report.high, name)
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
    bounds = _draw_interval(x, y, mean.low, mean.high, "mean") if mean.count > 1 else []
    return [*bounds, polyline(diamond, "mark mean", tag="polygon")]


def _draw_interval(x: Scale, y: float, low: float, high: float, class_: str) -> list[Markup]:
    """Draw a horizontal interval. An end outside the scale is cut and has no end mark."""
    ends = [(x.clamp(end), x.low <= end <= x.high) for end in (low, high)]
    caps = [line((end, y - 3), (end, y + 3), f"whisker {class_}") for end, inside in ends if inside]
    return [line((ends[0][0], y), (ends[1][0], y), f"whisker {class_}"), *caps]
