"""A small decoder with random weights, scaled so that its choices are clear: two correct programs agree in spite of rounding. And
the hidden prompts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

WIDTH, LAYERS, HEADS, VOCABULARY, LONGEST = 32, 2, 4, 64, 96
ROUNDS, PROMPTS, SHORTEST_PROMPT, LONGEST_PROMPT = 5, 12, 8, 40


def make(public: Path, hidden: Path, rng: np.random.Generator) -> None:
    weights: dict[str, Any] = {
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
    for split in ("validation", "test"):
        rounds = [[draw_prompt(rng) for _ in range(PROMPTS)] for _ in range(ROUNDS)]
        (hidden / f"{split}.json").write_text(json.dumps(rounds), encoding="utf-8")


def draw_prompt(rng: np.random.Generator) -> list[int]:
    prompt: list[int] = rng.integers(0, VOCABULARY, int(rng.integers(SHORTEST_PROMPT, LONGEST_PROMPT + 1))).tolist()
    return prompt
