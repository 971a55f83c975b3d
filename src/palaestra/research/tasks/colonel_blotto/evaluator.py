"""Play games against opponents that have random parameters. The submission is called by messages only."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from palaestra.research.judge.evaluation import Evaluation, play_field
from palaestra.research.tasks.task import SubmissionError

VALUES = (1, 2, 3, 4, 5)
SOLDIERS = 100
GAMES = 2
Division = list[int]
Opponent = Callable[[list[Division], list[Division], np.random.Generator], Division]
"""Chooses a division from both histories and random numbers."""


def margin(one: Division, other: Division) -> int:
    """The difference between the winnings of `one` and `other`."""
    return sum(value * ((a > b) - (a < b)) for value, a, b in zip(VALUES, one, other, strict=True))


def rounded(shares: Sequence[float] | np.ndarray) -> Division:
    """Divide all soldiers in proportion to `shares`."""
    exact = np.maximum(np.asarray(shares, dtype=float), 0.0) + 1e-9
    exact *= SOLDIERS / exact.sum()
    whole = np.floor(exact).astype(int)
    for k in np.argsort(whole - exact, kind="stable")[: SOLDIERS - int(whole.sum())]:
        whole[k] += 1
    return [int(number) for number in whole]


def answer(expected: Sequence[float] | np.ndarray, spare: int = 1) -> Division:
    """Respond to an expected division: win the fields with the highest value per soldier first."""
    division, left = [0] * len(VALUES), SOLDIERS
    for k in sorted(range(len(VALUES)), key=lambda k: (expected[k] + spare) / VALUES[k]):
        needed = int(expected[k]) + spare
        if needed <= left:
            division[k] = needed
            left -= needed
    division[int(np.argmax(division))] += left
    return division


def field(rng: np.random.Generator) -> list[Opponent]:
    """The opponents of one split. Both splits have the same kinds with different parameters."""

    def drawn(rng: np.random.Generator, power: float = 1.0, spread: float = 4.0) -> Division:
        """A random division near the fields' values raised to that power."""
        shares = np.array(VALUES, dtype=float) ** power
        return rounded(rng.dirichlet(shares / shares.mean() * spread))

    def jittered(division: Sequence[float] | np.ndarray, rng: np.random.Generator, size: float) -> Division:
        return rounded(np.asarray(division, dtype=float) + rng.normal(0.0, size, len(VALUES)))

    def steady(division: Division, size: float) -> Opponent:
        return lambda mine, theirs, rng: jittered(division, rng, size)

    def mix(divisions: list[Division], weights: np.ndarray) -> Opponent:
        return lambda mine, theirs, rng: jittered(divisions[rng.choice(len(divisions), p=weights)], rng, 1.0)

    def cycle(divisions: list[Division], each: int) -> Opponent:
        return lambda mine, theirs, rng: jittered(divisions[len(mine) // each % len(divisions)], rng, 0.7)

    def answers(first: Division, rounds: int, spare: int, lazy: float) -> Opponent:
        """Responds to the other's average division of the last rounds, or sometimes copies it."""

        def choose(mine: list[Division], theirs: list[Division], rng: np.random.Generator) -> Division:
            if not theirs:
                return first
            if rng.random() < lazy:
                return mine[-1]
            return answer(np.mean(theirs[-rounds:], axis=0), spare)

        return choose

    def copies(first: Division, size: float) -> Opponent:
        return lambda mine, theirs, rng: jittered(theirs[-1], rng, size) if theirs else first

    def moves(first: Division, step: int) -> Opponent:
        """Moves soldiers from the field with the largest win to the field with the smallest loss."""

        def choose(mine: list[Division], theirs: list[Division], rng: np.random.Generator) -> Division:
            if not mine:
                return first
            ahead = [a - b for a, b in zip(mine[-1], theirs[-1], strict=True)]
            division = list(mine[-1])
            lost = [k for k, by in enumerate(ahead) if by <= 0]
            if not lost:
                return division
            giver = max(range(len(VALUES)), key=lambda k: (ahead[k], division[k]))
            taker = max(lost, key=lambda k: (ahead[k] / VALUES[k], VALUES[k]))
            moved = min(step, division[giver])
            division[giver] -= moved
            division[taker] += moved
            return division

        return choose

    def proud(divisions: list[Division], patience: int) -> Opponent:
        """Keeps a division until it has lost a number of rounds in a row, then takes the next."""

        def choose(mine: list[Division], theirs: list[Division], rng: np.random.Generator) -> Division:
            place, lost = 0, 0
            for one, other in zip(mine, theirs, strict=True):
                lost = lost + 1 if margin(one, other) < 0 else 0
                if lost >= patience:
                    place, lost = place + 1, 0
            return jittered(divisions[place % len(divisions)], rng, 0.7)

        return choose

    def several(count: int) -> list[Division]:
        return [drawn(rng, float(rng.uniform(0.5, 1.5))) for _ in range(count)]

    return [
        steady(drawn(rng), float(rng.uniform(0.5, 1.5))), steady(drawn(rng, 1.0, 20.0), float(rng.uniform(1.5, 3.0))),
        mix(several(2), rng.dirichlet([4.0] * 2)), mix(several(4), rng.dirichlet([4.0] * 4)),
        cycle(several(2), 1), cycle(several(3), int(rng.integers(1, 4))),
        answers(drawn(rng), 1, int(rng.integers(1, 4)), float(rng.uniform(0.05, 0.2))),
        answers(drawn(rng), int(rng.integers(4, 9)), int(rng.integers(2, 5)), float(rng.uniform(0.05, 0.2))),
        copies(drawn(rng), float(rng.uniform(1.0, 2.0))), moves(drawn(rng), int(rng.integers(4, 9))),
        proud(several(5), 1), proud(several(5), int(rng.integers(2, 4))),
    ]  # fmt: skip


def evaluate(evaluation: Evaluation) -> dict[str, float]:
    field_ = field(evaluation.generator("field"))
    margins = play_field(evaluation, "allocator.py", "allocate", field_, settle, games=GAMES, rounds=(30, 60))
    shares = (1 + margins / sum(VALUES)) / 2
    return {"share": float(shares.mean()), "worst": float(shares.min())}


def settle(choice: object, reply: Division, _: np.random.Generator) -> tuple[Division, Division, float]:
    """Check the submission's division. Returns both divisions and the margin."""
    whole = isinstance(choice, list) and all(type(number) is int for number in choice)
    if (
        not isinstance(choice, list)
        or not whole
        or len(choice) != len(VALUES)
        or min(choice) < 0
        or sum(choice) != SOLDIERS
    ):
        raise SubmissionError(
            f"allocate must return {len(VALUES)} non-negative whole numbers that sum to {SOLDIERS}; "
            f"got {str(choice)[:80]}"
        )
    return choice, reply, margin(choice, reply)
