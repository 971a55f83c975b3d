"""The baseline's training: hill climbing over the two weights of policy.py. Writes weights.json."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from car import costs, starts

TRIES = 20
CARS = 64
STEP = 1.0


def measure(weights: np.ndarray, rng: np.random.Generator) -> float:
    """The mean cost of a policy from new random starts."""
    position, velocity = starts(CARS, rng)
    return float(costs(lambda x, v: np.tanh(weights[0] + weights[1] * x), position, velocity).mean())


def main() -> None:
    rng = np.random.default_rng(0)
    best = np.zeros(2)
    least = measure(best, rng)
    for attempt in range(TRIES):
        weights = best + rng.normal(0.0, STEP, 2)
        cost = measure(weights, rng)
        if cost < least:
            best, least = weights, cost
            sys.stdout.write(f"try {attempt}: mean cost {least:.2f} with weights {best.round(3)}\n")
    Path("weights.json").write_text(json.dumps(best.tolist()))


if __name__ == "__main__":
    main()
