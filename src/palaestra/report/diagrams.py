"""Diagrams as SVG: the skill tree and the allocation of a teach run, the arms of a study."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from markupsafe import Markup

from palaestra.core.records import Report
from palaestra.core.statistics import Mean
from palaestra.recipes.teach.study import StudyArm
from palaestra.report.formatting import (
    counts,
    format_signed,
    format_signed_interval,
    interval,
    percent,
    plural,
    shorten,
    whole,
)
from palaestra.report.svg import Point, Scale, circle, drawing, element, line, number, polygon, polyline, text, ticks

Allocation = Mapping[int, Mapping[tuple[str, str], int]]
"""Examples by round, and in it by skill and subskill."""

ALLOCATION_LABEL, ALLOCATION_TOTAL, ALLOCATION_ROW = 150, 46, 22


@dataclass(frozen=True, slots=True)
class AllocationRow:
    """The examples of a subskill by round, in the order of the rounds."""

    skill: str
    subskill: str
    by_round: tuple[int, ...]
    heat: tuple[int, ...]
    """Each of `by_round` as a step from 0 (none) to 5 (the most of all)."""

    @property
    def total(self) -> int:
        return sum(self.by_round)


def count_examples(allocation: Allocation, skill: str, subskill: str | None = None) -> int:
    """Examples of a skill (of one of its subskills, if given) over all rounds."""
    return sum(
        n for parts in allocation.values() for (s, p), n in parts.items() if s == skill and subskill in (None, p)
    )


def allocation_rows(allocation: Allocation) -> list[AllocationRow]:
    """A row for each subskill that was given an example."""
    keys = sorted({key for parts in allocation.values() for key in parts})
    table = {key: tuple(allocation[round_].get(key, 0) for round_ in sorted(allocation)) for key in keys}
    most = max((n for row in table.values() for n in row), default=1)
    return [AllocationRow(*key, row, tuple(-(-5 * n // most) for n in row)) for key, row in table.items()]


def allocation_bars(allocation: Allocation, skills: Sequence[str]) -> Markup:
    """A bar for each skill and round, as long as its examples are many, cut at its subskills."""
    rounds = sorted(allocation)
    sums = {(skill, r): sum(n for (s, _), n in allocation[r].items() if s == skill) for skill in skills for r in rounds}
    column_width = 130 if len(rounds) <= 5 else 84
    unit = (column_width - 34) / max([1, *sums.values()])
    width, height = (
        ALLOCATION_LABEL + column_width * len(rounds) + ALLOCATION_TOTAL,
        26 + ALLOCATION_ROW * len(skills) + 24,
    )
    parts = [text(width - 4, 15, "all", "head", "end")]
    for column, round_ in enumerate(rounds):
        left = ALLOCATION_LABEL + column_width * column
        parts += [
            text(left, 15, f"round {round_}", "head"),
            line((left, 22), (left, 26 + ALLOCATION_ROW * len(skills)), "axis"),
        ]
        parts.append(text(left, height - 6, plural(sum(allocation[round_].values()), "example"), "tick"))
    parts.append(text(width - 4, height - 6, str(sum(sums.values())), "tick", "end"))
    for row, skill in enumerate(skills):
        top = 26 + ALLOCATION_ROW * row
        parts.append(text(0, top + 15, shorten(skill or "no skill", 20), "label"))
        for column, round_ in enumerate(rounds):
            x, count = ALLOCATION_LABEL + column_width * column + 1.0, sums[skill, round_]
            inside = sorted((p, n) for (s, p), n in allocation[round_].items() if s == skill)
            for k, (subskill, n) in enumerate(inside):
                hint = element(
                    "title", f"{skill}: {subskill or 'no subskill'}: {plural(n, 'example')} in round {round_}"
                )
                # A gap of one unit between neighbours shows where a subskill ends.
                size = {"x": x, "y": top + 4.0, "width": max(0.8, n * unit - 1), "height": ALLOCATION_ROW - 8.0}
                parts.append(element("rect", hint, class_=f"part{k % 2}", **size))
                x += n * unit
            parts.append(text(x + 4, top + 15, str(count) if count else "·", "tick"))
        parts.append(text(width - 4, top + 15, str(sum(sums[skill, r] for r in rounds)), "label", "end"))
    label = "examples by skill and round: " + "; ".join(
        f"{skill} {', '.join(str(sums[skill, r]) for r in rounds)}" for skill in skills
    )
    return drawing(width, height, label, *parts, class_="chart wide")


TREE_ROW, TREE_GAP, TREE_HEAD, RADIUS = 20.0, 12.0, 34.0, 9.0
ROOT, SKILL, FORK, LEAF = 22.0, 66.0, 222.0, 272.0
TREE_WIDTH = 670
COLUMNS = {"accuracy": 470.0, "95 % interval": 548.0, "right": 594.0, "examples": 662.0}


@dataclass(frozen=True, slots=True)
class SkillNode:
    """A subskill, or a skill with its subskills below it.

    Arguments:
        report: its validation accuracy at the end; `None` where no problem was asked.
        first_round: the round in which it first got data; `None` where it never did.
    """

    name: str
    report: Report | None
    examples: int
    first_round: int | None
    children: tuple[SkillNode, ...] = ()


def build_tree(report: Report | None, allocation: Allocation) -> tuple[SkillNode, ...]:
    """A node for each skill and subskill that was asked about or given data."""
    skills = _slices(report)
    given = {key for parts in allocation.values() for key in parts}
    nodes = []
    for skill in sorted({*skills, *(s for s, _ in given)}):
        asked = _slices(skills.get(skill))
        names = sorted({*asked, *(p for s, p in given if s == skill)} - {""})
        leaves = tuple(
            SkillNode(
                name,
                asked.get(name),
                count_examples(allocation, skill, name),
                _find_first_round(allocation, skill, name),
            )
            for name in names
        )
        nodes.append(
            SkillNode(
                skill,
                skills.get(skill),
                count_examples(allocation, skill),
                _find_first_round(allocation, skill),
                leaves,
            )
        )
    return tuple(nodes)


def draw_tree(nodes: Sequence[SkillNode], root: str) -> Markup:
    """The picture of the tree of `nodes` below `root`."""
    largest = max([1, *(node.examples for node in nodes)])
    name = f"{shorten(root, 30)} · {plural(sum(node.examples for node in nodes), 'example')}"
    # The name of the root stands upright beside the tree: a small tree is given room for it.
    natural = sum(_height(node) + TREE_GAP for node in nodes)
    padding = max(0.0, 7.6 * len(name) - natural) / 2
    trunk, branches, marks = [], [], []
    y, centre = TREE_HEAD + padding, TREE_HEAD + padding + (natural - TREE_GAP) / 2
    for node in nodes:
        middle = y + _height(node) / 2
        first = middle - (len(node.children) - 1) * TREE_ROW / 2
        trunk.append(_draw_branch((ROOT, centre), (SKILL, middle), _width(node), "branch"))
        branches += _draw_branches(node, middle, first)
        marks += _draw_skill(node, middle, largest)
        for k, leaf in enumerate(node.children):
            marks += _draw_leaf(node, leaf, first + k * TREE_ROW, largest)
        y += _height(node) + TREE_GAP
    stem = [
        element("rect", element("title", name), x=ROOT - 7, y=centre - 7, width=14, height=14, rx=3, class_="root"),
        text(10, centre, name, "skill-name", "middle", transform=f"rotate(-90 10 {number(centre)})"),
    ]
    head = [
        *(text(x, 14, title, "head", "end") for title, x in COLUMNS.items()),
        text(SKILL, 14, "skill", "head"),
        text(LEAF + 12, 14, "subskill", "head"),
        line((0, 21), (TREE_WIDTH, 21), "grid"),
    ]
    leaves = sum(len(node.children) for node in nodes)
    label = f"skill tree with {plural(len(nodes), 'skill')} and {plural(leaves, 'subskill')}"
    return drawing(TREE_WIDTH, y + padding, label, *head, *trunk, *branches, *stem, *marks, class_="chart tree")


def area_legend(nodes: Sequence[SkillNode]) -> Markup:
    """Circles with the number of examples that their area stands for."""
    largest = max([1, *(node.examples for node in nodes)])
    parts, x = [], 12.0
    for count in sorted({1, max(1, largest // 4), largest}):
        radius = _radius(count, largest)
        parts += [circle((x, 12), radius, "node plain"), text(x + radius + 4, 16, whole(count), "tick")]
        x += 2 * radius + 30
    return drawing(x, 24, f"area: from 1 to {largest} examples", *parts, class_="inline")


def accuracy_class(report: Report | None) -> str:
    """The class of an accuracy in the style sheet: five steps of 20 points, or unknown.

    >>> accuracy_class(Report("a", 0.2, 0, 1, 5, 1)), accuracy_class(Report("a", 1.0, 0, 1, 5, 5)), accuracy_class(None)
    ('a1', 'a4', 'unknown')
    """
    if report is None or report.accuracy is None:
        return "unknown"
    return f"a{min(4, int(5 * report.accuracy + 1e-9))}"


def _slices(report: Report | None) -> Mapping[str, Report]:
    return {part.name: part for part in report.slices} if report is not None else {}


def _find_first_round(allocation: Allocation, skill: str, subskill: str | None = None) -> int | None:
    rounds = [
        r
        for r, parts in allocation.items()
        for (s, p), n in parts.items()
        if n and s == skill and subskill in (None, p)
    ]
    return min(rounds, default=None)


def _height(node: SkillNode) -> float:
    """What a skill takes: a row for each subskill, and two at least for its own two lines."""
    return max(2, len(node.children)) * TREE_ROW


def _draw_branches(node: SkillNode, middle: float, first: float) -> list[Markup]:
    """What leads from a skill to its subskills."""
    if not node.children:
        return []
    parts = [_draw_branch((SKILL, middle), (FORK, middle), _width(node), "branch")]
    for k, leaf in enumerate(node.children):
        kind = "branch" if leaf.examples else "branch closed"
        parts.append(_draw_branch((FORK, middle), (LEAF, first + k * TREE_ROW), _width(leaf), kind))
    return parts


def _draw_skill(node: SkillNode, y: float, largest: int) -> list[Markup]:
    report = node.report
    figures = f"{percent(report)} [{interval(report)}]" if report is not None else "not asked"
    x = SKILL + RADIUS + 5
    return [
        circle(
            (SKILL, y),
            _radius(node.examples, largest),
            f"node {accuracy_class(report)}",
            _describe_node(node.name, node),
        ),
        text(x, y - 5, shorten(node.name or "no skill", 20), "skill-name halo"),
        text(x, y + 13, f"{figures.replace(' %', '')} · {node.examples} ex.", "tick halo"),
    ]


def _draw_leaf(skill: SkillNode, leaf: SkillNode, y: float, largest: int) -> list[Markup]:
    report = leaf.report
    row = {
        "accuracy": percent(report),
        "95 % interval": interval(report).replace(" %", ""),
        "right": "–" if report is None else f"{report.correct}/{report.count}",
        "examples": str(leaf.examples),
    }
    cells = [
        text(COLUMNS[name], y + 4, value, "tick" if name != "accuracy" else "label", "end")
        for name, value in row.items()
    ]
    parts = [
        circle(
            (LEAF, y),
            _radius(leaf.examples, largest),
            f"node {accuracy_class(report)}",
            _describe_node(f"{skill.name}: {leaf.name}", leaf),
        ),
        *_draw_round(leaf.first_round, y),
        text(LEAF + 14, y + 4, shorten(leaf.name, 20), "label" if leaf.examples else "label faint"),
        *cells,
    ]
    return [element("g", *parts, data_skill=skill.name, data_subskill=leaf.name)]


def _draw_round(round_: int | None, y: float) -> list[Markup]:
    if round_ is None:
        return []
    width = 7.0 + 6.0 * len(str(round_))
    x = LEAF - 19 - width / 2
    return [
        element("rect", x=x, y=y - 6.5, width=width, height=13, rx=6.5, class_="round"),
        text(x + width / 2, y + 3.5, str(round_), "round-name", "middle"),
    ]


def _draw_branch(start: Point, end: Point, width: float, class_: str) -> Markup:
    bend = (start[0] + end[0]) / 2
    path = " ".join(
        number(v) if not isinstance(v, str) else v for v in ("M", *start, "C", bend, start[1], bend, end[1], *end)
    )
    return element("path", d=path, class_=class_, stroke_width=width)


def _radius(examples: int, largest: int) -> float:
    """The area is proportional to the examples; what got none is a dot."""
    return max(2.2, RADIUS * math.sqrt(examples / largest))


def _width(node: SkillNode) -> float:
    return 1.0 + min(2.0, node.examples / 20)


def _describe_node(name: str, node: SkillNode) -> str:
    data = (
        "no examples"
        if node.first_round is None
        else f"{plural(node.examples, 'example')}, the first in round {node.first_round}"
    )
    return f"{name}: {percent(node.report)} ({interval(node.report)}; {counts(node.report)}); {data}"


ARM_WIDTH, ARM_LABEL, ARM_RIGHT, ARM_ROW, ARM_TOP, ARM_FOOT = 960, 210, 20, 52, 10, 44
CLOSE, STEP, LEVELS = 9.0, 8.0, 3
"""Dots nearer than this are set apart by so much, up to so many levels."""
BAR = 200
"""Width of the picture of a difference in a row of a table."""
SERIES = 6
"""Colours of the style sheet; further seeds begin anew."""


def seed_series(place: int) -> str:
    """The class of a seed's marks in the style sheet.

    >>> seed_series(0), seed_series(6)
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
    low, high = _find_range(values, [row.gain for row in rows], room=max(values) - min(values))
    x = Scale(low, high, ARM_LABEL, ARM_WIDTH - ARM_RIGHT)
    bottom = ARM_TOP + ARM_ROW * len(rows)
    height = bottom + ARM_FOOT
    parts: list[Markup] = []
    for value in ticks(low, high, 7):
        parts += [
            line((x(value), ARM_TOP), (x(value), bottom), "axis" if value == 0 else "grid"),
            text(x(value), bottom + 16, _format_tick(value), "tick", "middle"),
        ]
    parts.append(
        text(
            (ARM_LABEL + ARM_WIDTH - ARM_RIGHT) / 2,
            height - 8,
            "gain in points on the test problems",
            "axis-name",
            "middle",
        )
    )
    levels = [ARM_TOP + ARM_ROW * place + 22.0 for place in range(len(rows))]
    dots = [_place_dots(row, x, y) for row, y in zip(rows, levels, strict=True)]
    for place, seed in enumerate(seeds):
        joined = [places[seed] for places in dots if seed in places]
        parts.append(polyline(joined, f"line thin {seed_series(place)}"))
    for row, places, y in zip(rows, dots, levels, strict=True):
        parts.append(element("text", element("title", row.name), shorten(row.name, 28), x=0, y=y + 4, class_="label"))
        parts += _draw_mean(row.gain, x, y + 14)
        for place, seed in enumerate(seeds):
            if seed in places:
                parts.append(_draw_dot(row, seed, places[seed], seed_series(place), address(row, seed)))
    means = "; ".join(f"{row.name} {format_signed(row.gain.value)}" for row in rows if row.gain.count)
    return drawing(ARM_WIDTH, height, f"gains in points, means over the seeds: {means}", *parts, class_="chart wide")


