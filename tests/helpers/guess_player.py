"""A scripted player of `palaestra/Guess-v0`, to compare the rewards of an episode in different libraries."""

from __future__ import annotations

import gymnasium
import numpy as np

import palaestra.envs  # noqa: F401

ENV_ID, OPTIONS = "palaestra/Guess-v0", {"high": 6, "format_penalty": 0.25}
SEEDS = range(200)


def write_guess(seed: int, turn: int) -> str:
    """The message of a turn: a random number, or none."""
    generator = np.random.default_rng([seed, turn])
    return "No idea." if generator.random() < 0.2 else f" I guess {generator.integers(1, 7)}.\n"


def play_ours(seed: int) -> float:
    """Play an episode in our own environment. Returns the sum of its rewards."""
    env = gymnasium.make(ENV_ID, **OPTIONS)
    env.reset(seed=seed)
    total, turn, over = 0.0, 0, False
    while not over:
        _, reward, terminated, truncated, _ = env.step(write_guess(seed, turn))
        total, turn, over = total + float(reward), turn + 1, terminated or truncated
    return total
