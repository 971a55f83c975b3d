"""Play games with partners that have random parameters. The submission is called by messages only."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from palaestra.research.judge.evaluation import Evaluation, play_field, settle_with_slips

POINTS = {("A", "A"): 3, ("B", "B"): 2, ("A", "B"): 0, ("B", "A"): 0}
OTHER = {"A": "B", "B": "A"}
SLIP = 0.025
GAMES = 3
Partner = Callable[[list[str], list[str], np.random.Generator], str]
"""Chooses from both histories and random numbers. It prefers B."""


def field(rng: np.random.Generator) -> list[Partner]:
    """The partners of one split. Both splits have the same kinds with different parameters."""

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
        """Alternates after a meeting; otherwise stays."""
        if not mine:
            return "B"
        return OTHER[mine[-1]] if mine[-1] == theirs[-1] else mine[-1]

    def learns(fade: float, start: float) -> Partner:
        """Best response to the other's most frequent choice."""

        def choose(mine: list[str], theirs: list[str], _: np.random.Generator) -> str:
            share = start
            for choice in theirs:
                share = fade * share + (1 - fade) * (choice == "A")
            return "A" if 2 * share > 3 * (1 - share) else "B"

        return choose

    def shifts(temper: float) -> Partner:
        """Stays after a meeting; otherwise switches with a given probability."""

        def choose(mine: list[str], theirs: list[str], rng: np.random.Generator) -> str:
            if not mine:
                return "B"
            return mine[-1] if mine[-1] == theirs[-1] or rng.random() >= temper else OTHER[mine[-1]]

        return choose

    def insists(patience: int, yields: int) -> Partner:
        """Chooses B until it was alone there for a number of rounds in a row, then chooses A for some rounds, and starts again."""

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
        """Alternates, but chooses B for some rounds after a number of consecutive meetings at A."""

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
