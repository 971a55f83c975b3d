"""The skill tree of a run as a picture: root, skills, subskills.

The area of a node is the examples it was given, its colour the validation accuracy at the end, the
number on the branch of a subskill the round in which it first got data. A subskill that got none
hangs on a dashed branch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from palaestra.core.records import Report
from palaestra.report.allocation import Allocation, examples_of
from palaestra.report.figures import counts, interval, percent, plural, shorten, whole
from palaestra.report.svg import Point, circle, drawing, element, line, number, text

ROW, GAP, HEAD, RADIUS = 20.0, 12.0, 34.0, 9.0
ROOT, SKILL, FORK, LEAF = 22.0, 66.0, 222.0, 272.0
WIDTH = 670
COLUMNS = {"accuracy": 470.0, "95 % interval": 548.0, "right": 594.0, "examples": 662.0}


@dataclass(frozen=True, slots=True)
class Node:
    """A subskill, or a skill with its subskills below it.

    Arguments:
        report: its validation accuracy at the end; `None` where no problem was asked.
        first_round: the round in which it first got data; `None` where it never did.
    """

    name: str
    report: Report | None
    examples: int
    first_round: int | None
    children: tuple[Node, ...] = ()


def grow(report: Report | None, allocation: Allocation) -> tuple[Node, ...]:
    """A node for each skill and subskill that was asked about or given data."""
    skills = _slices(report)
    given = {key for parts in allocation.values() for key in parts}
    nodes = []
    for skill in sorted({*skills, *(s for s, _ in given)}):
        asked = _slices(skills.get(skill))
        names = sorted({*asked, *(p for s, p in given if s == skill)} - {""})
        leaves = tuple(
            Node(name, asked.get(name), examples_of(allocation, skill, name), _first(allocation, skill, name))
            for name in names
        )
        nodes.append(Node(skill, skills.get(skill), examples_of(allocation, skill), _first(allocation, skill), leaves))
    return tuple(nodes)


def draw_tree(nodes: Sequence[Node], root: str) -> Markup:
    """The picture of the tree of `nodes` below `root`."""
    largest = max([1, *(node.examples for node in nodes)])
    name = f"{shorten(root, 30)} · {plural(sum(node.examples for node in nodes), 'example')}"
    # The name of the root stands upright beside the tree: a small tree is given room for it.
    natural = sum(_height(node) + GAP for node in nodes)
    padding = max(0.0, 7.6 * len(name) - natural) / 2
    trunk, branches, marks = [], [], []
    y, centre = HEAD + padding, HEAD + padding + (natural - GAP) / 2
    for node in nodes:
        middle = y + _height(node) / 2
        first = middle - (len(node.children) - 1) * ROW / 2
        trunk.append(_curve((ROOT, centre), (SKILL, middle), _width(node), "branch"))
        branches += _branches(node, middle, first)
        marks += _skill(node, middle, largest)
        for k, leaf in enumerate(node.children):
            marks += _leaf(node, leaf, first + k * ROW, largest)
        y += _height(node) + GAP
    stem = [
        element("rect", element("title", name), x=ROOT - 7, y=centre - 7, width=14, height=14, rx=3, class_="root"),
        text(10, centre, name, "skill-name", "middle", transform=f"rotate(-90 10 {number(centre)})"),
    ]
    head = [
        *(text(x, 14, title, "head", "end") for title, x in COLUMNS.items()),
        text(SKILL, 14, "skill", "head"),
        text(LEAF + 12, 14, "subskill", "head"),
        line((0, 21), (WIDTH, 21), "grid"),
    ]
    leaves = sum(len(node.children) for node in nodes)
    label = f"skill tree with {plural(len(nodes), 'skill')} and {plural(leaves, 'subskill')}"
    return drawing(WIDTH, y + padding, label, *head, *trunk, *branches, *stem, *marks, class_="chart tree")


def area_legend(nodes: Sequence[Node]) -> Markup:
    """Circles with the number of examples that their area stands for."""
    largest = max([1, *(node.examples for node in nodes)])
    parts, x = [], 12.0
    for count in sorted({1, max(1, largest // 4), largest}):
        radius = _radius(count, largest)
        parts += [circle((x, 12), radius, "node plain"), text(x + radius + 4, 16, whole(count), "tick")]
        x += 2 * radius + 30
    return drawing(x, 24, f"area: from 1 to {largest} examples", *parts, class_="inline")


def colour(report: Report | None) -> str:
    """The class of an accuracy in the style sheet: five steps of 20 points, or unknown.

    >>> colour(Report("a", 0.2, 0, 1, 5, 1)), colour(Report("a", 1.0, 0, 1, 5, 5)), colour(None)
    ('a1', 'a4', 'unknown')
    """
    if report is None or report.accuracy is None:
        return "unknown"
    return f"a{min(4, int(5 * report.accuracy + 1e-9))}"


def _slices(report: Report | None) -> Mapping[str, Report]:
    return {part.name: part for part in report.slices} if report is not None else {}


def _first(allocation: Allocation, skill: str, subskill: str | None = None) -> int | None:
    rounds = [
        r
        for r, parts in allocation.items()
        for (s, p), n in parts.items()
        if n and s == skill and subskill in (None, p)
    ]
    return min(rounds, default=None)


def _height(node: Node) -> float:
    """What a skill takes: a row for each subskill, and two at least for its own two lines."""
    return max(2, len(node.children)) * ROW


def _branches(node: Node, middle: float, first: float) -> list[Markup]:
    """What leads from a skill to its subskills."""
    if not node.children:
        return []
    parts = [_curve((SKILL, middle), (FORK, middle), _width(node), "branch")]
    for k, leaf in enumerate(node.children):
        kind = "branch" if leaf.examples else "branch closed"
        parts.append(_curve((FORK, middle), (LEAF, first + k * ROW), _width(leaf), kind))
    return parts


def _skill(node: Node, y: float, largest: int) -> list[Markup]:
    report = node.report
    figures = f"{percent(report)} [{interval(report)}]" if report is not None else "not asked"
    x = SKILL + RADIUS + 5
    return [
        circle((SKILL, y), _radius(node.examples, largest), f"node {colour(report)}", _said(node.name, node)),
        text(x, y - 5, shorten(node.name or "no skill", 20), "skill-name halo"),
        text(x, y + 13, f"{figures.replace(' %', '')} · {node.examples} ex.", "tick halo"),
    ]


def _leaf(skill: Node, leaf: Node, y: float, largest: int) -> list[Markup]:
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
            f"node {colour(report)}",
            _said(f"{skill.name}: {leaf.name}", leaf),
        ),
        *_round_mark(leaf.first_round, y),
        text(LEAF + 14, y + 4, shorten(leaf.name, 20), "label" if leaf.examples else "label faint"),
        *cells,
    ]
    return [element("g", *parts, data_skill=skill.name, data_subskill=leaf.name)]


def _round_mark(round_: int | None, y: float) -> list[Markup]:
    if round_ is None:
        return []
    width = 7.0 + 6.0 * len(str(round_))
    x = LEAF - 19 - width / 2
    return [
        element("rect", x=x, y=y - 6.5, width=width, height=13, rx=6.5, class_="round"),
        text(x + width / 2, y + 3.5, str(round_), "round-name", "middle"),
    ]


def _curve(start: Point, end: Point, width: float, class_: str) -> Markup:
    bend = (start[0] + end[0]) / 2
    path = " ".join(
        number(v) if not isinstance(v, str) else v for v in ("M", *start, "C", bend, start[1], bend, end[1], *end)
    )
    return element("path", d=path, class_=class_, stroke_width=width)


def _radius(examples: int, largest: int) -> float:
    """The area is proportional to the examples; what got none is a dot."""
    return max(2.2, RADIUS * math.sqrt(examples / largest))


def _width(node: Node) -> float:
    return 1.0 + min(2.0, node.examples / 20)


def _said(name: str, node: Node) -> str:
    data = (
        "no examples"
        if node.first_round is None
        else f"{plural(node.examples, 'example')}, the first in round {node.first_round}"
    )
    return f"{name}: {percent(node.report)} ({interval(node.report)}; {counts(node.report)}); {data}"
