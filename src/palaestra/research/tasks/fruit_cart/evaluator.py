"""Play hidden games, all at once. The submission is called by messages only."""

from __future__ import annotations

import numpy as np

from palaestra.research.judge.evaluation import Evaluation
from palaestra.research.tasks.data import load_function
from palaestra.research.tasks.task import SubmissionError

GAMES, STEPS = 16, 200
MOVES = ("left", "stay", "right")


def evaluate(evaluation: Evaluation) -> dict[str, float]:
    # The task's own copy of the game, not that in the agent's workspace.
    make = load_function(evaluation.task.folder / "starter" / "game.py", "Game")
    games = [make(evaluation.generator("game", number)) for number in range(GAMES)]
    with evaluation.program("policy.py") as program:
        for _ in range(STEPS):
            moves = program.map("act", [[game.observation()] for game in games])
            for game, move in zip(games, moves, strict=True):
                if not isinstance(move, str) or move not in MOVES:
                    raise SubmissionError(f"act must return one of {', '.join(MOVES)}; got {str(move)[:60]!r}")
                game.step(move)
    points = np.array([game.points for game in games], dtype=float)
    return {"points": float(points.mean()), "worst": float(points.min())}
