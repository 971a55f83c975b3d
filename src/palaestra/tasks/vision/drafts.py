"""Drafts of visual problems, and the skills that draw them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from palaestra.tasks.sampling import between, format_response, pick
from palaestra.tasks.vision.scene import CELL, COLOURS, GRID, JITTER, SHAPES, SIZES, Item, Scene

YES_NO = ("yes", "no")
NUMBERS = tuple(str(n) for n in range(21))
COLOUR_NAMES = tuple(COLOURS)
PLURALS: Mapping[str, str] = {name: f"{name}es" if name.endswith("s") else f"{name}s" for name in SHAPES}

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


@dataclass(frozen=True, slots=True)
class VisionSkill:
    """A skill and its subskills, each of which draws problems of one kind."""

    name: str
    description: str
    subskills: Mapping[str, Drawer]


def several(rng: np.random.Generator, choices: Sequence[str], count: int) -> list[str]:
    """`count` different ones of `choices`, in random order."""
    return [choices[int(k)] for k in rng.permutation(len(choices))[:count]]


def coin(rng: np.random.Generator) -> bool:
    return bool(rng.random() < 0.5)


def place(rng: np.random.Generator, kinds: Sequence[Kind], cells: Sequence[tuple[int, int]] = ()) -> Scene:
    """Put items into `cells` (column, row), or into different random cells, each a little off the middle."""
    if not cells:
        cells = [(int(k) % GRID, int(k) // GRID) for k in rng.permutation(GRID * GRID)[: len(kinds)]]
    return Scene(tuple(_item(rng, kind, cell) for kind, cell in zip(kinds, cells, strict=True)))


def _item(rng: np.random.Generator, kind: Kind, cell: tuple[int, int]) -> Item:
    shape, colour, size = kind
    far = JITTER[size]
    x, y = (CELL * at + CELL // 2 + between(rng, -far, far) for at in cell)
    return Item(shape, colour, size, x, y)


def any_size(rng: np.random.Generator) -> str:
    return pick(rng, SIZES)


def distinct(rng: np.random.Generator, count: int) -> list[Kind]:
    """`count` items of which no two share a shape or a colour."""
    shapes, colours = several(rng, SHAPES, count), several(rng, COLOUR_NAMES, count)
    return [(shape, colour, any_size(rng)) for shape, colour in zip(shapes, colours, strict=True)]


def number(count: int, name: str) -> str:
    """A step of counting: `"red: 3"`."""
    return f"{name}: {count}"
