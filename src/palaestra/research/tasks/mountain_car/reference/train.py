"""The cross-entropy method over the five weights of policy.py, all candidates on the same cars. Writes weights.json."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from car import returns, starts

ROUNDS = 15
CANDIDATES = 48
CARS = 32
ELITE = 8


def main() -> None:
    rng = np.random.default_rng(0)
    mean, spread = np.zeros(5), np.ones(5)
    for number in range(ROUNDS):
        weights = rng.normal(mean, spread, (CANDIDATES, 5))
        position, velocity = (np.tile(values, (CANDIDATES, 1)) for values in starts(CARS, rng))

        def policy(x: np.ndarray, v: np.ndarray, weights: np.ndarray = weights) -> np.ndarray:
            x, v = x + 0.5, v / 0.07
            features = (np.ones_like(x), x, v, v * x, v * np.abs(v))
            return sum(weights[:, k, None] * feature for k, feature in enumerate(features))

        gained = returns(policy, position, velocity).mean(1)
        elite = weights[np.argsort(gained)[-ELITE:]]
        # Keep some variance: the elite of a few candidates underestimates it.
        mean, spread = elite.mean(0), elite.std(0) + 0.2 * 0.7**number
        sys.stdout.write(f"round {number}: mean return of the best {np.sort(gained)[-ELITE:].mean():.3f}\n")
    Path("weights.json").write_text(json.dumps(mean.tolist()))


if __name__ == "__main__":
    main()
