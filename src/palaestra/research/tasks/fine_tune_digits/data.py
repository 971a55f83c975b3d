"""Digits of scikit-learn's data set in two looks, and a small network that was trained on the first.

Old: as they are, with noise. New: mirrored along the diagonal, bright on dark, faded and noisy, with few examples. Each original is in one split only.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np

from palaestra.research.tasks.data import load_function

SIZES = {"pretraining": 700, "train": 80, "validation": 400, "test": 600}
HIDDEN, EPOCHS, RATE, BATCH = 48, 60, 0.1, 32


def make(public: Path, hidden: Path, rng: np.random.Generator) -> None:
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    collection = load_digits()
    order, start = rng.permutation(len(collection.target)), 0
    for split, size in SIZES.items():
        chosen = order[start : start + size]
        start += size
        clean, labels = collection.images[chosen] / 16.0, collection.target[chosen]
        old = (clean + rng.normal(0, 0.1, clean.shape)).reshape(size, -1).astype(np.float32)
        fade = rng.uniform(0.4, 1.0, (size, 1, 1))
        new = 1 - fade * clean.transpose(0, 2, 1) + rng.normal(0, 0.25, clean.shape)
        new = new.reshape(size, -1).astype(np.float32)
        if split == "pretraining":
            np.savez(public / "weights.npz", allow_pickle=False, **pretrain(old, labels, rng))
        elif split == "train":
            np.savez(public / "train.npz", images=new, labels=labels)
        else:
            np.savez(hidden / f"{split}.npz", old=old, new=new, labels=labels)


def pretrain(images: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Train the network from scratch with the training of the starter files."""
    train = load_function(Path(__file__).parent / "starter" / "network.py", "train")
    sizes = images.shape[1], HIDDEN, HIDDEN, 10
    weights: dict[str, np.ndarray] = {}
    for number, (rows, columns) in enumerate(pairwise(sizes)):
        weights[f"w{number}"] = rng.normal(0, np.sqrt(2 / rows), (rows, columns)).astype(np.float32)
        weights[f"b{number}"] = np.zeros(columns, dtype=np.float32)
    trained: dict[str, np.ndarray] = train(weights, images, labels, EPOCHS, RATE, BATCH, rng)
    return trained
