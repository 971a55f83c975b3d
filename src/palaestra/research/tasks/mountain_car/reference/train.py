"""The cross-entropy method over the six weights of policy.py, all candidates on the same cars. Writes weights.json."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from car import GOAL, costs, starts

ROUNDS, CANDIDATES, CARS, ELITE = 15, 32, 32, 6
MEAN = np.array([3.0, 1.0, 5.0, 5.0, 1.0, 0.2])
SPREAD = np.array([2.0, 0.2, 4.0, 4.0, 0.3, 0.15])
NOISE = np.array([0.3, 0.03, 0.5, 0.5, 0.05, 0.02])
"""Variance that is kept: the elite of a few candidates underestimates it."""


def main() -> None:
    rng = np.random.default_rng(0)
    mean, spread = MEAN, SPREAD
    for number in range(ROUNDS):
        weights = rng.normal(mean, spread, (CANDIDATES, 6))
        gain, height, pull, brake, slope, switch = weights.T[:, :, None]
        position, velocity = (np.tile(values, (CANDIDATES, 1)) for values in starts(CARS, rng))

        def policy(x: np.ndarray, v: np.ndarray) -> np.ndarray:
            lack = height * 0.0025 / 3 * np.sin(3 * GOAL) - v**2 / 2 - 0.0025 / 3 * np.sin(3 * x)  # noqa: B023
            swing = np.clip(gain * 1000 * lack, -1, 1) * np.sign(v + 1e-9)  # noqa: B023
            park = pull * (GOAL - x) - brake * 10 * v + slope * 0.365  # noqa: B023
            return np.where(x > switch, park, swing)  # noqa: B023

        paid = costs(policy, position, velocity).mean(1)
        elite = weights[np.argsort(paid)[:ELITE]]
        mean, spread = elite.mean(0), elite.std(0) + NOISE * 0.8**number
        sys.stdout.write(f"round {number}: mean cost of the best {np.sort(paid)[:ELITE].mean():.3f}\n")
    Path("weights.json").write_text(json.dumps(mean.tolist()))


if __name__ == "__main__":
    main()
