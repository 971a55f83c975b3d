"""The skills about bar, line and pie charts: extremes and counts, values, and simple arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from palaestra.tasks.procedural import between, pick
from palaestra.tasks.vision.drafts import NUMBERS, YES_NO, Skills, VisionDraft, coin, several
from palaestra.tasks.vision.scene import BARS, COLOR_NAMES, PIE_PARTS, POINTS, SLICES, TOP_VALUE, Chart, Scene

TRENDS = ("rising", "falling")
ORDINALS = ("first", "second", "third", "fourth", "fifth")
_MakeChart = Callable[[np.random.Generator], Chart]


def bars(rng: np.random.Generator) -> Chart:
    """Bars of different heights and colours."""
    count = between(rng, *BARS)
    values = tuple(int(v) + 1 for v in rng.permutation(TOP_VALUE)[:count])
    return Chart("bar", values, tuple(several(rng, COLOR_NAMES, count)))


def pie(rng: np.random.Generator) -> Chart:
    """Slices with a unique largest and a unique smallest one."""
    while True:
        count = between(rng, *SLICES)
        cuts = sorted(int(c) + 1 for c in rng.permutation(PIE_PARTS - 1)[: count - 1])
        values = tuple(b - a for a, b in zip([0, *cuts], [*cuts, PIE_PARTS], strict=True))
        ranked = sorted(values)
        if ranked[0] < ranked[1] and ranked[-2] < ranked[-1]:
            return Chart("pie", values, tuple(several(rng, COLOR_NAMES, count)))


def line(rng: np.random.Generator, *, steady: bool = False) -> Chart:
    """Points of different values; if `steady`, they only rise or only fall."""
    values = [int(v) for v in rng.permutation(TOP_VALUE + 1)[: between(rng, *POINTS)]]
    if steady:
        values.sort(reverse=coin(rng))
    return Chart("line", tuple(values), (pick(rng, COLOR_NAMES),))


def _extreme(rng: np.random.Generator, make: _MakeChart, noun: str, word: str) -> VisionDraft:
    chart = make(rng)
    best = max(chart.values) if word in ("highest", "largest") else min(chart.values)
    part = f"{word} {noun}"
    wordings = (f"What colour is the {part}?", f"Which {noun} is the {word}?", f"Name the colour of the {part}.")
    color = chart.colours[chart.values.index(best)]
    return VisionDraft(Scene(chart=chart), pick(rng, wordings), (), color, COLOR_NAMES)


def _count(rng: np.random.Generator, make: _MakeChart, noun: str) -> VisionDraft:
    chart = make(rng)
    wordings = (f"How many {noun} are there?", f"Count the {noun}.", f"What is the number of {noun}?")
    return VisionDraft(Scene(chart=chart), pick(rng, wordings), (), str(len(chart.values)), NUMBERS)


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
    if add:
        question, total = f"What do the {a} bar and the {b} bar add up to?", f"{m}+{n}={m + n}"
    else:
        question, total = f"How much higher is the {a} bar than the {b} bar?", f"{m}-{n}={m - n}"
    steps = (f"{a}: {m}", f"{b}: {n}", total)
    return VisionDraft(Scene(chart=chart), question, steps, total.partition("=")[2], NUMBERS)


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


CHARTS_SEEN: Skills = {
    "bar_chart": {
        **{word: partial(_extreme, make=bars, noun="bar", word=word) for word in ("highest", "lowest")},
        "count": partial(_count, make=bars, noun="bars"),
    },
    "pie_chart": {
        **{word: partial(_extreme, make=pie, noun="slice", word=word) for word in ("largest", "smallest")},
        "count": partial(_count, make=pie, noun="slices"),
        "half": _pie_half,
    },
}
CHARTS_READ: Skills = {
    "bar_values": {
        "value": _bar_value,
        "sum": partial(_bar_arithmetic, add=True),
        "difference": partial(_bar_arithmetic, add=False),
    },
    "line_chart": {"trend": _trend, "peak": _peak, "point": _point},
}
