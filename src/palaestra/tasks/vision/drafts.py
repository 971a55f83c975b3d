"""Drafts of questions about scenes, and the random choices that draw them.

Shapes are drawn in the cells of a grid, small ones a little off the centre. So no two shapes touch, and "left of" and
"above" are never ambiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from palaestra.tasks.procedural import between, format_response, pick
from palaestra.tasks.vision.scene import CELL, COLOR_NAMES, GRID, SHAPES, SIZES, Item, Scene

YES_NO = ("yes", "no")
NUMBERS = tuple(str(n) for n in range(21))
PLURALS: Mapping[str, str] = {name: f"{name}es" if name.endswith("s") else f"{name}s" for name in SHAPES}
_MAX_JITTER: Mapping[str, int] = {"small": 3, "large": 0}
"""Maximum distance of a shape from the centre of its cell, in pixels."""
Kind = tuple[str, str, str]
"""Shape, colour and size of an item without a position."""


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


Drawer = Callable[[np.random.Generator], VisionDraft]
Skills = Mapping[str, Mapping[str, Drawer]]
"""Skill -> subskill -> function that draws a draft."""


def coin(rng: np.random.Generator) -> bool:
    return bool(rng.random() < 0.5)


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
