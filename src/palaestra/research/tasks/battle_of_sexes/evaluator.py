"""Games with a field of partners, each drawn with parameters of its own; the submission decides by messages only."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from palaestra.research.judge.evaluation import Evaluation
from palaestra.research.judge.tournament import play_field, settle_with_slips

POINTS = {("A", "A"): 3, ("B", "B"): 2, ("A", "B"): 0, ("B", "A"): 0}
OTHER = {"A": "B", "B": "A"}
SLIP = 0.025
GAMES = 3
Partner = Callable[[list[str], list[str], np.random.Generator], str]
"""Chooses by its own past, the submission's past, and chance. It likes B better."""


def field(rng: np.random.Generator) -> list[Partner]:
    """The partners of one split: the same kinds for both, other parameters."""

    def chance(share: float) -> Partner:
        return lambda mine, theirs, rng: "B" if rng.random() < share else "A"

    def calendar(each: int, start: int) -> Partner:
        return lambda mine, theirs, _: "AB"[(len(mine) + start) // each % 2]

    def copies(faith: float) -> Partner:
        def choose(mine: list[str], theirs: list[str], rng: np.random.Generator) -> str:
            if not theirs:
                return "B"
            return theirs[-1] if rng.random() < faith else OTHER[theirs[-1]]

        return choose

    def turns(mine: list[str], theirs: list[str], _: np.random.Generator) -> str:
        """Together at one place, then at the other; apart, it waits where it is."""
        if not mine:
            return "B"
        return OTHER[mine[-1]] if mine[-1] == theirs[-1] else mine[-1]

    def learns(fade: float, start: float) -> Partner:
        """Expects what the other mostly did, and answers it."""

        def choose(mine: list[str], theirs: list[str], _: np.random.Generator) -> str:
            share = start
            for choice in theirs:
                share = fade * share + (1 - fade) * (choice == "A")
            return "A" if 2 * share > 3 * (1 - share) else "B"

        return choose

    def shifts(temper: float) -> Partner:
        """Stays where they met; apart, it goes to the other place, more or less surely."""

        def choose(mine: list[str], theirs: list[str], rng: np.random.Generator) -> str:
            if not mine:
                return "B"
            return mine[-1] if mine[-1] == theirs[-1] or rng.random() >= temper else OTHER[mine[-1]]

        return choose

    def insists(patience: int, yields: int) -> Partner:
        """Insists on B until it was alone there so often in a row; then yields for some rounds, and begins anew."""

        def choose(mine: list[str], theirs: list[str], _: np.random.Generator) -> str:
            alone, yielding = 0, 0
            for own, other in zip(mine, theirs, strict=True):
                if yielding:
                    yielding -= 1
                    continue
                alone = alone + 1 if own == "B" and other == "A" else 0
                if alone >= patience:
                    alone, yielding = 0, yields
            return "A" if yielding else "B"

        return choose

    def resents(often: int, rounds: int) -> Partner:
        """Takes turns, but after meetings at A so often in a row it goes to B alone for some rounds."""

        def choose(mine: list[str], theirs: list[str], rng: np.random.Generator) -> str:
            recent = list(zip(mine, theirs, strict=True))[-often - rounds :]
            for k in range(len(recent) - often + 1):
                if all(pair == ("A", "A") for pair in recent[k : k + often]):
                    return "B"
            return theirs[-1] if theirs else "B"

        return choose

    return [
        chance(1.0), chance(0.0), chance(float(rng.uniform(0.6, 0.9))), chance(float(rng.uniform(0.2, 0.45))),
        calendar(1, int(rng.integers(2))), calendar(int(rng.integers(2, 4)), int(rng.integers(4))),
        copies(float(rng.uniform(0.85, 1.0))), copies(float(rng.uniform(0.0, 0.15))), turns,
        learns(float(rng.uniform(0.5, 0.75)), 0.3), learns(float(rng.uniform(0.8, 0.92)), 0.3),
        shifts(float(rng.uniform(0.5, 1.0))), insists(int(rng.integers(2, 5)), int(rng.integers(8, 20))),
        resents(2, int(rng.integers(1, 4))), resents(int(rng.integers(3, 5)), int(rng.integers(2, 5))),
    ]  # fmt: skip


def evaluate(evaluation: Evaluation) -> dict[str, float]:
    field_, settle = field(evaluation.generator("field")), settle_with_slips("choose", POINTS, SLIP)
    points = play_field(evaluation, "partner.py", "choose", field_, settle, games=GAMES, rounds=(60, 120))
    return {"points": float(points.mean()), "worst": float(points.min())}
