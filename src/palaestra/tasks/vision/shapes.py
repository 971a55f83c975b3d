"""The skills about shapes.

`OBJECTS` is basic perception, which the embedded student knows already. `RELATIONS` compares shapes: relations, extremes,
tallies and patterns, with worked reasoning. An attribute of a shape is given by its index in `Kind`.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from palaestra.tasks.procedural import between, pick
from palaestra.tasks.vision.drafts import (
    NUMBERS,
    PLURALS,
    YES_NO,
    Kind,
    Skills,
    VisionDraft,
    coin,
    distinct,
    pick_kind,
    place,
    several,
)
from palaestra.tasks.vision.scene import COLOR_NAMES, GRID, SHAPES, SIZES, Item, Scene

_SHAPE, _COLOR, _SIZE = range(3)
_ATTRIBUTES = ("shape", "colour", "size")
_VALUES = (SHAPES, COLOR_NAMES, SIZES)
_OTHER_SIZE = dict(zip(SIZES, SIZES[::-1], strict=True))

_WHICH_COLOR = ("What colour is the {n}?", "Which colour does the {n} have?", "Name the colour of the {n}.")
_WHICH_SHAPE = ("What is the {n} shape?", "Which shape is {n}?", "Name the {n} shape.")
_WHICH_ONLY_SHAPE = ("What shape is it?", "Which shape is in the picture?", "Name the shape.")
_WHICH_SIZE = ("Is the {n} large or small?", "What size is the {n}, large or small?")
_EXISTS = ("Is there a {n}?", "Does the picture show a {n}?", "Can you see a {n}?")
_HOW_MANY = ("How many {n} are there?", "Count the {n}.", "What is the number of {n}?")
_SAME = ("Do the two have the same {n}?", "Are both of the same {n}?", "Is the {n} of the two the same?")
_HALVES = (
    (("left", "right"), ("Is the {n} on the left or on the right?", "On which side is the {n}, left or right?")),
    (("top", "bottom"), ("Is the {n} at the top or at the bottom?", "Where is the {n}, top or bottom?")),
)
"""Answers and wordings, by axis."""


def _ask(rng: np.random.Generator, wordings: tuple[str, ...], name: str) -> str:
    """A question about `name`, with the right article: "an orange star"."""
    question = pick(rng, wordings).format(n=name)
    for vowel in "aeiou":
        question = question.replace(f" a {vowel}", f" an {vowel}")
    return question


def _ask_only(rng: np.random.Generator, index: int) -> VisionDraft:
    """An attribute of the only item."""
    kind = pick_kind(rng)
    question = place(rng, [kind]), _ask(rng, (_WHICH_ONLY_SHAPE, _WHICH_COLOR, _WHICH_SIZE)[index], "shape")
    return VisionDraft(*question, (), kind[index], _VALUES[index])


def _ask_by_name(rng: np.random.Generator, index: int) -> VisionDraft:
    """The shape of a colour, or the colour of a shape."""
    kinds = distinct(rng, between(rng, 2, 4))
    question = place(rng, kinds), _ask(rng, (_WHICH_SHAPE, _WHICH_COLOR)[index], kinds[0][1 - index])
    return VisionDraft(*question, (), kinds[0][index], _VALUES[index])


def _ask_by_size(rng: np.random.Generator, index: int) -> VisionDraft:
    """The shape or the colour of the only item of a size."""
    count, size = between(rng, 2, 4), pick(rng, SIZES)
    kinds = _of_other_size(rng, size, count)
    question = place(rng, kinds), _ask(rng, (_WHICH_SHAPE, _WHICH_COLOR)[index], (size, f"{size} shape")[index])
    return VisionDraft(*question, (), kinds[0][index], _VALUES[index])


def _of_other_size(rng: np.random.Generator, size: str, count: int) -> list[Kind]:
    """Draw different items. Only the first has the given size."""
    return [(s, c, size if k == 0 else _OTHER_SIZE[size]) for k, (s, c, _) in enumerate(distinct(rng, count))]


def _size_named(rng: np.random.Generator) -> VisionDraft:
    kinds = distinct(rng, between(rng, 2, 4))
    shape, color, size = kinds[0]
    name = pick(rng, (shape, f"{color} shape", f"{color} {shape}"))
    return VisionDraft(place(rng, kinds), _ask(rng, _WHICH_SIZE, name), (), size, SIZES)


def _exists(rng: np.random.Generator, index: int) -> VisionDraft:
    kinds, there = distinct(rng, between(rng, 2, 4)), coin(rng)
    seen = [kind[index] for kind in kinds]
    value = seen[0] if there else pick(rng, [v for v in _VALUES[index] if v not in seen])
    name = value if index == _SHAPE else f"{value} shape"
    return VisionDraft(place(rng, kinds), _ask(rng, _EXISTS, name), (), YES_NO[not there], YES_NO)


def _exists_both(rng: np.random.Generator) -> VisionDraft:
    """A colour and a shape. If their item is missing, they are there on two items."""
    kinds, there = distinct(rng, between(rng, 2, 4)), coin(rng)
    name = f"{kinds[0 if there else 1][_COLOR]} {kinds[0][_SHAPE]}"
    return VisionDraft(place(rng, kinds), _ask(rng, _EXISTS, name), (), YES_NO[not there], YES_NO)


def _count_all(rng: np.random.Generator) -> VisionDraft:
    count = between(rng, 1, 8)
    scene = place(rng, [pick_kind(rng) for _ in range(count)])
    return VisionDraft(scene, _ask(rng, _HOW_MANY, "shapes"), (), str(count), NUMBERS)


def _count_color(rng: np.random.Generator) -> VisionDraft:
    wanted, rest = between(rng, 0, 5), between(rng, 1, 3)
    first, *others = several(rng, COLOR_NAMES, 4)
    kinds = [(pick(rng, SHAPES), first, pick(rng, SIZES)) for _ in range(wanted)]
    kinds += [(pick(rng, SHAPES), pick(rng, others), pick(rng, SIZES)) for _ in range(rest)]
    return VisionDraft(place(rng, kinds), _ask(rng, _HOW_MANY, f"{first} shapes"), (), str(wanted), NUMBERS)


def _count_shape(rng: np.random.Generator) -> VisionDraft:
    wanted, rest = between(rng, 0, 5), between(rng, 1, 3)
    first, *others = several(rng, SHAPES, 4)
    kinds = [(first, pick(rng, COLOR_NAMES), pick(rng, SIZES)) for _ in range(wanted)]
    kinds += [(pick(rng, others), pick(rng, COLOR_NAMES), pick(rng, SIZES)) for _ in range(rest)]
    return VisionDraft(place(rng, kinds), _ask(rng, _HOW_MANY, PLURALS[first]), (), str(wanted), NUMBERS)


def _half(rng: np.random.Generator, axis: int) -> VisionDraft:
    words, wordings = _HALVES[axis]
    scene = place(rng, distinct(rng, between(rng, 1, 4)))
    target = scene.items[0]
    name = pick(rng, (target.shape, f"{target.colour} shape", target.name))
    return VisionDraft(scene, _ask(rng, wordings, name), (), words[_at(target, axis) >= GRID // 2], words)


def _same(rng: np.random.Generator, index: int) -> VisionDraft:
    first, second = pick_kind(rng), list(pick_kind(rng))
    alike = coin(rng)
    second[index] = first[index] if alike else pick(rng, [v for v in _VALUES[index] if v != first[index]])
    scene = place(rng, [first, (second[0], second[1], second[2])])
    return VisionDraft(scene, _ask(rng, _SAME, _ATTRIBUTES[index]), (), YES_NO[not alike], YES_NO)


_WAYS = {"single": _ask_only, "named": _ask_by_name, "sized": _ask_by_size}
OBJECTS: Skills = {
    "colour": {name: partial(draw, index=_COLOR) for name, draw in _WAYS.items()},
    "shape": {name: partial(draw, index=_SHAPE) for name, draw in _WAYS.items()},
    "existence": {
        "colour": partial(_exists, index=_COLOR),
        "shape": partial(_exists, index=_SHAPE),
        "both": _exists_both,
    },
    "count": {"all": _count_all, "colour": _count_color, "shape": _count_shape},
    "position": {"side": partial(_half, axis=0), "height": partial(_half, axis=1)},
    "size": {"single": partial(_ask_only, index=_SIZE), "named": _size_named},
    "same": {_ATTRIBUTES[index]: partial(_same, index=index) for index in (_COLOR, _SHAPE, _SIZE)},
}


BESIDE = {"left of": (0, -1), "right of": (0, 1), "above": (1, -1), "below": (1, 1)}
"""The coordinate that a relation compares, and its sign."""
EXTREMES = {"leftmost": (0, -1), "rightmost": (0, 1), "highest": (1, -1), "lowest": (1, 1)}
_AXES = ("column", "row")


def _at(item: Item, axis: int) -> int:
    return (item.column, item.row)[axis]


def _locate(item: Item, axis: int) -> str:
    return f"{item.name}: {_AXES[axis]} {_at(item, axis) + 1}"


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


def _relation(rng: np.random.Generator, words: tuple[str, str]) -> VisionDraft:
    relation = pick(rng, words)
    axis, sign = BESIDE[relation]
    scene = _apart(rng, between(rng, 2, 4), axis)
    a, b = scene.items[:2]
    holds = sign * (_at(a, axis) - _at(b, axis)) > 0
    wordings = (f"Is the {a.name} {relation} the {b.name}?", f"Does the {a.name} lie {relation} the {b.name}?")
    return VisionDraft(scene, pick(rng, wordings), (_locate(a, axis), _locate(b, axis)), YES_NO[not holds], YES_NO)


def _neighbor(rng: np.random.Generator) -> VisionDraft:
    relation = pick(rng, tuple(BESIDE))
    axis, sign = BESIDE[relation]
    scene = _apart(rng, between(rng, 2, 4), axis)
    *_, reference, target = in_order(scene, axis, sign)  # Only the last item is beyond the last but one.
    steps = (_locate(reference, axis), f"{relation}: {target.name}")
    if coin(rng):
        return VisionDraft(scene, f"Which shape is {relation} the {reference.name}?", steps, target.shape, SHAPES)
    question = f"What colour is the shape {relation} the {reference.name}?"
    return VisionDraft(scene, question, steps, target.colour, COLOR_NAMES)


def _extreme(rng: np.random.Generator, words: dict[str, str]) -> VisionDraft:
    """The first or last item along a direction; `words` maps each extreme to its direction."""
    word = pick(rng, tuple(words))
    axis, sign = EXTREMES[word]
    scene = _apart(rng, between(rng, 3, 4), axis)
    along = in_order(scene, axis, -sign)
    steps = (f"{words[word]}: {join_names(along)}",)
    if coin(rng):
        return VisionDraft(scene, f"What colour is the {word} shape?", steps, along[0].colour, COLOR_NAMES)
    return VisionDraft(scene, f"Which shape is the {word} one?", steps, along[0].shape, SHAPES)


def _kind(rng: np.random.Generator, index: int, value: str) -> Kind:
    """Draw an item with the shape or colour `value`."""
    other, size = pick(rng, _VALUES[1 - index]), pick(rng, SIZES)
    return (value, other, size) if index == _SHAPE else (other, value, size)


def _name_kind(index: int, value: str) -> str:
    return PLURALS[value] if index == _SHAPE else value


def _name_group(index: int, value: str) -> str:
    return PLURALS[value] if index == _SHAPE else f"{value} shapes"


def _tally(index: int, values: list[str], counts: list[int]) -> tuple[str, ...]:
    return tuple(f"{_name_kind(index, v)}: {n}" for v, n in zip(values, counts, strict=True))


def _crowd(rng: np.random.Generator, index: int, values: list[str], counts: list[int]) -> Scene:
    """Draw `counts[k]` items with the shape or colour `values[k]`, in random order."""
    kinds = [_kind(rng, index, value) for value, count in zip(values, counts, strict=True) for _ in range(count)]
    return place(rng, [kinds[int(k)] for k in rng.permutation(len(kinds))])


def _odd(rng: np.random.Generator, index: int) -> VisionDraft:
    """One item differs from all others in one attribute, in which the others are equal."""
    count = between(rng, 4, 7)
    usual, odd = several(rng, _VALUES[index], 2)
    scene = place(rng, [_kind(rng, index, odd if k == 0 else usual) for k in range(count)])
    steps = (f"{_name_kind(index, usual)}: {count - 1}", f"{odd}: 1")
    word = _ATTRIBUTES[index]
    wordings = (f"Which {word} is there only once?", f"Which {word} is the odd one out?")
    return VisionDraft(scene, pick(rng, wordings), steps, odd, _VALUES[index])


def _odd_size(rng: np.random.Generator) -> VisionDraft:
    size = pick(rng, SIZES)
    scene = place(rng, _of_other_size(rng, size, between(rng, 3, 6)))
    first = scene.items[0]
    question = "What colour is the shape that differs in size?"
    return VisionDraft(scene, question, (f"{size}: {first.name}",), first.colour, COLOR_NAMES)


def _most(rng: np.random.Generator, index: int) -> VisionDraft:
    values = several(rng, _VALUES[index], between(rng, 2, 3))
    high = between(rng, 2, 4)
    counts = [high] + [between(rng, 1, high - 1) for _ in values[1:]]
    word = _ATTRIBUTES[index]
    wordings = (f"Which {word} is the most common?", f"Which {word} is there most often?")
    scene = _crowd(rng, index, values, counts)
    order = [int(k) for k in rng.permutation(len(values))]  # The order of the tally does not reveal the answer.
    steps = _tally(index, [values[k] for k in order], [counts[k] for k in order])
    return VisionDraft(scene, pick(rng, wordings), steps, values[0], _VALUES[index])


def _both(rng: np.random.Generator) -> VisionDraft:
    """Items of one colour and shape, among others with only the same colour or only the same shape."""
    shape, other_shape = several(rng, SHAPES, 2)
    color, other_color = several(rng, COLOR_NAMES, 2)
    wanted, halves = between(rng, 0, 4), between(rng, 2, 4)
    alike = [(shape, color)] * wanted
    others = [(shape, other_color) if k % 2 else (other_shape, color) for k in range(halves)]
    scene = place(rng, [(s, c, pick(rng, SIZES)) for s, c in alike + others])
    question = _ask(rng, _HOW_MANY[:2], f"{color} {PLURALS[shape]}")
    return VisionDraft(scene, question, (), str(wanted), NUMBERS)


def _not(rng: np.random.Generator) -> VisionDraft:
    index = between(rng, 0, 1)
    values = several(rng, _VALUES[index], 3)
    counts = [between(rng, 1, 4), between(rng, 0, 2), between(rng, 1, 2)]
    scene = _crowd(rng, index, values, counts)
    total, name = sum(counts), _name_kind(index, values[0])
    steps = (f"all: {total}", f"{name}: {counts[0]}", f"{total}-{counts[0]}={total - counts[0]}")
    return VisionDraft(scene, f"How many shapes are not {name}?", steps, str(total - counts[0]), NUMBERS)


def _with_size(rng: np.random.Generator) -> VisionDraft:
    size = pick(rng, SIZES)
    wanted, rest = between(rng, 0, 5), between(rng, 1, 4)
    sizes = [size] * wanted + [_OTHER_SIZE[size]] * rest
    kinds = [(pick(rng, SHAPES), pick(rng, COLOR_NAMES), own) for own in sizes]
    return VisionDraft(place(rng, kinds), f"How many {size} shapes are there?", (), str(wanted), NUMBERS)


def _two_groups(rng: np.random.Generator, way: str) -> VisionDraft:
    """Compare or combine the counts of two groups, perhaps among others; or remove the first."""
    index = between(rng, 0, 1)
    a, b, rest = several(rng, _VALUES[index], 3)
    m, n = between(rng, 1, 4), between(rng, 1, 4)
    if way == "difference":
        m += n
    scene = _crowd(rng, index, [a, b, rest], [m, n, between(rng, 0, 2)])
    tally, first, second = _tally(index, [a, b], [m, n]), _name_group(index, a), _name_group(index, b)
    if way == "more":
        return VisionDraft(scene, f"Are there more {first} than {second}?", tally, YES_NO[m <= n], YES_NO)
    if way == "left_over":
        m, n = len(scene.items), m
        tally = (f"all: {m}", tally[0])
    question, sign, result = {
        "sum": (f"How many {first} and {second} are there together?", "+", m + n),
        "difference": (f"How many more {first} than {second} are there?", "-", m - n),
        "left_over": (f"All {first} are taken away. How many shapes are left?", "-", m - n),
    }[way]
    return VisionDraft(scene, question, (*tally, f"{m}{sign}{n}={result}"), str(result), NUMBERS)


def _pattern(rng: np.random.Generator, index: int, period: int) -> VisionDraft:
    """A repeating sequence in reading order; the next cell is empty."""
    word, choices = _ATTRIBUTES[index], _VALUES[index]
    values = several(rng, choices, period)
    length, top, size = between(rng, 2 * period, 7), between(rng, 0, 2), pick(rng, SIZES)
    steady = pick(rng, _VALUES[1 - index])
    shown = [values[k % period] for k in range(length)]
    kinds: list[Kind] = [(v, steady, size) if index == _SHAPE else (steady, v, size) for v in shown]
    scene = place(rng, kinds, [(k % GRID, top + k // GRID) for k in range(length)])
    wordings = (f"The shapes go on in this way. Which {word} comes next?", f"Which {word} comes next in the row?")
    return VisionDraft(scene, pick(rng, wordings), (", ".join(shown),), values[length % period], choices)


RELATIONS: Skills = {
    "relation": {
        "beside": partial(_relation, words=("left of", "right of")),
        "over": partial(_relation, words=("above", "below")),
        "neighbour": _neighbor,
    },
    "extreme": {
        "side": partial(_extreme, words={"leftmost": "from the left", "rightmost": "from the right"}),
        "height": partial(_extreme, words={"highest": "from the top", "lowest": "from the bottom"}),
    },
    "odd_one_out": {"shape": partial(_odd, index=_SHAPE), "colour": partial(_odd, index=_COLOR), "size": _odd_size},
    "majority": {
        "shape": partial(_most, index=_SHAPE),
        "colour": partial(_most, index=_COLOR),
        "more": partial(_two_groups, way="more"),
    },
    "count_logic": {"both": _both, "not": _not, "sized": _with_size},
    "count_arithmetic": {way: partial(_two_groups, way=way) for way in ("sum", "difference", "left_over")},
    "pattern": {
        "colour": partial(_pattern, index=_COLOR, period=2),
        "shape": partial(_pattern, index=_SHAPE, period=2),
        "three_colours": partial(_pattern, index=_COLOR, period=3),
    },
}
