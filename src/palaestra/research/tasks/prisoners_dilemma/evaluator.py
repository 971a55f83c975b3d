"""Play games against opponents that have random parameters. The submission is called by messages only."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from palaestra.research.judge.evaluation import Evaluation, play_field, settle_with_slips

POINTS = {("C", "C"): 3, ("D", "D"): 1, ("D", "C"): 5, ("C", "D"): 0}
SLIP = 0.02
GAMES = 3
Opponent = Callable[[list[str], list[str], np.random.Generator], str]
"""Chooses from both histories and random numbers."""


def field(rng: np.random.Generator) -> list[Opponent]:
    """The opponents of one split. Both splits have the same kinds with different parameters."""

    def kind(mine: list[str], theirs: list[str], _: np.random.Generator) -> str:
        return "C"

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

    def counter(mine: list[str], theirs: list[str], _: np.random.Generator) -> str:
        """Predicts the other's most frequent choice, and defects against opponents that mostly cooperate and rarely retaliate."""
        if len(theirs) < 6:
            return "C"
        answered = [later for before, later in zip(mine[:-1], theirs[1:], strict=True) if before == "D"]
        return "D" if answered and answered.count("D") / len(answered) < 0.4 else theirs[-1]

    return [
        kind, mean, chance(float(rng.uniform(0.2, 0.4))), chance(float(rng.uniform(0.6, 0.8))), copy(0.0),
        copy(float(rng.uniform(0.1, 0.4))), grim(int(rng.integers(0, 2))), grim(int(rng.integers(3, 6))), win_stay,
        tester(1), tester(int(rng.integers(2, 4))), counter,
    ]  # fmt: skip


def evaluate(evaluation: Evaluation) -> dict[str, float]:
    field_, settle = field(evaluation.generator("field")), settle_with_slips("choose", POINTS, SLIP)
    points = play_field(evaluation, "strategy.py", "choose", field_, settle, games=GAMES, rounds=(60, 140))
    return {"points": float(points.mean()), "worst": float(points.min())}