def difference_scale(differences: Sequence[Mean]) -> Scale:
    """One scale for all pictures of differences, with 0 in it."""
    # Here the intervals are what is looked at, so the typical one is given its room.
    halves = [(mean.high - mean.low) / 2 for mean in differences if mean.count > 1]
    values = [0.0, *(mean.value for mean in differences)]
    low, high = _find_range(values, differences, room=1.6 * median(halves) if halves else 0.0)
    return Scale(low, high, 8, BAR - 8)


def difference_bar(difference: Mean, x: Scale) -> Markup:
    """A mean difference with its interval, and where 0 is."""
    label = f"{format_signed(difference.value)} ({format_signed_interval(difference)})"
    return drawing(BAR, 22, label, line((x(0), 0), (x(0), 22), "axis"), *_draw_mean(difference, x, 11), class_="inline")


def difference_axis(x: Scale) -> Markup:
    """The scale of those pictures, for the head of their column."""
    labels = [text(x(value), 11, _format_tick(value), "tick", "middle") for value in ticks(x.low, x.high, 4)]
    return drawing(
        BAR, 14, f"scale from {format_signed(x.low)} to {format_signed(x.high)} points", *labels, class_="inline"
    )


def _find_range(values: Sequence[float], means: Sequence[Mean], room: float) -> tuple[float, float]:
    """From the lowest to the highest value, and `room` beyond them for the intervals.

    The interval of two seeds can be many times as wide as everything else: it is cut at the edge.
    """
    low, high, room = min(values), max(values), max(1.0, room)
    ends = [(mean.low, mean.high) for mean in means if mean.count > 1]
    low = max(low - room, min([low, *(end for end, _ in ends)]))
    high = min(high + room, max([high, *(end for _, end in ends)]))
    pad = 0.04 * max(1.0, high - low)
    return low - pad, high + pad


