"""Diagrams as SVG: the skill tree of a teach run and the arms of a study."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from markupsafe import Markup

from palaestra.core.records import Report
from palaestra.core.statistics import Mean
from palaestra.report import svg
from palaestra.report.charts import round_color
from palaestra.report.formatting import counts, format_signed, interval, percent, plural, shorten

if TYPE_CHECKING:
    from palaestra.recipes.teach.study import StudyArm

Allocation = Mapping[int, Mapping[tuple[str, str], int]]
"""Number of examples by round, and by skill and subskill."""


# The allocation of examples


def count_allocated(allocation: Allocation, skill: str, subskill: str | None = None) -> int:
    """Count the examples of a skill (of one of its subskills, if given) over all rounds."""
    return sum(
        n for parts in allocation.values() for (s, p), n in parts.items() if s == skill and subskill in (None, p)
    )


def allocation_rows(allocation: Allocation) -> list[tuple[str, str, list[tuple[int, int]]]]:
    """Return skill, subskill, and for each round the examples and their heat from 0 (none) to 5 (the most)."""
    keys = sorted({key for parts in allocation.values() for key in parts})
    most = max((n for parts in allocation.values() for n in parts.values()), default=1)
    rounds = [allocation[round_] for round_ in sorted(allocation)]
    return [(*key, [(n, -(-5 * n // most)) for n in (parts.get(key, 0) for parts in rounds)]) for key in keys]


# The skill tree

_TREE_ROW, _TREE_GAP, _TREE_HEAD, _RADIUS = 20.0, 12.0, 34.0, 9.0
_ROOT, _SKILL, _FORK, _LEAF = 22.0, 66.0, 222.0, 272.0
_TREE_WIDTH = 670
_COLUMNS = {"accuracy": 470.0, "95 % interval": 548.0, "right": 594.0, "examples": 662.0}


@dataclass(frozen=True, slots=True)
class SkillNode:
    """A subskill, or a skill with its subskills.

    Arguments:
        report: the validation accuracy at the end; `None` if no problem was asked.
        first_round: the first round with examples; `None` without any.
    """

    name: str
    report: Report | None
    examples: int
    first_round: int | None
    children: tuple[SkillNode, ...] = ()

    @property
    def height(self) -> float:
        """A row for each subskill, and at least two for the skill's own two lines."""
        return max(2, len(self.children)) * _TREE_ROW


def build_skill_nodes(report: Report | None, allocation: Allocation) -> tuple[SkillNode, ...]:
    """Build a node for each skill and subskill that has problems or examples."""

    def slices(part: Report | None) -> dict[str, Report]:
        return {inner.name: inner for inner in part.slices} if part is not None else {}

    def build(name: str, part: Report | None, skill: str, subskill: str | None, *children: SkillNode) -> SkillNode:
        rounds = [r for r in allocation if count_allocated({r: allocation[r]}, skill, subskill)]
        return SkillNode(name, part, count_allocated(allocation, skill, subskill), min(rounds, default=None), children)

    skills = slices(report)
    given = {key for parts in allocation.values() for key in parts}
    nodes = []
    for skill in sorted({*skills, *(s for s, _ in given)}):
        asked = slices(skills.get(skill))
        names = sorted({*asked, *(p for s, p in given if s == skill)} - {""})
        leaves = [build(name, asked.get(name), skill, name) for name in names]
        nodes.append(build(skill, skills.get(skill), skill, None, *leaves))
    return tuple(nodes)


def draw_tree(nodes: Sequence[SkillNode], root: str) -> svg.Plot:
    """Draw the tree of `nodes` below `root`."""
    largest = max([1, *(node.examples for node in nodes)])
    name = f"{shorten(root, 30)} · {plural(sum(node.examples for node in nodes), 'example')}"
    # The name of the root is written vertically beside the tree; a small tree is padded to its length.
    natural = sum(node.height + _TREE_GAP for node in nodes)
    padding = max(0.0, 7.6 * len(name) - natural) / 2
    branches, marks = [], []
    y, center = _TREE_HEAD + padding, _TREE_HEAD + padding + (natural - _TREE_GAP) / 2
    for node in nodes:
        middle = y + node.height / 2
        first = middle - (len(node.children) - 1) * _TREE_ROW / 2
        branches.append(_draw_branch((_ROOT, center), (_SKILL, middle), node))
        marks += _draw_skill(node, middle, largest)
        if node.children:
            branches.append(_draw_branch((_SKILL, middle), (_FORK, middle), node))
        for k, leaf in enumerate(node.children):
            branches.append(_draw_branch((_FORK, middle), (_LEAF, first + k * _TREE_ROW), leaf))
            marks.append(_draw_leaf(node, leaf, first + k * _TREE_ROW, largest))
        y += node.height + _TREE_GAP
    stem = [
        svg.element(
            "rect", svg.element("title", name), x=_ROOT - 7, y=center - 7, width=14, height=14, rx=3, class_="root"
        ),
        svg.text(10, center, name, "skill-name", "middle", transform=f"rotate(-90 10 {svg.number(center)})"),
    ]
    head = [
        *(svg.text(x, 14, title, "head", "end") for title, x in _COLUMNS.items()),
        svg.text(_SKILL, 14, "skill", "head"),
        svg.text(_LEAF + 12, 14, "subskill", "head"),
        svg.line((0, 21), (_TREE_WIDTH, 21), "grid"),
    ]
    leaves = sum(len(node.children) for node in nodes)
    label = f"skill tree with {plural(len(nodes), 'skill')} and {plural(leaves, 'subskill')}"
    return svg.Plot(_TREE_WIDTH, y + padding, label, Markup("").join([*head, *branches, *stem, *marks]), "chart tree")


