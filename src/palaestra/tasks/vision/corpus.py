"""The pretraining corpus of `nano-vlm`: basic perception in many wordings, drills, and a small part of other skills.

The skills of `SEEN` are included in full. The components of the other skills (listing along a direction, tallies, columns
and rows, values of bars and lines, small sums) are drilled separately, with different wordings. These skills themselves are only
a small part (`TRACE`), so that lessons can teach them. Every image is of the train split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from palaestra.core.records import Split
from palaestra.tasks.sampling import between, pick
from palaestra.tasks.vision.charts import CHARTS_READ, CHARTS_SEEN, bars, line, line_values, pie
from palaestra.tasks.vision.scene import (
    PLURALS,
    SHAPES,
    Item,
    Scene,
    VisionDraft,
    VisionSkill,
    any_size,
    coin,
    distinct,
    number,
    place,
    scene_split,
)
from palaestra.tasks.vision.shapes import OBJECTS, RELATIONS, in_order, join_names, pick_kind, tally

SEEN: tuple[VisionSkill, ...] = (*OBJECTS, *CHARTS_SEEN)
"""The easy half of the skills, which the base model should know."""
TAUGHT: tuple[VisionSkill, ...] = (*RELATIONS, *CHARTS_READ)
"""The skills that lessons should teach."""

TRACE: Mapping[str, float] = {
    "relation": 0.02, "extreme": 0.01, "odd_one_out": 0.01, "majority": 0.01, "count_logic": 0.01,
    "count_arithmetic": 0.01, "pattern": 0.01, "bar_values": 0.01, "line_chart": 0.01,
}  # fmt: skip
"""Percentage of the corpus for each skill that lessons teach."""
SKILL_SHARE, REWORDED_SHARE, DRILL_SHARE = 0.50, 0.15, 0.29
"""Fractions of the corpus; small sums without an image are the rest."""


@dataclass(frozen=True, slots=True)
class Shown:
    """One datum of the corpus: the image if any, the question, the response, and the skill if any."""

    scene: Scene | None
    question: str
    response: str
    skill: str = ""


def corpus(generator: np.random.Generator) -> Iterator[Shown]:
    """An endless stream of pretraining data."""
    trace = sum(TRACE.values()) / 100
    names, shares = list(TRACE), np.array(list(TRACE.values()))
    taught = {skill.name: skill for skill in TAUGHT}
    while True:
        draw = generator.random()
        if draw < trace:
            skill = taught[names[int(generator.choice(len(names), p=shares / shares.sum()))]]
            yield of_skill(generator, skill)
        elif draw < SKILL_SHARE:
            yield of_skill(generator, SEEN[int(generator.integers(len(SEEN)))])
        elif draw < SKILL_SHARE + REWORDED_SHARE:
            yield _train(generator, REWORDED)
        elif draw < SKILL_SHARE + REWORDED_SHARE + DRILL_SHARE:
            yield _train(generator, DRILLS)
        else:
            yield _small_sum(generator)


def of_skill(rng: np.random.Generator, skill: VisionSkill) -> Shown:
    """A question of `skill` about an image of the train split."""
    drawers = list(skill.subskills.values())
    while True:
        draft: VisionDraft = drawers[int(rng.integers(len(drawers)))](rng)
        if scene_split(draft.scene) is Split.TRAIN:
            return Shown(draft.scene, draft.question, draft.response, skill.name)


Drill = Callable[[np.random.Generator], Shown]


def _train(rng: np.random.Generator, drills: tuple[Drill, ...]) -> Shown:
    drill = drills[int(rng.integers(len(drills)))]
    while True:
        shown = drill(rng)
        if shown.scene is not None and scene_split(shown.scene) is Split.TRAIN:
            return shown


def _some(rng: np.random.Generator, most: int = 6) -> Scene:
    return place(rng, [pick_kind(rng) for _ in range(between(rng, 1, most))])


def _lone(rng: np.random.Generator) -> Item:
    return place(rng, [pick_kind(rng)]).items[0]


def _single(rng: np.random.Generator) -> Shown:
    """One shape, in a dozen wordings."""
    item = _lone(rng)
    wording, answer = (
        ("what color is the shape?", item.colour), ("what is the color of the shape?", item.colour),
        (f"what color is the {item.shape}?", item.colour), (f"what is the color of the {item.shape}?", item.colour),
        ("what shape is this?", item.shape), ("what shape does the image contain?", item.shape),
        ("what shape is in the image?", item.shape), (f"what is the {item.colour} shape?", item.shape),
        ("Which colour do you see?", item.colour), ("How big is the shape?", item.size),
        ("Say what is in the picture.", item.name), ("What is this?", item.name),
    )[int(rng.integers(12))]  # fmt: skip
    return Shown(Scene((item,)), wording, f"Answer: {answer}")


def _is_it(rng: np.random.Generator) -> Shown:
    """A yes-or-no question about some shapes."""
    kinds, true = distinct(rng, between(rng, 1, 3)), coin(rng)
    scene = place(rng, kinds)
    item = scene.items[0]
    others = [s for s in SHAPES if s not in {k[0] for k in kinds}]
    shape = item.shape if true else pick(rng, others)
    colours = {k[1] for k in kinds}
    colour = item.colour if true else pick(rng, [c for c in ("red", "green", "blue", "yellow") if c not in colours])
    wording = pick(
        rng,
        (
            f"does the image contain a {shape}?", f"is there a {shape} in the image?", f"does the image not contain a {shape}?",
            f"is there a {colour} shape?", f"does the image contain a {colour} shape?", f"is no {colour} shape present?",
            f"is a {shape} present?", f"Do you see anything {colour}?",
        ),
    )  # fmt: skip
    negated = " not " in wording or wording.startswith("is no ")
    return Shown(scene, wording, f"Answer: {'yes' if true != negated else 'no'}")


def _how_many(rng: np.random.Generator) -> Shown:
    scene = _some(rng, 8)
    item = scene.items[0]
    same_shape = sum(i.shape == item.shape for i in scene.items)
    same_colour = sum(i.colour == item.colour for i in scene.items)
    wording, count = (
        ("How many things are in the picture?", len(scene.items)), ("How many shapes do you see?", len(scene.items)),
        (f"How many {PLURALS[item.shape]} do you see?", same_shape), (f"Number of {PLURALS[item.shape]}?", same_shape),
        (f"How many things are {item.colour}?", same_colour), (f"Number of {item.colour} shapes?", same_colour),
    )[int(rng.integers(6))]  # fmt: skip
    return Shown(scene, wording, f"Answer: {count}")


def _list_along(rng: np.random.Generator) -> Shown:
    scene = place(rng, distinct(rng, between(rng, 1, 5)))
    axis, sign, words = ((0, 1, "left to right"), (0, -1, "right to left"), (1, 1, "top to bottom"), (1, -1, "bottom to top"))[
        int(rng.integers(4))
    ]  # fmt: skip
    wording = pick(rng, ("List the shapes from {w}.", "Name all shapes, {w}.", "What do you see from {w}?"))
    return Shown(scene, wording.format(w=words), f"{join_names(in_order(scene, axis, sign))}.")


def _describe(rng: np.random.Generator) -> Shown:
    scene = _some(rng)
    names = join_names(sorted(scene.items, key=lambda item: (item.row, item.column)))
    return Shown(
        scene, pick(rng, ("Describe the picture.", "What is in the picture?", "Read the picture.")), f"{names}."
    )


def _tally(rng: np.random.Generator) -> Shown:
    scene, by_shape = _some(rng, 8), coin(rng)
    wording = pick(rng, ("Count every {w}.", "Tally the {w}s.", "How often is each {w} there?"))
    steps = tally(scene, by_shape=by_shape)
    return Shown(scene, wording.format(w="shape" if by_shape else "colour"), "".join(f"{s}. " for s in steps).strip())


def _where(rng: np.random.Generator) -> Shown:
    scene = place(rng, distinct(rng, between(rng, 1, 4)))
    item, by_row = scene.items[0], coin(rng)
    word, at = ("row", item.row + 1) if by_row else ("column", item.column + 1)
    wording = pick(rng, ("In which {w} is the {n}?", "Name the {w} of the {n}.", "The {n} is in which {w}?"))
    return Shown(scene, wording.format(w=word, n=item.name), f"{item.name}: {word} {at}. Answer: {at}")


def _read_bars(rng: np.random.Generator) -> Shown:
    chart = bars(rng)
    values = " ".join(f"{number(v, c)}." for c, v in zip(chart.colours, chart.values, strict=True))
    return Shown(Scene(chart=chart), pick(rng, ("Read the bars.", "List the bars with their values.")), values)


def _read_line(rng: np.random.Generator) -> Shown:
    chart = line(rng, steady=coin(rng) and coin(rng))
    return Shown(
        Scene(chart=chart), pick(rng, ("Read the line.", "List the points of the line.")), f"{line_values(chart)}."
    )


def _read_pie(rng: np.random.Generator) -> Shown:
    chart = pie(rng)
    order = sorted(zip(chart.values, chart.colours, strict=True), reverse=True)
    return Shown(Scene(chart=chart), "List the slices from large to small.", f"{', '.join(c for _, c in order)}.")


def _read_row(rng: np.random.Generator) -> Shown:
    """Colours or shapes in reading order, without a pattern."""
    count, by_shape = between(rng, 3, 7), coin(rng)
    kinds = [pick_kind(rng) for _ in range(count)]
    size, top = any_size(rng), between(rng, 0, 2)
    scene = place(rng, [(s, c, size) for s, c, _ in kinds], [(k % 4, top + k // 4) for k in range(count)])
    names = ", ".join(k[0] if by_shape else k[1] for k in kinds)
    return Shown(scene, f"Read the {'shapes' if by_shape else 'colours'} row by row.", f"{names}.")


def _small_sum(rng: np.random.Generator) -> Shown:
    a, b = between(rng, 0, 9), between(rng, 0, 9)
    if coin(rng):
        wording = pick(rng, ("What is {a} + {b}?", "Compute {a}+{b}.", "Add {a} and {b}."))
        return Shown(None, wording.format(a=a, b=b), f"{a}+{b}={a + b}. Answer: {a + b}")
    a, b = max(a, b), min(a, b)
    wording = pick(rng, ("What is {a} - {b}?", "Compute {a}-{b}.", "Take {b} away from {a}."))
    return Shown(None, wording.format(a=a, b=b), f"{a}-{b}={a - b}. Answer: {a - b}")


REWORDED: tuple[Drill, ...] = (_single, _is_it, _how_many)
DRILLS: tuple[Drill, ...] = (
    _list_along, _describe, _tally, _where, _read_bars, _read_line, _read_pie, _read_row,
)  # fmt: skip
