"""Basic perception, which the embedded student knows already."""

from __future__ import annotations

import numpy as np

from palaestra.tasks.sampling import between, pick
from palaestra.tasks.vision.drafts import (
    COLOUR_NAMES,
    NUMBERS,
    PLURALS,
    YES_NO,
    Drawer,
    Kind,
    VisionDraft,
    VisionSkill,
    any_size,
    coin,
    distinct,
    place,
    several,
)
from palaestra.tasks.vision.scene import GRID, SHAPES, SIZES

WHICH_COLOUR = ("What colour is the {n}?", "Which colour does the {n} have?", "Name the colour of the {n}.")
WHICH_SHAPE = ("What is the {n} shape?", "Which shape is {n}?", "Name the {n} shape.")
ANY = ("Is there a {n}?", "Does the picture show a {n}?", "Can you see a {n}?")
HOW_MANY = ("How many {n} are there?", "Count the {n}.", "What is the number of {n}?")
WHICH_SIDE = ("Is the {n} on the left or on the right?", "On which side is the {n}, left or right?")
WHICH_HEIGHT = ("Is the {n} at the top or at the bottom?", "Where is the {n}, top or bottom?")
WHICH_SIZE = ("Is the {n} large or small?", "What size is the {n}, large or small?")
SAME = ("Do the two have the same {n}?", "Are both of the same {n}?", "Is the {n} of the two the same?")


def _with_an(noun: str) -> str:
    """`"Is there a orange star?"` is not English."""
    for vowel in "aeiou":
        noun = noun.replace(f" a {vowel}", f" an {vowel}")
    return noun


def ask(rng: np.random.Generator, wordings: tuple[str, ...], name: str) -> str:
    return _with_an(pick(rng, wordings).format(n=name))


def pick_kind(rng: np.random.Generator) -> Kind:
    return pick(rng, SHAPES), pick(rng, COLOUR_NAMES), any_size(rng)


def _sizes_apart(rng: np.random.Generator, count: int) -> tuple[list[Kind], str]:
    """Different items of which the first alone has its size; returns that size too."""
    size = pick(rng, SIZES)
    other = SIZES[1 - SIZES.index(size)]
    return [(s, c, size if k == 0 else other) for k, (s, c, _) in enumerate(distinct(rng, count))], size


def _colour_single(rng: np.random.Generator) -> VisionDraft:
    kind = pick_kind(rng)
    return VisionDraft(place(rng, [kind]), ask(rng, WHICH_COLOUR, "shape"), (), kind[1], COLOUR_NAMES)


def _colour_named(rng: np.random.Generator) -> VisionDraft:
    kinds = distinct(rng, between(rng, 2, 4))
    return VisionDraft(place(rng, kinds), ask(rng, WHICH_COLOUR, kinds[0][0]), (), kinds[0][1], COLOUR_NAMES)


def _colour_sized(rng: np.random.Generator) -> VisionDraft:
    kinds, size = _sizes_apart(rng, between(rng, 2, 4))
    return VisionDraft(place(rng, kinds), ask(rng, WHICH_COLOUR, f"{size} shape"), (), kinds[0][1], COLOUR_NAMES)


def _shape_single(rng: np.random.Generator) -> VisionDraft:
    kind = pick_kind(rng)
    wordings = ("What shape is it?", "Which shape is in the picture?", "Name the shape.")
    return VisionDraft(place(rng, [kind]), pick(rng, wordings), (), kind[0], SHAPES)


def _shape_named(rng: np.random.Generator) -> VisionDraft:
    kinds = distinct(rng, between(rng, 2, 4))
    return VisionDraft(place(rng, kinds), ask(rng, WHICH_SHAPE, kinds[0][1]), (), kinds[0][0], SHAPES)


def _shape_sized(rng: np.random.Generator) -> VisionDraft:
    kinds, size = _sizes_apart(rng, between(rng, 2, 4))
    return VisionDraft(place(rng, kinds), ask(rng, WHICH_SHAPE, size), (), kinds[0][0], SHAPES)


def _exists(by: str) -> Drawer:
    def draw(rng: np.random.Generator) -> VisionDraft:
        kinds, there = distinct(rng, between(rng, 2, 4)), coin(rng)
        (shape, colour, _), (_, other, _) = kinds[:2]
        if by == "colour":
            name = (
                f"{colour if there else pick(rng, [c for c in COLOUR_NAMES if c not in {k[1] for k in kinds}])} shape"
            )
        elif by == "shape":
            name = shape if there else pick(rng, [s for s in SHAPES if s not in {k[0] for k in kinds}])
        else:  # Where it is missing, its shape and its colour are there, on two items.
            name = f"{colour if there else other} {shape}"
        return VisionDraft(place(rng, kinds), ask(rng, ANY, name), (), YES_NO[not there], YES_NO)

    return draw