def _draw_skill(node: SkillNode, y: float, largest: int) -> list[Markup]:
    report = node.report
    figures = f"{percent(report)} [{interval(report)}]".replace(" %", "") if report is not None else "not asked"
    x = _SKILL + _RADIUS + 5
    return [
        _draw_node(node, node.name, (_SKILL, y), largest),
        svg.text(x, y - 5, shorten(node.name or "no skill", 20), "skill-name halo"),
        svg.text(x, y + 13, f"{figures} · {node.examples} ex.", "tick halo"),
    ]


def _draw_leaf(skill: SkillNode, leaf: SkillNode, y: float, largest: int) -> Markup:
    report = leaf.report
    right = "–" if report is None else f"{report.correct}/{report.count}"
    cells = (percent(report), interval(report).replace(" %", ""), right, str(leaf.examples))
    parts = [_draw_node(leaf, f"{skill.name}: {leaf.name}", (_LEAF, y), largest)]
    if leaf.first_round is not None:
        width = 7.0 + 6.0 * len(str(leaf.first_round))
        x = _LEAF - 19 - width / 2
        parts.append(svg.element("rect", x=x, y=y - 6.5, width=width, height=13, rx=6.5, class_="round"))
        parts.append(svg.text(x + width / 2, y + 3.5, str(leaf.first_round), "round-name", "middle"))
    parts.append(svg.text(_LEAF + 14, y + 4, shorten(leaf.name, 20), "label" if leaf.examples else "label faint"))
    for (column, x), value in zip(_COLUMNS.items(), cells, strict=True):
        parts.append(svg.text(x, y + 4, value, "label" if column == "accuracy" else "tick", "end"))
    return svg.element("g", *parts, data_skill=skill.name, data_subskill=leaf.name)


def _draw_node(node: SkillNode, name: str, place: svg.Point, largest: int) -> Markup:
    """Draw a circle. Its color is the accuracy, in five steps of 20 points; its area is the number of examples."""
    report, data = node.report, "no examples"
    if node.first_round is not None:
        data = f"{plural(node.examples, 'example')}, first in round {node.first_round}"
    color = "unknown"
    if report is not None and report.accuracy is not None:
        color = f"a{min(4, int(5 * report.accuracy + 1e-9))}"
    title = f"{name}: {percent(report)} ({interval(report)}; {counts(report)}); {data}"
    return svg.circle(place, _radius(node.examples, largest), f"node {color}", title)


def _draw_branch(start: svg.Point, end: svg.Point, node: SkillNode) -> Markup:
    (x1, y1), (x2, y2), bend = start, end, (start[0] + end[0]) / 2
    curve = f"M {svg.number(x1)} {svg.number(y1)} C {svg.number(bend)} {svg.number(y1)} {svg.number(bend)} {svg.number(y2)} {svg.number(x2)} {svg.number(y2)}"
    class_ = "branch" if node.examples or node.children else "branch closed"
    return svg.element("path", d=curve, class_=class_, stroke_width=1.0 + min(2.0, node.examples / 20))


def _radius(examples: int, largest: int) -> float:
    """The area is proportional to the examples; without examples it is a dot."""
    return max(2.2, _RADIUS * math.sqrt(examples / largest))


# The arms of a study

_ARM_WIDTH, _ARM_LABEL, _ARM_RIGHT, _ARM_ROW, _ARM_TOP, _ARM_FOOT = 960, 210, 20, 52, 10, 44
_CLOSE, _STEP, _LEVELS = 9.0, 8.0, 3
"""Dots nearer than `_CLOSE` are moved apart by `_STEP`, on up to `_LEVELS` levels."""


