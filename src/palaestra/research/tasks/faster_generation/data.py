"""A small decoder with random weights, scaled so that its choices are clear: two correct programs agree in spite of rounding."""

from __future__ import annotations

from pathlib import Path

import numpy as np

WIDTH, LAYERS, HEADS, VOCABULARY, LONGEST = 32, 2, 4, 64, 96


def make(public: Path, hidden: Path, rng: np.random.Generator) -> None:
    weights = {
        "tokens": rng.normal(0, 1, (VOCABULARY, WIDTH)),
        "positions": rng.normal(0, 1, (LONGEST, WIDTH)),
        "output": rng.normal(0, 1, (WIDTH, VOCABULARY)),
    }
    for layer in range(LAYERS):
        for name, shape in (
            ("query", (WIDTH, WIDTH)),
            ("key", (WIDTH, WIDTH)),
            ("value", (WIDTH, WIDTH)),
            ("mix", (WIDTH, WIDTH)),
        ):
            weights[f"{name}{layer}"] = rng.normal(0, WIDTH**-0.5, shape)
        weights[f"up{layer}"] = rng.normal(0, WIDTH**-0.5, (WIDTH, 4 * WIDTH))
        weights[f"down{layer}"] = rng.normal(0, (4 * WIDTH) ** -0.5, (4 * WIDTH, WIDTH))
    np.savez(public / "model.npz", **weights)
