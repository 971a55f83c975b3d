"""Small pictures for a row of a table: rates with their intervals on a scale from 0 to 100 %."""

from __future__ import annotations

from markupsafe import Markup

from palaestra.core.records import Report
from palaestra.report.figures import interval, percent
from palaestra.report.svg import Scale, circle, drawing, line, text

WIDTH = 220
_X = Scale(0, 1, 8, WIDTH - 8)


def dumbbell(before: Report | None, after: Report | None) -> Markup:
    """Two rates above each other: before as a ring, after as a disc, each with its whiskers."""
    label = f"before {percent(before)} ({interval(before)}), after {percent(after)} ({interval(after)})"
    marks = [*_grid(28), *_rate(before, 9, "before"), *_rate(after, 19, "after")]
    return drawing(WIDTH, 28, label, *marks, class_="inline")


def interval_bar(report: Report) -> Markup:
    """One rate with its whiskers."""
    return drawing(
        WIDTH, 18, f"{percent(report)} ({interval(report)})", *_grid(18), *_rate(report, 9, "after"), class_="inline"
    )


def axis() -> Markup:
    """The scale of the pictures above, for the head of their column."""
    labels = [
        text(_X(share), 11, f"{100 * share:.0f}{' %' if share == 1 else ''}", "tick", anchor)
        for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end"))
    ]
    return drawing(WIDTH, 14, "scale from 0 to 100 %", *labels, class_="inline")


def _grid(height: float) -> list[Markup]:
    return [line((_X(share), 0), (_X(share), height), "grid") for share in (0.0, 0.25, 0.5, 0.75, 1.0)]


def _rate(report: Report | None, y: float, class_: str) -> list[Markup]:
    if report is None or report.accuracy is None:
        return []
    low, high = _X(report.low), _X(report.high)
    return [
        line((low, y), (high, y), f"whisker {class_}"),
        line((low, y - 3), (low, y + 3), f"whisker {class_}"),
        line((high, y - 3), (high, y + 3), f"whisker {class_}"),
        circle((_X(report.accuracy), y), 4, f"mark {class_}"),
    ]
