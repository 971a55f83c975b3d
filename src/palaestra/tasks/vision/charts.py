"""The skills about bar, line and pie charts: extremes and counts, values, and simple arithmetic."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from palaestra.tasks.sampling import between, pick
from palaestra.tasks.vision.scene import (
    BARS,
    COLOUR_NAMES,
    NUMBERS,
    PIE_PARTS,
    POINTS,
    SLICES,
    TOP_VALUE,
    YES_NO,
    Chart,
    Drawer,
    Scene,
    VisionDraft,
    VisionSkill,
    coin,
    number,
    several,
)

TRENDS = ("rising", "falling")
ORDINALS = ("first", "second", "third", "fourth", "fifth")


def bars(rng: np.random.Generator) -> Chart:
    """Bars of different heights and colours."""
    count = between(rng, *BARS)
    values = tuple(int(v) + 1 for v in rng.permutation(TOP_VALUE)[:count])
    return Chart("bar", values, tuple(several(rng, COLOUR_NAMES, count)))


def pie(rng: np.random.Generator) -> Chart:
    """Slices with a unique largest and a unique smallest one."""
    while True:
        count = between(rng, *SLICES)
        cuts = sorted(int(c) + 1 for c in rng.permutation(PIE_PARTS - 1)[: count - 1])
        values = tuple(b - a for a, b in zip([0, *cuts], [*cuts, PIE_PARTS], strict=True))
        ranked = sorted(values)
        if ranked[0] < ranked[1] and ranked[-2] < ranked[-1]:
            return Chart("pie", values, tuple(several(rng, COLOUR_NAMES, count)))


def line(rng: np.random.Generator, *, steady: bool = False) -> Chart:
    """Points of different values; if `steady`, they only rise or only fall."""
    values = [int(v) for v in rng.permutation(TOP_VALUE + 1)[: between(rng, *POINTS)]]
    if steady:
        values.sort(reverse=coin(rng))
    return Chart("line", tuple(values), (pick(rng, COLOUR_NAMES),))


def _extreme(make: Callable[[np.random.Generator], Chart], noun: str, word: str) -> Drawer:
    choose = max if word in ("highest", "largest") else min

    def draw(rng: np.random.Generator) -> VisionDraft:
        chart = make(rng)
        colour = chart.colours[chart.values.index(choose(chart.values))]
        wordings = (
            f"What colour is the {word} {noun}?",
            f"Which {noun} is the {word}?",
            f"Name the colour of the {word} {noun}.",
        )
        return VisionDraft(Scene(chart=chart), pick(rng, wordings), (), colour, COLOUR_NAMES)

    return draw


def _count(make: Callable[[np.random.Generator], Chart], noun: str) -> Drawer:
    wordings = (f"How many {noun} are there?", f"Count the {noun}.", f"What is the number of {noun}?")

    def draw(rng: np.random.Generator) -> VisionDraft:
        chart = make(rng)
        return VisionDraft(Scene(chart=chart), pick(rng, wordings), (), str(len(chart.values)), NUMBERS)

    return draw


def _pie_half(rng: np.random.Generator) -> VisionDraft:
    more = coin(rng)
    while True:
        chart = pie(rng)
        at = between(rng, 0, len(chart.values) - 1)
        if chart.values[at] != PIE_PARTS // 2 and (chart.values[at] > PIE_PARTS // 2) == more:
            break
    question = f"Is the {chart.colours[at]} slice more than half of the pie?"
    return VisionDraft(Scene(chart=chart), question, (), YES_NO[not more], YES_NO)


def _bar_value(rng: np.random.Generator) -> VisionDraft:
    chart = bars(rng)
    at = between(rng, 0, len(chart.values) - 1)
    wordings = (f"How high is the {chart.colours[at]} bar?", f"What is the value of the {chart.colours[at]} bar?")
    return VisionDraft(Scene(chart=chart), pick(rng, wordings), (), str(chart.values[at]), NUMBERS)


def _bar_arithmetic(rng: np.random.Generator, *, add: bool) -> VisionDraft:
    chart = bars(rng)
    i, j = (int(k) for k in rng.permutation(len(chart.values))[:2])
    if not add and chart.values[i] < chart.values[j]:
        i, j = j, i
    (a, m), (b, n) = ((chart.colours[k], chart.values[k]) for k in (i, j))
    steps = (number(m, a), number(n, b))
    if add:
        question = f"What do the {a} bar and the {b} bar add up to?"
        return VisionDraft(Scene(chart=chart), question, (*steps, f"{m}+{n}={m + n}"), str(m + n), NUMBERS)
    question = f"How much higher is the {a} bar than the {b} bar?"
    return VisionDraft(Scene(chart=chart), question, (*steps, f"{m}-{n}={m - n}"), str(m - n), NUMBERS)


def line_values(chart: Chart) -> str:
    return "values: " + ", ".join(map(str, chart.values))


def _trend(rng: np.random.Generator) -> VisionDraft:
    chart = line(rng, steady=True)
    wordings = ("Is the line rising or falling?", "Does the line go up or down, rising or falling?")
    return VisionDraft(Scene(chart=chart), pick(rng, wordings), (), TRENDS[chart.values[0] > chart.values[-1]], TRENDS)


def _peak(rng: np.random.Generator) -> VisionDraft:
    chart = line(rng)
    word, best = ("highest", max(chart.values)) if coin(rng) else ("lowest", min(chart.values))
    steps = (line_values(chart), f"{word}: {best}")
    question = f"Which point of the line is the {word}, counted from the left?"
    return VisionDraft(Scene(chart=chart), question, steps, ORDINALS[chart.values.index(best)], ORDINALS)


def _point(rng: np.random.Generator) -> VisionDraft:
    chart = line(rng)
    at = between(rng, 0, len(chart.values) - 1)
    question = f"What is the value of the {ORDINALS[at]} point of the line?"
    return VisionDraft(Scene(chart=chart), question, (line_values(chart),), str(chart.values[at]), NUMBERS)


CHARTS_SEEN = (
    VisionSkill(
        "bar_chart", "bars at a glance",
        {
            "highest": _extreme(bars, "bar", "highest"),
            "lowest": _extreme(bars, "bar", "lowest"),
            "count": _count(bars, "bars"),
        },
    ),
    VisionSkill(
        "pie_chart", "slices at a glance",
        {
            "largest": _extreme(pie, "slice", "largest"),
            "smallest": _extreme(pie, "slice", "smallest"),
            "count": _count(pie, "slices"),
            "half": _pie_half,
        },
    ),
)  # fmt: skip
CHARTS_READ = (
    VisionSkill(
        "bar_values", "bars by their values",
        {
            "value": _bar_value,
            "sum": lambda rng: _bar_arithmetic(rng, add=True),
            "difference": lambda rng: _bar_arithmetic(rng, add=False),
        },
    ),
    VisionSkill("line_chart", "a line and its points", {"trend": _trend, "peak": _peak, "point": _point}),
)  # fmt: skip
