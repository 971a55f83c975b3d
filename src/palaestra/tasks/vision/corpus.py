"""The pretraining corpus of `nano-vlm`: basic perception in many wordings, drills, and a small part of other skills.

The skills of `SEEN` are included in full. The components of the other skills (listing along a direction, tallies, columns
and rows, values of bars and lines, small sums) are drilled separately, with different wordings. These skills themselves are only
a small part (`TRACE`), so that lessons can teach them. Every image is of the train split.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from palaestra.core.records import Split
from palaestra.tasks.procedural import between, pick
from palaestra.tasks.recipes import Drawer, RecipeBook, flip_coin
from palaestra.tasks.vision import drafts
from palaestra.tasks.vision.drafts import PLURALS, SEEN, SKILLS, TAUGHT, pick_kind, place
from palaestra.tasks.vision.scene import COLOR_NAMES, SHAPES, Scene, scene_split

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
    drawers = list(SKILLS[skill].values())
    while True:
        draft = drawers[int(rng.integers(len(drawers)))](rng)
        if scene_split(draft.scene) is Split.TRAIN:
            return Shown(draft.scene, draft.question, draft.response, skill)


def _train(rng: np.random.Generator, drills: Sequence[Drawer[Shown]]) -> Shown:
    drill = drills[int(rng.integers(len(drills)))]
    while True:
        shown = drill(rng)
        if shown.scene is not None and scene_split(shown.scene) is Split.TRAIN:
            return shown


def draw_some(rng: np.random.Generator, most: int = 6) -> Scene:
    return place(rng, [pick_kind(rng) for _ in range(between(rng, 1, most))])


def _count_kinds(scene: Scene, by_shape: bool) -> str:
    counts = Counter(item.shape if by_shape else item.colour for item in scene.items)
    known = [value for value in (SHAPES if by_shape else COLOR_NAMES) if counts[value]]
    return " ".join(f"{PLURALS[v] if by_shape else v}: {counts[v]}." for v in known)


def _small_sum(rng: np.random.Generator) -> Shown:
    a, b = between(rng, 0, 9), between(rng, 0, 9)
    if flip_coin(rng):
        wording = pick(rng, ("What is {a} + {b}?", "Compute {a}+{b}.", "Add {a} and {b}."))
        return Shown(None, wording.format(a=a, b=b), f"{a}+{b}={a + b}. Answer: {a + b}")
    a, b = max(a, b), min(a, b)
    wording = pick(rng, ("What is {a} - {b}?", "Compute {a}-{b}.", "Take {b} away from {a}."))
    return Shown(None, wording.format(a=a, b=b), f"{a}-{b}={a - b}. Answer: {a - b}")


_BOOK = RecipeBook(__file__, Shown, {**vars(drafts), **globals()}, {"scene": "scene"})
_REWORDED, _DRILLS = (list(drills.values()) for drills in _BOOK.read("corpus").values())
