"""Bar, line and pie charts: at a glance, by value, and with a step of arithmetic."""

from __future__ import annotations

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
    """Slices of which the largest and the smallest stand out by at least a twelfth of the pie."""
    while True:
        count = between(rng, *SLICES)
        cuts = sorted(int(c) + 1 for c in rng.permutation(PIE_PARTS - 1)[: count - 1])
        values = tuple(b - a for a, b in zip([0, *cuts], [*cuts, PIE_PARTS], strict=True))
        ranked = sorted(values)
        if ranked[0] < ranked[1] and ranked[-2] < ranked[-1]:
            return Chart("pie", values, tuple(several(rng, COLOUR_NAMES, count)))


def line(rng: np.random.Generator, *, steady: bool = False) -> Chart:
    """Points with one highest and one lowest; if `steady`, only up or only down."""
    values = [int(v) for v in rng.permutation(TOP_VALUE + 1)[: between(rng, *POINTS)]]
    if steady:
        values.sort(reverse=coin(rng))
    return Chart("line", tuple(values), (pick(rng, COLOUR_NAMES),))


def _bar_extreme(rng: np.random.Generator, *, highest: bool) -> VisionDraft:
    chart = bars(rng)
    best = (max if highest else min)(chart.values)
    colour = chart.colours[chart.values.index(best)]
    word = "highest" if highest else "lowest"
    wordings = (f"What colour is the {word} bar?", f"Which bar is the {word}?", f"Name the colour of the {word} bar.")
    return VisionDraft(Scene(chart=chart), pick(rng, wordings), (), colour, COLOUR_NAMES)


def _bar_count(rng: np.random.Generator) -> VisionDraft:
    chart = bars(rng)
    wordings = ("How many bars are there?", "Count the bars.", "What is the number of bars?")
    return VisionDraft(Scene(chart=chart), pick(rng, wordings), (), str(len(chart.values)), NUMBERS)


def _pie_extreme(rng: np.random.Generator, *, largest: bool) -> VisionDraft:
    chart = pie(rng)
    best = (max if largest else min)(chart.values)
    colour = chart.colours[chart.values.index(best)]
    word = "largest" if largest else "smallest"
    wordings = (f"What colour is the {word} slice?", f"Which slice is the {word}?", f"Name the colour of the {word} slice.")  # fmt: skip
    return VisionDraft(Scene(chart=chart), pick(rng, wordings), (), colour, COLOUR_NAMES)


def _pie_count(rng: np.random.Generator) -> VisionDraft:
    chart = pie(rng)
    wordings = ("How many slices are there?", "Count the slices.", "What is the number of slices?")
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
            "highest": lambda rng: _bar_extreme(rng, highest=True),
            "lowest": lambda rng: _bar_extreme(rng, highest=False),
            "count": _bar_count,
        },
    ),
    VisionSkill(
        "pie_chart", "slices at a glance",
        {
            "largest": lambda rng: _pie_extreme(rng, largest=True),
            "smallest": lambda rng: _pie_extreme(rng, largest=False),
            "count": _pie_count,
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
