"""Pictures of two shapes with captions in one of several wordings. The hidden splits have all wordings of their pictures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from palaestra.core.tables import load_table

SIDE = 20
SIZES = {"train": 1200, "validation": 250, "test": 400}
COLORS: dict[str, list[float]] = load_table(__file__, "colors")
SHAPES = ("circle", "square", "triangle", "cross")
RADII = {"small": 2.0, "large": 3.6}
OPPOSITE = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}
Thing = tuple[str, str, str]


def make(public: Path, hidden: Path, rng: np.random.Generator) -> None:
    for split, size in SIZES.items():
        pictures, wordings = zip(*(draw_picture(rng) for _ in range(size)), strict=True)
        np.save(public / f"{split}_pictures.npy", np.stack(pictures))
        if split == "train":
            captions = [texts[int(rng.integers(len(texts)))] for texts in wordings]
            (public / "train_captions.json").write_text(json.dumps(captions), encoding="utf-8")
        else:
            (hidden / f"{split}.json").write_text(json.dumps(wordings), encoding="utf-8")


def draw_picture(rng: np.random.Generator) -> tuple[np.ndarray, list[str]]:
    """A picture of 20 by 20 pixels in three colors, as bytes, and all wordings of its caption."""
    while True:
        first, second = rng.uniform(4, SIDE - 5, (2, 2))
        across, down = np.abs(first - second)[::-1]
        if max(across, down) > 8 and abs(across - down) > 3:
            break
    things: list[Thing] = []
    picture = np.ones((SIDE, SIDE, 3)) * rng.uniform(0.0, 0.35, 3)
    for place in (first, second):
        size, color, shape = (str(rng.choice(list(names))) for names in (RADII, COLORS, SHAPES))
        tint = np.clip(np.array(COLORS[color]) + rng.normal(0, 0.08, 3), 0, 1)
        picture[draw_mask(shape, place, RADII[size] * rng.uniform(0.85, 1.15))] = tint
        things.append((size, color, shape))
    picture += rng.normal(0, 0.08, picture.shape)
    if across > down:
        relation = "left of" if first[1] < second[1] else "right of"
    else:
        relation = "above" if first[0] < second[0] else "below"
    wordings = describe(things[0], relation, things[1]) + describe(things[1], OPPOSITE[relation], things[0])
    return (picture.clip(0, 1) * 255).astype(np.uint8), wordings


def draw_mask(shape: str, place: np.ndarray, radius: float) -> np.ndarray:
    rows, columns = np.mgrid[:SIDE, :SIDE] - place[:, None, None]
    reach = np.maximum(np.abs(rows), np.abs(columns))
    masks: dict[str, np.ndarray] = {
        "circle": rows**2 + columns**2 <= radius**2,
        "square": reach <= radius * 0.9,
        "triangle": (rows <= radius * 0.8) & (rows >= 2.2 * np.abs(columns) - radius * 1.2),
        "cross": (np.minimum(np.abs(rows), np.abs(columns)) <= radius * 0.3) & (reach <= radius),
    }
    return masks[shape]


def describe(one: Thing, relation: str, other: Thing) -> list[str]:
    a, b = " ".join(one), " ".join(other)
    return [
        f"a {a} {relation} a {b}", f"a {a} is {relation} a {b}", f"there is a {a} {relation} a {b}",
        f"{relation} a {b} is a {a}",
    ]  # fmt: skip