def _place_dots(row: StudyArm, x: Scale, y: float) -> dict[int, Point]:
    """Where the dots of an arm go, by seed: at their gains, and above each other where they would hide one another."""
    places: dict[int, Point] = {}
    last, level = -math.inf, 0
    for seed, gain in sorted(row.gains.items(), key=lambda item: (item[1], item[0])):
        level = (level + 1) % LEVELS if x(gain) - last < CLOSE else 0
        last = x(gain)
        places[seed] = (last, y - STEP * level)
    return places


def _draw_dot(row: StudyArm, seed: int, place: Point, class_: str, address: str) -> Markup:
    run: Mapping[str, object] = row.runs[seed] or {}
    title = f"{row.name}, seed {seed}: {format_signed(row.gains[seed])}"
    if isinstance(low := run.get("gain_low"), float) and isinstance(high := run.get("gain_high"), float):
        title += f" ({format_signed(low)} to {format_signed(high)}; {run.get('problems')} problems)"
    mark = circle(place, 4.5, f"mark {class_}", title)
    return element("a", mark, href=address) if address else mark


def _draw_mean(mean: Mean, x: Scale, y: float) -> list[Markup]:
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


def _format_tick(value: float) -> str:
    return "0" if value == 0 else f"{value:+g}".replace("-", "−")
