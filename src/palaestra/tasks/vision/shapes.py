"""The skills about shapes.

`OBJECTS` is basic perception, which the embedded student knows already. `RELATIONS` compares shapes: relations, extremes,
tallies and patterns, with worked reasoning.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from palaestra.tasks.sampling import between, pick
from palaestra.tasks.vision.scene import (
    COLOUR_NAMES,
    GRID,
    NUMBERS,
    PLURALS,
    SHAPES,
    SIZES,
    YES_NO,
    Drawer,
    Item,
    Kind,
    Scene,
    VisionDraft,
    VisionSkill,
    any_size,
    coin,
    distinct,
    number,
    place,
    several,
)

WHICH_COLOUR = ("What colour is the {n}?", "Which colour does the {n} have?", "Name the colour of the {n}.")
WHICH_SHAPE = ("What is the {n} shape?", "Which shape is {n}?", "Name the {n} shape.")
ANY = ("Is there a {n}?", "Does the picture show a {n}?", "Can you see a {n}?")
HOW_MANY = ("How many {n} are there?", "Count the {n}.", "What is the number of {n}?")
WHICH_SIDE = ("Is the {n} on the left or on the right?", "On which side is the {n}, left or right?")
WHICH_HEIGHT = ("Is the {n} at the top or at the bottom?", "Where is the {n}, top or bottom?")
WHICH_SIZE = ("Is the {n} large or small?", "What size is the {n}, large or small?")
SAME = ("Do the two have the same {n}?", "Are both of the same {n}?", "Is the {n} of the two the same?")


def _with_an(noun: str) -> str:
    """Correct the article: "a orange star" becomes "an orange star"."""
    for vowel in "aeiou":
        noun = noun.replace(f" a {vowel}", f" an {vowel}")
    return noun


def ask(rng: np.random.Generator, wordings: tuple[str, ...], name: str) -> str:
    return _with_an(pick(rng, wordings).format(n=name))


def pick_kind(rng: np.random.Generator) -> Kind:
    return pick(rng, SHAPES), pick(rng, COLOUR_NAMES), any_size(rng)


def _sizes_apart(rng: np.random.Generator, count: int) -> tuple[list[Kind], str]:
    """Draw different items. Only the first has the returned size."""
    size = pick(rng, SIZES)
    other = SIZES[1 - SIZES.index(size)]
    return [(s, c, size if k == 0 else other) for k, (s, c, _) in enumerate(distinct(rng, count))], size


def _colour_single(rng: np.random.Generator) -> VisionDraft:
    kind = pick_kind(rng)
    return VisionDraft(place(rng, [kind]), ask(rng, WHICH_COLOUR, "shape"), (), kind[1], COLOUR_NAMES)


def _ask_by_name(index: int) -> Drawer:
    """Ask for the shape (index 0) of a colour, or for the colour (index 1) of a shape."""

    def draw(rng: np.random.Generator) -> VisionDraft:
        kinds = distinct(rng, between(rng, 2, 4))
        question = (place(rng, kinds), ask(rng, (WHICH_SHAPE, WHICH_COLOUR)[index], kinds[0][1 - index]))
        return VisionDraft(*question, (), kinds[0][index], (SHAPES, COLOUR_NAMES)[index])

    return draw


def _ask_by_size(index: int) -> Drawer:
    """Ask for the shape (index 0) or the colour (index 1) of the only item of a size."""

    def draw(rng: np.random.Generator) -> VisionDraft:
        kinds, size = _sizes_apart(rng, between(rng, 2, 4))
        name = (size, f"{size} shape")[index]
        question = (place(rng, kinds), ask(rng, (WHICH_SHAPE, WHICH_COLOUR)[index], name))
        return VisionDraft(*question, (), kinds[0][index], (SHAPES, COLOUR_NAMES)[index])

    return draw


def _shape_single(rng: np.random.Generator) -> VisionDraft:
    kind = pick_kind(rng)
    wordings = ("What shape is it?", "Which shape is in the picture?", "Name the shape.")
    return VisionDraft(place(rng, [kind]), pick(rng, wordings), (), kind[0], SHAPES)


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
        else:  # If it is missing, its shape and its colour are there on two items.
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
    VisionSkill("colour", "the colour of a shape", {"single": _colour_single, "named": _ask_by_name(1), "sized": _ask_by_size(1)}),
    VisionSkill("shape", "what a shape is", {"single": _shape_single, "named": _ask_by_name(0), "sized": _ask_by_size(0)}),
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


BESIDE = {
    "left of": (0, -1), "right of": (0, 1), "above": (1, -1), "below": (1, 1),
}  # fmt: skip
"""The coordinate that a relation compares, and its sign."""
EXTREMES = {
    "leftmost": (0, -1), "rightmost": (0, 1), "highest": (1, -1), "lowest": (1, 1),
}  # fmt: skip
ORDER_WORDS = {
    "leftmost": "from the left", "rightmost": "from the right", "highest": "from the top", "lowest": "from the bottom",
}  # fmt: skip


def _at(item: Item, axis: int) -> int:
    return (item.column, item.row)[axis]


def join_names(items: list[Item]) -> str:
    return ", ".join(item.name for item in items)


def in_order(scene: Scene, axis: int, sign: int) -> list[Item]:
    """The items sorted by a coordinate, ascending (`sign` 1) or descending (-1). The other one breaks ties."""
    return sorted(scene.items, key=lambda i: (sign * _at(i, axis), _at(i, 1 - axis)))


def _apart(rng: np.random.Generator, count: int, axis: int) -> Scene:
    """Draw different items, each in its own column (axis 0) or row (axis 1)."""
    lines = [int(k) for k in rng.permutation(GRID)[:count]]
    others = [between(rng, 0, GRID - 1) for _ in lines]
    cells = [(a, b) if axis == 0 else (b, a) for a, b in zip(lines, others, strict=True)]
    return place(rng, distinct(rng, count), cells)


def _relation(words: tuple[str, str]) -> Drawer:
    def draw(rng: np.random.Generator) -> VisionDraft:
        relation = pick(rng, words)
        axis, sign = BESIDE[relation]
        scene = _apart(rng, between(rng, 2, 4), axis)
        a, b = scene.items[:2]
        word = ("column", "row")[axis]
        steps = (f"{a.name}: {word} {_at(a, axis) + 1}", f"{b.name}: {word} {_at(b, axis) + 1}")
        holds = sign * (_at(a, axis) - _at(b, axis)) > 0
        wordings = (f"Is the {a.name} {relation} the {b.name}?", f"Does the {a.name} lie {relation} the {b.name}?")
        return VisionDraft(scene, pick(rng, wordings), steps, YES_NO[not holds], YES_NO)

    return draw


def _neighbour(rng: np.random.Generator) -> VisionDraft:
    relation = pick(rng, tuple(BESIDE))
    axis, sign = BESIDE[relation]
    scene = _apart(rng, between(rng, 2, 4), axis)
    along = in_order(scene, axis, sign)
    target, reference = along[-1], along[-2]  # Only the last item is beyond the last but one.
    steps = (f"{reference.name}: {('column', 'row')[axis]} {_at(reference, axis) + 1}", f"{relation}: {target.name}")
    if coin(rng):
        return VisionDraft(scene, f"Which shape is {relation} the {reference.name}?", steps, target.shape, SHAPES)
    question = f"What colour is the shape {relation} the {reference.name}?"
    return VisionDraft(scene, question, steps, target.colour, COLOUR_NAMES)


def _extreme(words: tuple[str, str]) -> Drawer:
    def draw(rng: np.random.Generator) -> VisionDraft:
        word = pick(rng, words)
        axis, sign = EXTREMES[word]
        scene = _apart(rng, between(rng, 3, 4), axis)
        first, *_ = along = in_order(scene, axis, -sign)
        steps = (f"{ORDER_WORDS[word]}: {join_names(along)}",)
        if coin(rng):
            return VisionDraft(scene, f"What colour is the {word} shape?", steps, first.colour, COLOUR_NAMES)
        return VisionDraft(scene, f"Which shape is the {word} one?", steps, first.shape, SHAPES)

    return draw


def _odd(index: int) -> Drawer:
    """One item differs from all others in one attribute, in which the others are equal."""

    def draw(rng: np.random.Generator) -> VisionDraft:
        count = between(rng, 4, 7)
        usual, odd = several(rng, (SHAPES, COLOUR_NAMES)[index], 2)
        kinds: list[Kind] = []
        for k in range(count):
            value, other = odd if k == 0 else usual, pick(rng, (COLOUR_NAMES, SHAPES)[index])
            kinds.append((value, other, any_size(rng)) if index == 0 else (other, value, any_size(rng)))
        scene = place(rng, kinds)
        word = ("shape", "colour")[index]
        names = (PLURALS[usual], odd) if index == 0 else (usual, odd)
        steps = (number(count - 1, names[0]), number(1, names[1]))
        wordings = (f"Which {word} is there only once?", f"Which {word} is the odd one out?")
        return VisionDraft(scene, pick(rng, wordings), steps, odd, (SHAPES, COLOUR_NAMES)[index])

    return draw


def _odd_size(rng: np.random.Generator) -> VisionDraft:
    size = pick(rng, SIZES)
    usual = SIZES[1 - SIZES.index(size)]
    kinds = [(s, c, size if k == 0 else usual) for k, (s, c, _) in enumerate(distinct(rng, between(rng, 3, 6)))]
    scene = place(rng, kinds)
    first = scene.items[0]
    question = "What colour is the shape that differs in size?"
    return VisionDraft(scene, question, (f"{size}: {first.name}",), first.colour, COLOUR_NAMES)


def _crowd(rng: np.random.Generator, index: int, values: list[str], counts: list[int]) -> Scene:
    """Draw `counts[k]` items with `values[k]` (shapes if `index` is 0, colours if it is 1), in random order."""
    kinds: list[Kind] = []
    for value, count in zip(values, counts, strict=True):
        for _ in range(count):
            other = pick(rng, (COLOUR_NAMES, SHAPES)[index])
            kinds.append((value, other, any_size(rng)) if index == 0 else (other, value, any_size(rng)))
    return place(rng, [kinds[int(k)] for k in rng.permutation(len(kinds))])


def _group(index: int, value: str) -> str:
    """The name of the items with a value: circles, red shapes."""
    return PLURALS[value] if index == 0 else f"{value} shapes"


def _tally(index: int, values: list[str], counts: list[int]) -> tuple[str, ...]:
    return tuple(number(n, PLURALS[v] if index == 0 else v) for v, n in zip(values, counts, strict=True))


def _most(index: int) -> Drawer:
    def draw(rng: np.random.Generator) -> VisionDraft:
        values = several(rng, (SHAPES, COLOUR_NAMES)[index], between(rng, 2, 3))
        high = between(rng, 2, 4)
        counts = [high] + [between(rng, 1, high - 1) for _ in values[1:]]
        word = ("shape", "colour")[index]
        wordings = (f"Which {word} is the most common?", f"Which {word} is there most often?")
        scene = _crowd(rng, index, values, counts)
        order = [int(k) for k in rng.permutation(len(values))]  # The order of the tally does not reveal the answer.
        steps = _tally(index, [values[k] for k in order], [counts[k] for k in order])
        return VisionDraft(scene, pick(rng, wordings), steps, values[0], (SHAPES, COLOUR_NAMES)[index])

    return draw


def _more(rng: np.random.Generator) -> VisionDraft:
    index = between(rng, 0, 1)
    a, b, rest = several(rng, (SHAPES, COLOUR_NAMES)[index], 3)
    counts = [between(rng, 1, 4), between(rng, 1, 4)]
    scene = _crowd(rng, index, [a, b, rest], [*counts, between(rng, 0, 2)])
    question = f"Are there more {_group(index, a)} than {_group(index, b)}?"
    return VisionDraft(scene, question, _tally(index, [a, b], counts), YES_NO[counts[0] <= counts[1]], YES_NO)


def _both(rng: np.random.Generator) -> VisionDraft:
    """Items of one colour and shape, among others with only the same colour or only the same shape."""
    shape, other_shape = several(rng, SHAPES, 2)
    colour, other_colour = several(rng, COLOUR_NAMES, 2)
    wanted, halves = between(rng, 0, 4), between(rng, 2, 4)
    kinds: list[Kind] = [(shape, colour, any_size(rng)) for _ in range(wanted)]
    kinds += [
        (shape, other_colour, any_size(rng)) if k % 2 else (other_shape, colour, any_size(rng)) for k in range(halves)
    ]
    scene = place(rng, kinds)
    return VisionDraft(scene, ask(rng, ("How many {n} are there?", "Count the {n}."), f"{colour} {PLURALS[shape]}"), (), str(wanted), NUMBERS)  # fmt: skip


def _not(rng: np.random.Generator) -> VisionDraft:
    index = between(rng, 0, 1)
    value, *others = several(rng, (SHAPES, COLOUR_NAMES)[index], 3)
    counts = [between(rng, 1, 4), between(rng, 0, 2), between(rng, 1, 2)]
    scene = _crowd(rng, index, [value, *others], counts)
    total, named = sum(counts), PLURALS[value] if index == 0 else value
    steps = (number(total, "all"), number(counts[0], named), f"{total}-{counts[0]}={total - counts[0]}")
    name = f"shapes are not {PLURALS[value] if index == 0 else value}"
    return VisionDraft(scene, f"How many {name}?", steps, str(total - counts[0]), NUMBERS)


def _with_size(rng: np.random.Generator) -> VisionDraft:
    size = pick(rng, SIZES)
    wanted, rest = between(rng, 0, 5), between(rng, 1, 4)
    other = SIZES[1 - SIZES.index(size)]
    kinds = [(pick(rng, SHAPES), pick(rng, COLOUR_NAMES), size if k < wanted else other) for k in range(wanted + rest)]
    return VisionDraft(place(rng, kinds), f"How many {size} shapes are there?", (), str(wanted), NUMBERS)


def _two_counts(rng: np.random.Generator, *, ordered: bool) -> tuple[int, str, str, int, int, Scene]:
    """Draw two groups with their counts, perhaps among others. If `ordered`, the first is larger."""
    index = between(rng, 0, 1)
    a, b, rest = several(rng, (SHAPES, COLOUR_NAMES)[index], 3)
    m, n = between(rng, 1, 4), between(rng, 1, 4)
    if ordered:
        m += n
    return index, a, b, m, n, _crowd(rng, index, [a, b, rest], [m, n, between(rng, 0, 2)])


def _sum(rng: np.random.Generator) -> VisionDraft:
    index, a, b, m, n, scene = _two_counts(rng, ordered=False)
    steps = (*_tally(index, [a, b], [m, n]), f"{m}+{n}={m + n}")
    question = f"How many {_group(index, a)} and {_group(index, b)} are there together?"
    return VisionDraft(scene, question, steps, str(m + n), NUMBERS)


def _difference(rng: np.random.Generator) -> VisionDraft:
    index, a, b, m, n, scene = _two_counts(rng, ordered=True)
    steps = (*_tally(index, [a, b], [m, n]), f"{m}-{n}={m - n}")
    question = f"How many more {_group(index, a)} than {_group(index, b)} are there?"
    return VisionDraft(scene, question, steps, str(m - n), NUMBERS)


def _find_rest(rng: np.random.Generator) -> VisionDraft:
    index, a, _, m, _, scene = _two_counts(rng, ordered=False)
    total = len(scene.items)
    steps = (number(total, "all"), *_tally(index, [a], [m]), f"{total}-{m}={total - m}")
    question = f"All {_group(index, a)} are taken away. How many shapes are left?"
    return VisionDraft(scene, question, steps, str(total - m), NUMBERS)


def _pattern(index: int, period: int) -> Drawer:
    """A repeating sequence in reading order; the next cell is empty."""

    def draw(rng: np.random.Generator) -> VisionDraft:
        word, choices = (("shape", SHAPES), ("colour", COLOUR_NAMES))[index]
        values = several(rng, choices, period)
        length, top, size = between(rng, 2 * period, 7), between(rng, 0, 2), any_size(rng)
        steady = pick(rng, (COLOUR_NAMES, SHAPES)[index])
        shown = [values[k % period] for k in range(length)]
        kinds: list[Kind] = [(v, steady, size) if index == 0 else (steady, v, size) for v in shown]
        scene = place(rng, kinds, [(k % GRID, top + k // GRID) for k in range(length)])
        wordings = (f"The shapes go on in this way. Which {word} comes next?", f"Which {word} comes next in the row?")
        return VisionDraft(scene, pick(rng, wordings), (", ".join(shown),), values[length % period], choices)

    return draw


RELATIONS = (
    VisionSkill(
        "relation", "where one shape lies from another",
        {"beside": _relation(("left of", "right of")), "over": _relation(("above", "below")), "neighbour": _neighbour},
    ),
    VisionSkill(
        "extreme", "the first or last shape along a direction",
        {"side": _extreme(("leftmost", "rightmost")), "height": _extreme(("highest", "lowest"))},
    ),
    VisionSkill("odd_one_out", "the shape that differs", {"shape": _odd(0), "colour": _odd(1), "size": _odd_size}),
    VisionSkill("majority", "what there is most of", {"shape": _most(0), "colour": _most(1), "more": _more}),
    VisionSkill("count_logic", "how many meet a condition", {"both": _both, "not": _not, "sized": _with_size}),
    VisionSkill(
        "count_arithmetic", "sums and differences of counts",
        {"sum": _sum, "difference": _difference, "left_over": _find_rest},
    ),
    VisionSkill(
        "pattern", "what comes next",
        {"colour": _pattern(1, 2), "shape": _pattern(0, 2), "three_colours": _pattern(1, 3)},
    ),
)  # fmt: skip


def tally(scene: Scene, *, by_shape: bool) -> tuple[str, ...]:
    """The number of each shape or colour, in a fixed order."""
    counts = Counter(item.shape if by_shape else item.colour for item in scene.items)
    order = SHAPES if by_shape else COLOUR_NAMES
    return tuple(number(counts[v], PLURALS[v] if by_shape else v) for v in order if counts[v])
