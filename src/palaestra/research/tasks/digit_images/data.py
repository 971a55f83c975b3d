"""Distorted digits of scikit-learn's data set: rotated, bent, shifted, faded, with marks and noise.

Each original is in one split only, and cannot be recovered from its distorted images.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from palaestra.research.judge.tables import write_right

SIDE = 20
SPLITS = {"train": (800, 1), "validation": (350, 2), "test": (647, 2)}
"""Numbers of originals, and of pictures of each."""


def make(public: Path, hidden: Path, rng: np.random.Generator) -> None:
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    collection = load_digits()
    order = rng.permutation(len(collection.target))
    start = 0
    for split, (originals, copies) in SPLITS.items():
        chosen = rng.permutation(np.repeat(order[start : start + originals], copies))
        start += originals
        pictures = np.stack([drawn(collection.images[k] / 16.0, rng) for k in chosen])
        labels = collection.target[chosen].astype(np.int64)
        np.save(public / f"{split}_images.npy", pictures)
        if split == "train":
            np.save(public / "train_labels.npy", labels)
        else:
            write_right(hidden, split, [f"{split}-{k}" for k in range(len(labels))], labels.tolist())


def drawn(original: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Make a picture of 20 by 20 grey values from a digit of 8 by 8."""
    angle, shear = rng.normal(0, 0.2), rng.normal(0, 0.15)
    size = rng.uniform(0.42, 0.56) * np.exp(rng.normal(0, 0.08, 2))
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]) @ np.array([[1, shear], [0, 1]])
    middle = (SIDE - 1) / 2
    grid = np.stack(np.meshgrid(np.arange(SIDE), np.arange(SIDE), indexing="ij"), axis=-1) - middle
    # The source coordinates of each pixel: an affine map plus a slow wave in each direction.
    looks = (grid - rng.uniform(-1.5, 1.5, 2)) @ turn.T * size + 3.5
    for axis in (0, 1):
        wave = rng.uniform(0.15, 0.35, 2)
        looks[..., axis] += rng.uniform(0.2, 0.6) * np.sin(grid @ wave + rng.uniform(0, 2 * np.pi))
    ink = blended(original, looks) ** rng.uniform(0.6, 1.6)
    # Marks: strokes as dark as the digit's own, and an erased spot.
    for _ in range(rng.integers(0, 2)):
        a, b = rng.uniform(0, SIDE, 2), rng.uniform(0, SIDE, 2)
        along = np.linspace(0, 1, 30)[:, None]
        rows, columns = np.clip((a + along * (b - a)).astype(int), 0, SIDE - 1).T
        ink[rows, columns] = np.maximum(ink[rows, columns], rng.uniform(0.3, 0.8))
    spot = rng.uniform(-middle, middle, 2)
    ink *= 1 - 0.9 * np.exp(-((grid - spot) ** 2).sum(-1) / rng.uniform(1.0, 6.0))
    paper = rng.uniform(0.0, 0.3) + (grid @ rng.normal(0, 0.01, 2))
    picture = paper + (rng.uniform(0.5, 1.0) - paper) * ink + rng.normal(0, rng.uniform(0.03, 0.10), ink.shape)
    return (picture.clip(0, 1) * 255).astype(np.uint8)


def blended(original: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Interpolate the original; 0 outside of it."""
    padded = np.pad(original, 2)
    places = np.clip(places + 2, 0, len(padded) - 1.001)
    whole = places.astype(int)
    down, right = np.moveaxis(places - whole, -1, 0)
    row, column = np.moveaxis(whole, -1, 0)
    upper = padded[row, column] * (1 - down) * (1 - right) + padded[row + 1, column] * down * (1 - right)
    upper = upper + padded[row, column + 1] * (1 - down) * right
    blend: np.ndarray = upper + padded[row + 1, column + 1] * down * right
    return blend
