"""Pictures of a study: the gain of every run beside its arm's mean, and differences between arms."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from markupsafe import Markup

from palaestra.core.statistics import Mean
from palaestra.recipes.teach.study import StudyArm
from palaestra.report.figures import shorten, signed, signed_interval
from palaestra.report.svg import Point, Scale, circle, drawing, element, line, polygon, polyline, text, ticks

WIDTH, LABEL, RIGHT, ROW, TOP, FOOT = 960, 210, 20, 52, 10, 44
CLOSE, STEP, LEVELS = 9.0, 8.0, 3
"""Dots nearer than this are set apart by so much, up to so many levels."""
BAR = 200
"""Width of the picture of a difference in a row of a table."""
SERIES = 6
"""Colours of the style sheet; further seeds begin anew."""


def series(place: int) -> str:
    """The class of a seed's marks in the style sheet.

    >>> series(0), series(6)
    ('s1', 's1')
    """
    return f"s{place % SERIES + 1}"


def seed_points(
    rows: Sequence[StudyArm], seeds: Sequence[int], address: Callable[[StudyArm, int], str]
) -> Markup | None:
    """A line an arm: a dot for each seed's gain, joined to the same seed in the other arms; below it the mean.

    Arguments:
        address: of a run's own report, which its dot leads to; empty where there is none.
    """
    values = [gain for row in rows for gain in row.gains.values()]
    if not values:
        return None
    low, high = _reach(values, [row.gain for row in rows], room=max(values) - min(values))
    x = Scale(low, high, LABEL, WIDTH - RIGHT)
    bottom = TOP + ROW * len(rows)
    height = bottom + FOOT
    parts: list[Markup] = []
    for value in ticks(low, high, 7):
        parts += [
            line((x(value), TOP), (x(value), bottom), "axis" if value == 0 else "grid"),
            text(x(value), bottom + 16, _tick(value), "tick", "middle"),
        ]
    parts.append(
        text((LABEL + WIDTH - RIGHT) / 2, height - 8, "gain in points on the test problems", "axis-name", "middle")
    )
    levels = [TOP + ROW * place + 22.0 for place in range(len(rows))]
    dots = [_places(row, x, y) for row, y in zip(rows, levels, strict=True)]
    for place, seed in enumerate(seeds):
        joined = [found[seed] for found in dots if seed in found]
        parts.append(polyline(joined, f"line thin {series(place)}"))
    for row, found, y in zip(rows, dots, levels, strict=True):
        parts.append(element("text", element("title", row.name), shorten(row.name, 28), x=0, y=y + 4, class_="label"))
        parts += _mean(row.gain, x, y + 14)
        for place, seed in enumerate(seeds):
            if seed in found:
                parts.append(_dot(row, seed, found[seed], series(place), address(row, seed)))
    said = "; ".join(f"{row.name} {signed(row.gain.value)}" for row in rows if row.gain.count)
    return drawing(WIDTH, height, f"gains in points, means over the seeds: {said}", *parts, class_="chart wide")


def difference_scale(differences: Sequence[Mean]) -> Scale:
    """One scale for all pictures of differences, with 0 in it."""
    # Here the intervals are what is looked at, so the typical one is given its room.
    halves = [(one.high - one.low) / 2 for one in differences if one.count > 1]
    values = [0.0, *(one.value for one in differences)]
    low, high = _reach(values, differences, room=1.6 * median(halves) if halves else 0.0)
    return Scale(low, high, 8, BAR - 8)


def difference_bar(difference: Mean, x: Scale) -> Markup:
    """A mean difference with its interval, and where 0 is."""
    label = f"{signed(difference.value)} ({signed_interval(difference)})"
    return drawing(BAR, 22, label, line((x(0), 0), (x(0), 22), "axis"), *_mean(difference, x, 11), class_="inline")


def difference_axis(x: Scale) -> Markup:
    """The scale of those pictures, for the head of their column."""
    labels = [text(x(value), 11, _tick(value), "tick", "middle") for value in ticks(x.low, x.high, 4)]
    return drawing(BAR, 14, f"scale from {signed(x.low)} to {signed(x.high)} points", *labels, class_="inline")


def _reach(values: Sequence[float], means: Sequence[Mean], room: float) -> tuple[float, float]:
    """From the lowest to the highest value, and `room` beyond them for the intervals.

    The interval of two seeds can be many times as wide as everything else: it is cut at the edge.
    """
    low, high, room = min(values), max(values), max(1.0, room)
    ends = [(one.low, one.high) for one in means if one.count > 1]
    low = max(low - room, min([low, *(end for end, _ in ends)]))
    high = min(high + room, max([high, *(end for _, end in ends)]))
    pad = 0.04 * max(1.0, high - low)
    return low - pad, high + pad


def _places(row: StudyArm, x: Scale, y: float) -> dict[int, Point]:
    """Where the dots of an arm go, by seed: at their gains, and above each other where they would hide one another."""
    found: dict[int, Point] = {}
    last, level = -math.inf, 0
    for seed, gain in sorted(row.gains.items(), key=lambda item: (item[1], item[0])):
        level = (level + 1) % LEVELS if x(gain) - last < CLOSE else 0
        last = x(gain)
        found[seed] = (last, y - STEP * level)
    return found


def _dot(row: StudyArm, seed: int, place: Point, class_: str, address: str) -> Markup:
    run: Mapping[str, object] = row.runs[seed] or {}
    said = f"{row.name}, seed {seed}: {signed(row.gains[seed])}"
    if isinstance(low := run.get("gain_low"), float) and isinstance(high := run.get("gain_high"), float):
        said += f" ({signed(low)} to {signed(high)}; {run.get('problems')} problems)"
    mark = circle(place, 4.5, f"mark {class_}", said)
    return element("a", mark, href=address) if address else mark


def _mean(mean: Mean, x: Scale, y: float) -> list[Markup]:
    """A diamond at the mean, and whiskers as far as the scale reaches; one that goes on has no cap."""
    if not mean.count:
        return []
    parts: list[Markup] = []
    if mean.count > 1 and math.isfinite(mean.low):
        ends = [(x(min(max(end, x.low), x.high)), x.low <= end <= x.high) for end in (mean.low, mean.high)]
        parts.append(line((ends[0][0], y), (ends[1][0], y), "whisker mean"))
        parts += [line((end, y - 4), (end, y + 4), "whisker mean") for end, inside in ends if inside]
    middle = x(mean.value)
    parts.append(polygon([(middle - 6, y), (middle, y - 6), (middle + 6, y), (middle, y + 6)], "mark mean"))
    return parts


def _tick(value: float) -> str:
    return "0" if value == 0 else f"{value:+g}".replace("-", "−")
