"""Play games against opponents that have random parameters. The submission is called by messages only."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from palaestra.research.judge.evaluation import Evaluation, play_field, settle_with_slips

POINTS = {("C", "C"): 3, ("D", "D"): 1, ("D", "C"): 5, ("C", "D"): 0}
SLIP = 0.02
GAMES = 2
Opponent = Callable[[list[str], list[str], np.random.Generator], str]
"""Chooses from both histories and random numbers."""


def field(rng: np.random.Generator) -> list[Opponent]:
    """The opponents of one split. Both splits have the same kinds with different parameters."""

    def mean(mine: list[str], theirs: list[str], _: np.random.Generator) -> str:
        return "D"

    def chance(share: float) -> Opponent:
        return lambda mine, theirs, rng: "D" if rng.random() < share else "C"

    def copy(forgives: float) -> Opponent:
        def choose(mine: list[str], theirs: list[str], rng: np.random.Generator) -> str:
            return "D" if theirs and theirs[-1] == "D" and rng.random() >= forgives else "C"

        return choose

    def grim(patience: int) -> Opponent:
        return lambda mine, theirs, _: "D" if theirs.count("D") > patience else "C"

    def win_stay(mine: list[str], theirs: list[str], _: np.random.Generator) -> str:
        return "C" if not mine or mine[-1] == theirs[-1] else "D"

    def tester(rounds: int) -> Opponent:
        """Defects at first, and exploits an opponent that does not retaliate."""

        def choose(mine: list[str], theirs: list[str], _: np.random.Generator) -> str:
            if len(mine) < rounds:
                return "D"
            if "D" in theirs[1 : rounds + 2]:
                return theirs[-1]
            return "D" if len(mine) % 2 else "C"

        return choose

    def quota(window: int, allowed: int) -> Opponent:
        """Defects after more than so many defections in the last rounds."""
        return lambda mine, theirs, _: "D" if theirs[-window:].count("D") > allowed else "C"

    def sleepy(every: int) -> Opponent:
        """Looks only in every so many rounds."""
        return lambda mine, theirs, _: "D" if theirs and theirs[-1] == "D" and len(theirs) % every == 0 else "C"

    return [
        chance(float(rng.uniform(0.3, 0.7))), mean, copy(0.0), copy(float(rng.uniform(0.1, 0.4))), grim(int(rng.integers(3, 6))),
        win_stay, tester(int(rng.integers(1, 4))), quota(2, 1), quota(3, 2), quota(4, 1), quota(int(rng.integers(5, 8)), 2),
        quota(int(rng.integers(9, 12)), 4), quota(4, 3), sleepy(2), sleepy(3), sleepy(4),
    ]  # fmt: skip


def evaluate(evaluation: Evaluation) -> dict[str, float]:
    field_, settle = field(evaluation.generator("field")), settle_with_slips("choose", POINTS, SLIP)
    points = play_field(evaluation, "strategy.py", "choose", field_, settle, games=GAMES, rounds=(100, 200))
    return {"points": float(points.mean()), "worst": float(points.min())}
