"""Simulate many cars at once for training. The evaluation uses the same dynamics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

STEPS = 400
GOAL, NEAR, SLOW, HOLD = 0.45, 0.03, 0.005, 10
"""A car is parked after so many steps in a row at most `NEAR` from the goal, at a speed of at most `SLOW`."""
MISSED, TIME, FUEL = 100.0, 0.2, 0.5
"""The cost of an episode without parking, of a step, and of a full force in it."""


def starts(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Sample positions and velocities as in the evaluation."""
    return rng.uniform(-1.1, 0.3, count), rng.uniform(-0.04, 0.04, count)


@dataclass
class Cars:
    """Cars with their positions, velocities, costs so far, and how long each has stood at the goal."""

    position: np.ndarray
    velocity: np.ndarray

    def __post_init__(self) -> None:
        self.costs = np.full(self.position.shape, MISSED)
        self.held = np.zeros(self.position.shape, dtype=int)

    @property
    def driving(self) -> np.ndarray:
        return self.held < HOLD

    def step(self, force: np.ndarray) -> None:
        """Drive one step. Forces of parked cars cost nothing."""
        force, driving = np.clip(force, -1.0, 1.0), self.driving
        velocity = np.clip(self.velocity + 0.0015 * force - 0.0025 * np.cos(3 * self.position), -0.07, 0.07)
        self.position = np.clip(self.position + velocity, -1.2, 0.6)
        stopped = ((self.position <= -1.2) & (velocity < 0)) | ((self.position >= 0.6) & (velocity > 0))
        self.velocity = np.where(stopped, 0.0, velocity)
        there = (np.abs(self.position - GOAL) <= NEAR) & (np.abs(self.velocity) <= SLOW)
        self.held = np.where(driving, np.where(there, self.held + 1, 0), self.held)
        self.costs += driving * (TIME + FUEL * force**2 - MISSED * (self.held >= HOLD))


def costs(
    policy: Callable[[np.ndarray, np.ndarray], np.ndarray], position: np.ndarray, velocity: np.ndarray
) -> np.ndarray:
    """Return the cost of an episode from each start. `policy` maps arrays of positions and velocities to forces."""
    cars = Cars(position, velocity)
    for _ in range(STEPS):
        cars.step(policy(cars.position, cars.velocity))
        if not cars.driving.any():
            break
    return cars.costs
