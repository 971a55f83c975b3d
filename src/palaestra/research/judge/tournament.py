"""Tournaments: a submitted player meets each opponent of a field in several games of many rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from palaestra.research.judge.evaluation import Evaluation
from palaestra.research.tasks.records import SubmissionError

Move = TypeVar("Move")


def play_field(
    evaluation: Evaluation,
    file: str,
    function: str,
    field: Sequence[Callable[[list[Move], list[Move], np.random.Generator], Move]],
    settle: Callable[[Any, Move, np.random.Generator], tuple[Move, Move, float]],
    *,
    games: int,
    rounds: tuple[int, int],
) -> np.ndarray:
    """Return the mean points per round against each opponent.

    Arguments:
        file, function: the submission's function, called every round with its own moves and the opponent's so far.
        field: the opponents; each chooses from its own moves, the submission's and a random generator.
        settle: maps the submission's return value and the opponent's move to the moves that were played and the points;
            raises `SubmissionError` for an invalid move.
        games: games against each opponent.
        rounds: the minimum and maximum rounds of a game; players do not know the number.
    """
    # Each game has its own generator, so that moves in one game do not affect the luck of another. The call order is
    # shuffled every round, so that it does not reveal the opponent.
    order = evaluation.generator("order")
    chances = [evaluation.generator("game", number) for number in range(games * len(field))]
    lengths = [int(rng.integers(rounds[0], rounds[1] + 1)) for rng in chances]
    past: list[tuple[list[Move], list[Move]]] = [([], []) for _ in chances]
    points = np.zeros(len(chances))
    with evaluation.program(file) as program:
        for round_ in range(max(lengths)):
            playing = [int(k) for k in order.permutation(len(lengths)) if round_ < lengths[k]]
            chosen = program.map(function, [past[k] for k in playing])
            for k, choice in zip(playing, chosen, strict=True):
                ours, theirs = past[k]
                reply = field[k // games](theirs, ours, chances[k])
                own, other, won = settle(choice, reply, chances[k])
                points[k] += won
                ours.append(own)
                theirs.append(other)
    means: np.ndarray = (points / np.array(lengths)).reshape(-1, games).mean(1)
    return means


def settle_with_slips(
    function: str, points: Mapping[tuple[str, str], float], slip: float
) -> Callable[[Any, str, np.random.Generator], tuple[str, str, float]]:
    """Return `settle` for a game of two moves in which each player sometimes makes the other move by accident.

    Arguments:
        function: the submission's function, for the error on an invalid move.
        points: the submission's points by both actual moves, its own first.
        slip: the probability of an accident.
    """
    first, second = sorted({move for move, _ in points})
    other = {first: second, second: first}

    def slip_move(move: str, rng: np.random.Generator) -> str:
        return other[move] if rng.random() < slip else move

    def settle(choice: Any, reply: str, rng: np.random.Generator) -> tuple[str, str, float]:
        if choice not in (first, second):
            raise SubmissionError(f"{function} must return '{first}' or '{second}'; got {str(choice)[:60]!r}")
        ours, theirs = slip_move(choice, rng), slip_move(reply, rng)
        return ours, theirs, points[ours, theirs]

    return settle
