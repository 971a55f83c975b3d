"""Drafts of questions about scenes, and the functions that draw and describe scenes.

Shapes are drawn in the cells of a grid, small ones a little off the centre. So no two shapes touch, and "left of" and
"above" are never ambiguous. An attribute of a shape is given by its index in `Kind`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from palaestra.tasks.procedural import Family, between, format_response, pick
from palaestra.tasks.recipes import RecipeBook, flip_coin
from palaestra.tasks.vision.scene import (
    BARS,
    CELL,
    COLOR_NAMES,
    GRID,
    PIE_PARTS,
    POINTS,
    SHAPES,
    SIZES,
    SLICES,
    TOP_VALUE,
    Chart,
    Item,
    Scene,
)

YES_NO = ("yes", "no")
NUMBERS = tuple(str(n) for n in range(21))
PLURALS: Mapping[str, str] = {name: f"{name}es" if name.endswith("s") else f"{name}s" for name in SHAPES}
_MAX_JITTER: Mapping[str, int] = {"small": 3, "large": 0}
"""Maximum distance of a shape from the centre of its cell, in pixels."""
VALUES = (SHAPES, COLOR_NAMES, SIZES)
Kind = tuple[str, str, str]
"""Shape, colour and size of an item without a position."""
OTHER_SIZE = dict(zip(SIZES, SIZES[::-1], strict=True))
BESIDE = {"left of": (0, -1), "right of": (0, 1), "above": (1, -1), "below": (1, 1)}
"""The coordinate that a relation compares, and its sign."""
EXTREMES = {"leftmost": (0, -1), "rightmost": (0, 1), "highest": (1, -1), "lowest": (1, 1)}
TRENDS = ("rising", "falling")
ORDINALS = ("first", "second", "third", "fourth", "fifth")


@dataclass(frozen=True, slots=True)
class VisionDraft:
    """A drawn problem.

    Arguments:
        scene: the content of the image. Its canonical form decides the split.
        question: the text of the prompt.
        steps: the worked reasoning, one remark per step.
        answer: one word or number.
        choices: all answers that a question of this kind can have.
    """

    scene: Scene
    question: str
    steps: tuple[str, ...]
    answer: str
    choices: tuple[str, ...]

    @property
    def response(self) -> str:
        """The worked reasoning and the answer, as a student should write them."""
        return format_response(self.steps, self.answer)


def several(rng: np.random.Generator, choices: Sequence[str], count: int) -> list[str]:
    """Draw `count` different elements of `choices`, in random order."""
    return [choices[int(k)] for k in rng.permutation(len(choices))[:count]]


def pick_kind(rng: np.random.Generator) -> Kind:
    return pick(rng, SHAPES), pick(rng, COLOR_NAMES), pick(rng, SIZES)


def distinct(rng: np.random.Generator, count: int) -> list[Kind]:
    """Draw `count` items. No two have the same shape or colour."""
    shapes, colors = several(rng, SHAPES, count), several(rng, COLOR_NAMES, count)
    return [(shape, color, pick(rng, SIZES)) for shape, color in zip(shapes, colors, strict=True)]


def place(rng: np.random.Generator, kinds: Sequence[Kind], cells: Sequence[tuple[int, int]] = ()) -> Scene:
    """Place items in `cells` (column, row), or in different random cells, each a little off the centre."""
    if not cells:
        cells = [(int(k) % GRID, int(k) // GRID) for k in rng.permutation(GRID * GRID)[: len(kinds)]]
    items = []
    for kind, cell in zip(kinds, cells, strict=True):
        far = _MAX_JITTER[kind[2]]
        x, y = (CELL * at + CELL // 2 + between(rng, -far, far) for at in cell)
        items.append(Item(*kind, x, y))
    return Scene(tuple(items))


def draw_apart(rng: np.random.Generator, count: int, axis: int) -> Scene:
    """Draw different items, each in its own column (axis 0) or row (axis 1)."""
    lines = [int(k) for k in rng.permutation(GRID)[:count]]
    others = [between(rng, 0, GRID - 1) for _ in lines]
    cells = [(a, b) if axis == 0 else (b, a) for a, b in zip(lines, others, strict=True)]
    return place(rng, distinct(rng, count), cells)


def draw_with_size(rng: np.random.Generator, size: str, count: int) -> list[Kind]:
    """Draw different items. Only the first has the given size."""
    return [(s, c, size if k == 0 else OTHER_SIZE[size]) for k, (s, c, _) in enumerate(distinct(rng, count))]


def draw_kind(rng: np.random.Generator, index: int, value: str) -> Kind:
    """Draw an item with the shape or colour `value`."""
    other, size = pick(rng, VALUES[1 - index]), pick(rng, SIZES)
    return (value, other, size) if index == 0 else (other, value, size)


def draw_crowd(rng: np.random.Generator, index: int, values: Sequence[str], counts: Sequence[int]) -> Scene:
    """Draw `counts[k]` items with the shape or colour `values[k]`, in random order."""
    kinds = [draw_kind(rng, index, value) for value, count in zip(values, counts, strict=True) for _ in range(count)]
    return place(rng, [kinds[int(k)] for k in rng.permutation(len(kinds))])


def draw_bars(rng: np.random.Generator) -> Chart:
    """Bars of different heights and colours."""
    count = between(rng, *BARS)
    values = tuple(int(v) + 1 for v in rng.permutation(TOP_VALUE)[:count])
    return Chart("bar", values, tuple(several(rng, COLOR_NAMES, count)))


def draw_pie(rng: np.random.Generator) -> Chart:
    """Slices with a unique largest and a unique smallest one."""
    while True:
        count = between(rng, *SLICES)
        cuts = sorted(int(c) + 1 for c in rng.permutation(PIE_PARTS - 1)[: count - 1])
        values = tuple(b - a for a, b in zip([0, *cuts], [*cuts, PIE_PARTS], strict=True))
        ranked = sorted(values)
        if ranked[0] < ranked[1] and ranked[-2] < ranked[-1]:
            return Chart("pie", values, tuple(several(rng, COLOR_NAMES, count)))


def draw_slice(rng: np.random.Generator, more: bool) -> tuple[Chart, int]:
    """A pie, and the index of a slice that is more or less than half of it."""
    while True:
        chart = draw_pie(rng)
        at = between(rng, 0, len(chart.values) - 1)
        if chart.values[at] != PIE_PARTS // 2 and (chart.values[at] > PIE_PARTS // 2) == more:
            return chart, at


def draw_line(rng: np.random.Generator, *, steady: bool = False) -> Chart:
    """Points of different values; if `steady`, they only rise or only fall."""
    values = [int(v) for v in rng.permutation(TOP_VALUE + 1)[: between(rng, *POINTS)]]
    if steady:
        values.sort(reverse=flip_coin(rng))
    return Chart("line", tuple(values), (pick(rng, COLOR_NAMES),))


def get_cell(item: Item, axis: int) -> int:
    """The column (axis 0) or row (axis 1) of an item."""
    return (item.column, item.row)[axis]


def locate(item: Item, axis: int) -> str:
    return f"{item.name}: {('column', 'row')[axis]} {get_cell(item, axis) + 1}"


def in_order(scene: Scene, axis: int, sign: int) -> list[Item]:
    """The items sorted by a coordinate, ascending (`sign` 1) or descending (-1). The other one breaks ties."""
    return sorted(scene.items, key=lambda i: (sign * get_cell(i, axis), get_cell(i, 1 - axis)))


def join_names(items: Sequence[Item]) -> str:
    return ", ".join(item.name for item in items)


def name_kind(index: int, value: str) -> str:
    return PLURALS[value] if index == 0 else value


def name_group(index: int, value: str) -> str:
    return PLURALS[value] if index == 0 else f"{value} shapes"


def tally(index: int, values: Sequence[str], counts: Sequence[int]) -> tuple[str, ...]:
    return tuple(f"{name_kind(index, v)}: {n}" for v, n in zip(values, counts, strict=True))


def line_values(chart: Chart) -> str:
    return "values: " + ", ".join(map(str, chart.values))


def add_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def say_yes(is_true: bool) -> str:
    return YES_NO[not is_true]


_BOOK = RecipeBook(__file__, VisionDraft, globals(), {"scene": "scene", "steps": "()"})
SEEN, TAUGHT = _BOOK.read("seen"), _BOOK.read("taught")
"""The easy half of the skills, which the base model should know; and those that lessons should teach."""
SKILLS: Family[VisionDraft] = SEEN | TAUGHT
