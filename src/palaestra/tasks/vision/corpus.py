"""The pretraining corpus of `nano-vlm`: basic perception in many wordings, drills, and a small part of other skills.

The skills of `SEEN` are included in full. The components of the other skills (listing along a direction, tallies, columns
and rows, values of bars and lines, small sums) are drilled separately, with different wordings. These skills themselves are only
a small part (`TRACE`), so that lessons can teach them. Every image is of the train split.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from palaestra.core.records import Split
from palaestra.tasks.content import read_content
from palaestra.tasks.procedural import between, pick
from palaestra.tasks.vision.charts import CHARTS_READ, CHARTS_SEEN, bars, line, line_values, pie
from palaestra.tasks.vision.drafts import PLURALS, Skills, coin, distinct, pick_kind, place
from palaestra.tasks.vision.scene import COLOR_NAMES, SHAPES, SIZES, Scene, scene_split
from palaestra.tasks.vision.shapes import OBJECTS, RELATIONS, in_order, join_names

SEEN: Skills = {**OBJECTS, **CHARTS_SEEN}
"""The easy half of the skills, which the base model should know."""
TAUGHT: Skills = {**RELATIONS, **CHARTS_READ}
"""The skills that lessons should teach."""

TRACE: Mapping[str, float] = {**dict.fromkeys(TAUGHT, 0.01), "relation": 0.02}
"""Percentage of the corpus for each skill that lessons teach."""
_SKILL_FRACTION, _REWORDED_FRACTION, _DRILL_FRACTION = 0.50, 0.15, 0.29
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
    names, fractions = list(TRACE), np.array(list(TRACE.values()))
    while True:
        draw = generator.random()
        if draw < trace:
            yield of_skill(generator, names[int(generator.choice(len(names), p=fractions / fractions.sum()))])
        elif draw < _SKILL_FRACTION:
            yield of_skill(generator, pick(generator, tuple(SEEN)))
        elif draw < _SKILL_FRACTION + _REWORDED_FRACTION:
            yield _train(generator, _REWORDED)
        elif draw < _SKILL_FRACTION + _REWORDED_FRACTION + _DRILL_FRACTION:
            yield _train(generator, _DRILLS)
        else:
            yield _small_sum(generator)


def of_skill(rng: np.random.Generator, skill: str) -> Shown:
    """A question of `skill` about an image of the train split."""
    drawers = list({**SEEN, **TAUGHT}[skill].values())
    while True:
        draft = drawers[int(rng.integers(len(drawers)))](rng)
        if scene_split(draft.scene) is Split.TRAIN:
            return Shown(draft.scene, draft.question, draft.response, skill)


_Drill = Callable[[np.random.Generator], Shown]


def _train(rng: np.random.Generator, drills: tuple[_Drill, ...]) -> Shown:
    drill = drills[int(rng.integers(len(drills)))]
    while True:
        shown = drill(rng)
        if shown.scene is not None and scene_split(shown.scene) is Split.TRAIN:
            return shown


def _some(rng: np.random.Generator, most: int = 6) -> Scene:
    return place(rng, [pick_kind(rng) for _ in range(between(rng, 1, most))])


_CONTENT: Mapping[str, Any] = read_content("vision")
"""Questions about one shape, each with the attribute that answers it; and questions of yes or no."""


def _single(rng: np.random.Generator) -> Shown:
    """One shape, in a dozen wordings."""
    item = place(rng, [pick_kind(rng)]).items[0]
    wording, attribute = _CONTENT["single"][int(rng.integers(len(_CONTENT["single"])))]
    question = wording.format(shape=item.shape, colour=item.colour)
    return Shown(Scene((item,)), question, f"Answer: {getattr(item, attribute)}")


def _is_it(rng: np.random.Generator) -> Shown:
    """A yes-or-no question about some shapes."""
    kinds, true = distinct(rng, between(rng, 1, 3)), coin(rng)
    scene = place(rng, kinds)
    item = scene.items[0]
    shape, color = item.shape, item.colour
    if not true:
        shape = pick(rng, [s for s in SHAPES if s not in {k[0] for k in kinds}])
        color = pick(rng, [c for c in ("red", "green", "blue", "yellow") if c not in {k[1] for k in kinds}])
    wording = pick(rng, _CONTENT["is_it"]).format(shape=shape, colour=color)
    negated = " not " in wording or wording.startswith("is no ")
    return Shown(scene, wording, f"Answer: {'yes' if true != negated else 'no'}")


def _how_many(rng: np.random.Generator) -> Shown:
    scene = _some(rng, 8)
    item = scene.items[0]
    same_shape = sum(i.shape == item.shape for i in scene.items)
    same_color = sum(i.colour == item.colour for i in scene.items)
    shapes = PLURALS[item.shape]
    counts = {
        "How many things are in the picture?": len(scene.items),
        "How many shapes do you see?": len(scene.items),
        f"How many {shapes} do you see?": same_shape,
        f"Number of {shapes}?": same_shape,
        f"How many things are {item.colour}?": same_color,
        f"Number of {item.colour} shapes?": same_color,
    }
    wording = pick(rng, tuple(counts))
    return Shown(scene, wording, f"Answer: {counts[wording]}")


_DIRECTIONS = {"left to right": (0, 1), "right to left": (0, -1), "top to bottom": (1, 1), "bottom to top": (1, -1)}
"""The axis and the sign of `in_order`."""


def _list_along(rng: np.random.Generator) -> Shown:
    scene = place(rng, distinct(rng, between(rng, 1, 5)))
    words = pick(rng, tuple(_DIRECTIONS))
    wording = pick(rng, ("List the shapes from {w}.", "Name all shapes, {w}.", "What do you see from {w}?"))
    return Shown(scene, wording.format(w=words), f"{join_names(in_order(scene, *_DIRECTIONS[words]))}.")


def _describe(rng: np.random.Generator) -> Shown:
    scene = _some(rng)
    names = join_names(sorted(scene.items, key=lambda item: (item.row, item.column)))
    wordings = ("Describe the picture.", "What is in the picture?", "Read the picture.")
    return Shown(scene, pick(rng, wordings), f"{names}.")


def _tally(rng: np.random.Generator) -> Shown:
    scene, by_shape = _some(rng, 8), coin(rng)
    wording = pick(rng, ("Count every {w}.", "Tally the {w}s.", "How often is each {w} there?"))
    counts = Counter(item.shape if by_shape else item.colour for item in scene.items)
    known = [value for value in (SHAPES if by_shape else COLOR_NAMES) if counts[value]]
    tally = " ".join(f"{PLURALS[v] if by_shape else v}: {counts[v]}." for v in known)
    return Shown(scene, wording.format(w="shape" if by_shape else "colour"), tally)


def _where(rng: np.random.Generator) -> Shown:
    scene = place(rng, distinct(rng, between(rng, 1, 4)))
    item, by_row = scene.items[0], coin(rng)
    word, at = ("row", item.row + 1) if by_row else ("column", item.column + 1)
    wording = pick(rng, ("In which {w} is the {n}?", "Name the {w} of the {n}.", "The {n} is in which {w}?"))
    return Shown(scene, wording.format(w=word, n=item.name), f"{item.name}: {word} {at}. Answer: {at}")


def _read_bars(rng: np.random.Generator) -> Shown:
    chart = bars(rng)
    values = " ".join(f"{c}: {v}." for c, v in zip(chart.colours, chart.values, strict=True))
    return Shown(Scene(chart=chart), pick(rng, ("Read the bars.", "List the bars with their values.")), values)


def _read_line(rng: np.random.Generator) -> Shown:
    chart = line(rng, steady=coin(rng) and coin(rng))
    question = pick(rng, ("Read the line.", "List the points of the line."))
    return Shown(Scene(chart=chart), question, f"{line_values(chart)}.")


def _read_pie(rng: np.random.Generator) -> Shown:
    chart = pie(rng)
    order = sorted(zip(chart.values, chart.colours, strict=True), reverse=True)
    return Shown(Scene(chart=chart), "List the slices from large to small.", f"{', '.join(c for _, c in order)}.")


def _read_row(rng: np.random.Generator) -> Shown:
    """Colours or shapes in reading order, without a pattern."""
    count, by_shape = between(rng, 3, 7), coin(rng)
    kinds = [pick_kind(rng) for _ in range(count)]
    size, top = pick(rng, SIZES), between(rng, 0, 2)
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


_REWORDED: tuple[_Drill, ...] = (_single, _is_it, _how_many)
_DRILLS: tuple[_Drill, ...] = (
    *(_list_along, _describe, _tally, _where),
    *(_read_bars, _read_line, _read_pie, _read_row),
)