def seed_points(
    rows: Sequence[StudyArm], seeds: Sequence[int], address: Callable[[StudyArm, int], str]
) -> svg.Plot | None:
    """Draw a row for each arm: a dot for each seed's gain, and the mean below. Lines join the dots of one seed.

    Arguments:
        address: returns the path of a run's report, which its dot links to; empty without a report.
    """
    values = [gain for row in rows for gain in row.gains.values()]
    if not values:
        return None
    low, high = _find_range(values, [row.gain for row in rows], room=max(values) - min(values))
    x = svg.Scale(low, high, _ARM_LABEL, _ARM_WIDTH - _ARM_RIGHT)
    bottom = _ARM_TOP + _ARM_ROW * len(rows)
    center = (_ARM_LABEL + _ARM_WIDTH - _ARM_RIGHT) / 2
    parts = [svg.text(center, bottom + _ARM_FOOT - 8, "gain in points on the test problems", "axis-name", "middle")]
    for value in svg.ticks(low, high, 7):
        parts += [
            svg.line((x(value), _ARM_TOP), (x(value), bottom), "axis" if value == 0 else "grid"),
            svg.text(x(value), bottom + 16, format_tick(value), "tick", "middle"),
        ]
    levels = [_ARM_TOP + _ARM_ROW * place + 22.0 for place in range(len(rows))]
    dots = [_place_dots(row, x, y) for row, y in zip(rows, levels, strict=True)]
    colors = {seed: round_color(place) for place, seed in enumerate(seeds, 1)}
    for seed in seeds:
        parts.append(svg.polyline([places[seed] for places in dots if seed in places], f"line thin {colors[seed]}"))
    for row, places, y in zip(rows, dots, levels, strict=True):
        parts.append(
            svg.element("text", svg.element("title", row.name), shorten(row.name, 28), x=0, y=y + 4, class_="label")
        )
        parts += svg.draw_mean(row.gain, x, y + 14)
        for seed in seeds:
            if seed in places:
                mark = svg.circle(places[seed], 4.5, f"mark {colors[seed]}", _describe_run(row, seed))
                link = address(row, seed)
                parts.append(svg.element("a", mark, href=link) if link else mark)
    means = "; ".join(f"{row.name} {format_signed(row.gain.value)}" for row in rows if row.gain.count)
    label = f"gains in points, means over the seeds: {means}"
    legend = tuple((f"dot {color}", f"seed {seed}") for seed, color in colors.items())
    return svg.Plot(_ARM_WIDTH, bottom + _ARM_FOOT, label, Markup("").join(parts), "chart wide", legend)


def difference_scale(differences: Sequence[Mean]) -> svg.Scale:
    """Return one scale, including 0, for the pictures of all differences."""
    halves = [(mean.high - mean.low) / 2 for mean in differences if mean.count > 1]
    values = [0.0, *(mean.value for mean in differences)]
    low, high = _find_range(values, differences, room=1.6 * median(halves) if halves else 0.0)
    return svg.Scale(low, high, 8, svg.BAR_WIDTH - 8)


def format_tick(value: float) -> str:
    return "0" if value == 0 else f"{value:+g}".replace("-", "−")


def _find_range(values: Sequence[float], means: Sequence[Mean], room: float) -> tuple[float, float]:
    """Return the range of the values, and up to `room` beyond them for the intervals.

    The interval of two seeds can be much wider than the rest: it is cut at the edge.
    """
    low, high, room = min(values), max(values), max(1.0, room)
    ends = [(mean.low, mean.high) for mean in means if mean.count > 1]
    low = max(low - room, min([low, *(end for end, _ in ends)]))
    high = min(high + room, max([high, *(end for _, end in ends)]))
    pad = 0.04 * max(1.0, high - low)
    return low - pad, high + pad


def _place_dots(row: StudyArm, x: svg.Scale, y: float) -> dict[int, svg.Point]:
    """Return the places of an arm's dots by seed. Dots that would hide each other are moved up."""
    places: dict[int, svg.Point] = {}
    last, level = -math.inf, 0
    for seed, gain in sorted(row.gains.items(), key=lambda item: (item[1], item[0])):
        level = (level + 1) % _LEVELS if x(gain) - last < _CLOSE else 0
        last = x(gain)
        places[seed] = (last, y - _STEP * level)
    return places


def _describe_run(row: StudyArm, seed: int) -> str:
    run = row.runs[seed] or {}
    bounds = f"{format_signed(run['gain_low'])} to {format_signed(run['gain_high'])}; {run['problems']} problems"
    return f"{row.name}, seed {seed}: {format_signed(row.gains[seed])} ({bounds})"
