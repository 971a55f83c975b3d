"""Drive from hidden starts in all episodes at once. The submission is called by messages only."""

from __future__ import annotations

import numpy as np

from palaestra.research.judge.evaluation import Evaluation
from palaestra.research.tasks.data import load_function
from palaestra.research.tasks.task import SubmissionError

SIDE = 12
EPISODES = SIDE * SIDE
STEPS = 400
POSITIONS, VELOCITIES = (-1.1, 0.3), (-0.04, 0.04)
"""The bounds of the starts of episodes."""


def evaluate(evaluation: Evaluation) -> dict[str, float]:
    # The task's own copy of the cars, not that in the agent's workspace.
    make = load_function(evaluation.task.folder / "starter" / "car.py", "Cars")
    # One start in each cell of a grid, so that every sample covers the whole valley.
    squares = np.stack(np.divmod(np.arange(EPISODES), SIDE), axis=1)
    x, v = ((squares + evaluation.generator("starts").random(squares.shape)) / SIDE).T
    cars = make(np.interp(x, (0, 1), POSITIONS), np.interp(v, (0, 1), VELOCITIES))
    with evaluation.program("policy.py") as program:
        for _ in range(STEPS):
            driving = np.flatnonzero(cars.driving)
            if not len(driving):
                break
            seen = np.stack([cars.position[driving], cars.velocity[driving]], axis=1).tolist()
            forces = np.zeros(EPISODES)
            forces[driving] = [_check_force(force) for force in program.map("act", [[state] for state in seen])]
            cars.step(forces)
    parked = 1.0 - float(cars.driving.mean())
    return {"cost": float(cars.costs.mean()), "worst": float(cars.costs.max()), "parked": parked}


def _check_force(force: object) -> float:
    if isinstance(force, list) and len(force) == 1:
        force = force[0]  # As in gymnasium.
    # An integer may be too large for a float.
    if isinstance(force, bool) or not isinstance(force, int | float) or not -1e9 < force < 1e9:
        raise SubmissionError(f"act must return a force, a finite number from -1 to 1; got {str(force)[:60]!r}")
    return min(max(float(force), -1.0), 1.0)
