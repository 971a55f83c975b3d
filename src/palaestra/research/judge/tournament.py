"""Matches: a submitted player meets each of a field of others in several games of many rounds, by messages only."""

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
    """The mean points a round against each of the field.

    Arguments:
        file, function: of the submission: called for every round with its own moves and the other's so far.
        field: the others; each chooses by its own moves, the submission's, and chance.
        settle: from what the submission returned and the other's move to the moves that were really played, and the
            points; raises `SubmissionError` for what is no move.
        games: against each of them.
        rounds: the fewest and the most of a game; nobody is told how many.
    """
    # Each game has chances of its own: what a submission does in one does not change the luck of another.
    # Who plays whom is not to be told from the order of the calls, which is another one in every round.
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
    """`settle` of a game of two moves, in which each of both now and then does the other one by accident.

    Arguments:
        function: of the submission, for the error where what it returned is no move.
        points: by what both really did, the submission's move first.
        slip: the chance of an accident.
    """
    one, two = sorted({move for move, _ in points})
    other = {one: two, two: one}

    def slipped(move: str, rng: np.random.Generator) -> str:
        return other[move] if rng.random() < slip else move

    def settle(choice: Any, reply: str, rng: np.random.Generator) -> tuple[str, str, float]:
        if choice not in (one, two):
            raise SubmissionError(f"{function} must return '{one}' or '{two}'; got {str(choice)[:60]!r}")
        ours, theirs = slipped(choice, rng), slipped(reply, rng)
        return ours, theirs, points[ours, theirs]

    return settle
