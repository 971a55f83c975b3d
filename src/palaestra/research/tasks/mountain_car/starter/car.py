"""Simulate many cars at once for training: the dynamics of gymnasium's MountainCarContinuous-v0 in NumPy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

STEPS = 999


def starts(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Sample positions and velocities as in the evaluation."""
    return rng.uniform(-1.1, 0.3, count), rng.uniform(-0.04, 0.04, count)


def returns(
    policy: Callable[[np.ndarray, np.ndarray], np.ndarray], position: np.ndarray, velocity: np.ndarray
) -> np.ndarray:
    """Return the episode return from each start. `policy` maps arrays of positions and velocities to forces."""
    total, driving = np.zeros(position.shape), np.ones(position.shape, dtype=bool)
    for _ in range(STEPS):
        force = np.clip(policy(position, velocity), -1.0, 1.0)
        velocity = np.clip(velocity + 0.0015 * force - 0.0025 * np.cos(3 * position), -0.07, 0.07)
        position = np.clip(position + velocity, -1.2, 0.6)
        velocity = np.where((position <= -1.2) & (velocity < 0), 0.0, velocity)
        there = (position >= 0.45) & (velocity >= 0)
        total += driving * (100.0 * there - 0.1 * force**2)
        driving &= ~there
        if not driving.any():
            break
    return total
