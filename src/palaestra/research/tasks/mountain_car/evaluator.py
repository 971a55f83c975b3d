"""Run all episodes of MountainCarContinuous from hidden starts at once. The submission is called by messages only."""

from __future__ import annotations

import numpy as np
from gymnasium.envs.classic_control.continuous_mountain_car import Continuous_MountainCarEnv

from palaestra.research.judge.evaluation import Evaluation
from palaestra.research.tasks.task import SubmissionError

SIDE = 12
EPISODES = SIDE * SIDE
STEPS = 999
POSITIONS, VELOCITIES = (-1.1, 0.3), (-0.04, 0.04)
"""The bounds of the starts of episodes."""


def evaluate(evaluation: Evaluation) -> dict[str, float]:
    # One start in each cell of a grid, so that every sample covers the whole valley.
    squares = np.stack(np.divmod(np.arange(EPISODES), SIDE), axis=1)
    places = (squares + evaluation.generator("starts").random(squares.shape)) / SIDE
    cars = [_car(float(np.interp(x, (0, 1), POSITIONS)), float(np.interp(v, (0, 1), VELOCITIES))) for x, v in places]
    returns = np.zeros(EPISODES)
    driving = list(range(EPISODES))
    with evaluation.program("policy.py") as program:
        for _ in range(STEPS):
            chosen = program.map("act", [[[float(value) for value in cars[k].state]] for k in driving])
            for k, force in zip(list(driving), map(_check_force, chosen), strict=True):
                _, reward, there, _, _ = cars[k].step(np.array([force]))
                returns[k] += reward
                if there:
                    driving.remove(k)
            if not driving:
                break
    return {"return": float(returns.mean()), "worst": float(returns.min()), "reached": 1.0 - len(driving) / EPISODES}


def _car(position: float, velocity: float) -> Continuous_MountainCarEnv:
    car = Continuous_MountainCarEnv()
    car.state = np.array([position, velocity], dtype=np.float32)
    return car


def _check_force(force: object) -> float:
    if isinstance(force, list) and len(force) == 1:
        force = force[0]  # As in gymnasium.
    # An integer may be too large for a float.
    if isinstance(force, bool) or not isinstance(force, int | float) or not -1e9 < force < 1e9:
        raise SubmissionError(f"act must return a force, a finite number from -1 to 1; got {str(force)[:60]!r}")
    return min(max(float(force), -1.0), 1.0)