def _count_all(rng: np.random.Generator) -> VisionDraft:
    count = between(rng, 1, 8)
    return VisionDraft(
        place(rng, [pick_kind(rng) for _ in range(count)]), ask(rng, HOW_MANY, "shapes"), (), str(count), NUMBERS
    )


def _draw_count(by: str) -> Drawer:
    def draw(rng: np.random.Generator) -> VisionDraft:
        wanted, rest = between(rng, 0, 5), between(rng, 1, 3)
        if by == "colour":
            first, *others = several(rng, COLOUR_NAMES, 4)
            kinds = [(pick(rng, SHAPES), first, any_size(rng)) for _ in range(wanted)]
            kinds += [(pick(rng, SHAPES), pick(rng, others), any_size(rng)) for _ in range(rest)]
            name = f"{first} shapes"
        else:
            first, *others = several(rng, SHAPES, 4)
            kinds = [(first, pick(rng, COLOUR_NAMES), any_size(rng)) for _ in range(wanted)]
            kinds += [(pick(rng, others), pick(rng, COLOUR_NAMES), any_size(rng)) for _ in range(rest)]
            name = PLURALS[first]
        return VisionDraft(place(rng, kinds), ask(rng, HOW_MANY, name), (), str(wanted), NUMBERS)

    return draw


def _half(axis: int, wordings: tuple[str, ...], words: tuple[str, str]) -> Drawer:
    def draw(rng: np.random.Generator) -> VisionDraft:
        kinds = distinct(rng, between(rng, 1, 4))
        scene = place(rng, kinds)
        target = scene.items[0]
        second = (target.column, target.row)[axis] >= GRID // 2
        name = pick(rng, (target.shape, f"{target.colour} shape", target.name))
        return VisionDraft(scene, ask(rng, wordings, name), (), words[second], words)

    return draw


def _size_single(rng: np.random.Generator) -> VisionDraft:
    kind = pick_kind(rng)
    return VisionDraft(place(rng, [kind]), ask(rng, WHICH_SIZE, "shape"), (), kind[2], SIZES)


def _size_named(rng: np.random.Generator) -> VisionDraft:
    kinds = distinct(rng, between(rng, 2, 4))
    shape, colour, size = kinds[0]
    name = pick(rng, (shape, f"{colour} shape", f"{colour} {shape}"))
    return VisionDraft(place(rng, kinds), ask(rng, WHICH_SIZE, name), (), size, SIZES)


def _same(index: int, word: str, values: tuple[str, ...]) -> Drawer:
    def draw(rng: np.random.Generator) -> VisionDraft:
        first, second = list(pick_kind(rng)), list(pick_kind(rng))
        alike = coin(rng)
        second[index] = first[index] if alike else pick(rng, [v for v in values if v != first[index]])
        scene = place(rng, [(k[0], k[1], k[2]) for k in (first, second)])
        return VisionDraft(scene, ask(rng, SAME, word), (), YES_NO[not alike], YES_NO)

    return draw


OBJECTS = (
    VisionSkill("colour", "the colour of a shape", {"single": _colour_single, "named": _colour_named, "sized": _colour_sized}),
    VisionSkill("shape", "what a shape is", {"single": _shape_single, "named": _shape_named, "sized": _shape_sized}),
    VisionSkill(
        "existence", "whether something is there",
        {"colour": _exists("colour"), "shape": _exists("shape"), "both": _exists("both")},
    ),
    VisionSkill(
        "count", "how many there are",
        {"all": _count_all, "colour": _draw_count("colour"), "shape": _draw_count("shape")},
    ),
    VisionSkill(
        "position", "in which half of the picture something is",
        {"side": _half(0, WHICH_SIDE, ("left", "right")), "height": _half(1, WHICH_HEIGHT, ("top", "bottom"))},
    ),
    VisionSkill("size", "whether a shape is large or small", {"single": _size_single, "named": _size_named}),
    VisionSkill(
        "same", "whether two shapes agree",
        {
            "colour": _same(1, "colour", COLOUR_NAMES),
            "shape": _same(0, "shape", SHAPES),
            "size": _same(2, "size", SIZES),
        },
    ),
)  # fmt: skip
