"""Scenes, which describe images exactly: shapes, or one chart."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from palaestra.core.errors import TaskError
from palaestra.core.records import Split
from palaestra.core.tables import load_table
from palaestra.tasks.base import get_split

SIDE = 64
"""Width and height of a picture in pixels."""
CELL = 16
"""Width and height of a cell of the grid."""
GRID = SIDE // CELL

COLORS: Mapping[str, tuple[int, int, int]] = {
    name: (red, green, blue) for name, (red, green, blue) in load_table(__file__, "words")["colours"].items()
}
SHAPES = ("circle", "square", "triangle", "diamond", "cross", "star")
RADII: Mapping[str, float] = {"small": 4.0, "large": 6.5}
GAP = 2
"""Minimum distance between two shapes in pixels. Their smooth edges must not meet."""
SIZES = tuple(RADII)
COLOR_NAMES = tuple(COLORS)

TOP_VALUE = 8
"""The highest value of a bar or of a point of a line."""
PIE_PARTS = 12
"""The slices of a pie are whole numbers of twelfths."""
BARS, POINTS, SLICES = (2, 5), (3, 5), (2, 5)
"""Minimum and maximum number of bars, points and slices of a chart."""


@dataclass(frozen=True, slots=True)
class Item:
    """A shape. `x` and `y` are its centre in pixels from the upper left corner."""

    shape: str
    colour: str
    size: str
    x: int
    y: int

    @property
    def column(self) -> int:
        """The column of its cell, from 0 at the left."""
        return self.x // CELL

    @property
    def row(self) -> int:
        """The row of its cell, from 0 at the top."""
        return self.y // CELL

    @property
    def name(self) -> str:
        return f"{self.colour} {self.shape}"


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart.

    Arguments:
        kind: bars from left to right, a line through equally spaced points, or a pie that starts at
            the top and goes clockwise.
        values: integers: bars from 1 to 8, points of a line from 0 to 8, slices in twelfths.
        colours: one per bar or slice; one for the whole line.
    """

    kind: Literal["bar", "line", "pie"]
    values: tuple[int, ...]
    colours: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Scene:
    """The content of an image: shapes, or a chart.

    >>> Scene((Item("circle", "red", "large", 8, 40),)).canonical()
    'circle red large 0 2'
    """

    items: tuple[Item, ...] = ()
    chart: Chart | None = None

    def canonical(self) -> str:
        """The scene in one line, independent of the order of its shapes and of their places within their cells."""
        if self.chart is not None:
            values = ",".join(map(str, self.chart.values))
            return f"{self.chart.kind} {values} {','.join(self.chart.colours)}"
        return "; ".join(sorted(f"{i.shape} {i.colour} {i.size} {i.column} {i.row}" for i in self.items))

    def exact(self) -> str:
        """The scene in one line, exact to the pixel. Equal lines mean equal images."""
        places = ";".join(sorted(f"{i.shape},{i.colour},{i.size},{i.x},{i.y}" for i in self.items))
        return places or self.canonical()


def scene_split(scene: Scene) -> Split:
    """The split of a scene. No scene is in two splits, whatever the question."""
    return get_split(f"vision|{scene.canonical()}")


def check_scene(scene: Scene) -> None:
    """Raise `TaskError` for a scene that is invalid or ambiguous."""
    if (scene.chart is None) == (not scene.items):
        raise TaskError("a scene has shapes or one chart; got " + ("both" if scene.items else "neither"))
    if scene.chart is not None:
        _check_chart(scene.chart)
    for item in scene.items:
        _check_choice("shape", item.shape, SHAPES)
        _check_choice("colour", item.colour, COLORS)
        _check_choice("size", item.size, SIZES)
        radius = RADII[item.size]
        if not (radius <= item.x <= SIDE - radius and radius <= item.y <= SIDE - radius):
            place = f"({item.x}, {item.y})"
            raise TaskError(f"the {item.name} at {place} is partly outside of the {SIDE}x{SIDE} image; move it")
    for a, b in combinations(scene.items, 2):
        least = RADII[a.size] + RADII[b.size] + GAP
        if max(abs(a.x - b.x), abs(a.y - b.y)) < least:
            names = f"the {a.name} at ({a.x}, {a.y}) and the {b.name} at ({b.x}, {b.y})"
            raise TaskError(f"{names} touch; move them at least {least:g} pixels apart")


def _check_chart(chart: Chart) -> None:
    _check_choice("kind of chart", chart.kind, ("bar", "line", "pie"))
    for color in chart.colours:
        _check_choice("colour", color, COLORS)
    fewest, most = {"bar": BARS, "line": POINTS, "pie": SLICES}[chart.kind]
    wanted = 1 if chart.kind == "line" else len(chart.values)
    if not fewest <= len(chart.values) <= most:
        raise TaskError(f"a {chart.kind} chart has {fewest} to {most} values; got {len(chart.values)}")
    if len(chart.colours) != wanted or len(set(chart.colours)) != wanted:
        raise TaskError(f"this {chart.kind} chart needs {wanted} different colours; got {', '.join(chart.colours)}")
    low = 0 if chart.kind == "line" else 1
    high = PIE_PARTS - 1 if chart.kind == "pie" else TOP_VALUE
    if not all(low <= value <= high for value in chart.values):
        raise TaskError(f"the values of a {chart.kind} chart are from {low} to {high}; got {chart.values}")
    if chart.kind == "pie" and sum(chart.values) != PIE_PARTS:
        raise TaskError(f"the slices of a pie add up to {PIE_PARTS} twelfths; got {sum(chart.values)}")


def _check_choice(kind: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        raise TaskError(f"unknown {kind} '{name}'; known: {', '.join(known)}")
