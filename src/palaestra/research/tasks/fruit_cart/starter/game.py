"""The game: a cart collects falling fruit and brings it to the barn. The evaluation runs this same game.

Play your policy on practice games:

    python3 game.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

COLUMNS, ROWS, STEPS, CAPACITY = 12, 10, 200, 4
BARN = 0
"""The column in which the cart is emptied."""
KINDS = {"apple": (1, 1), "plum": (2, 3), "rock": (1, 0)}
"""Rows per step, and points."""
MOVES = {"left": -1, "stay": 0, "right": 1}


class Game:
    """One game. A step moves the cart, then the objects fall, and what reaches the last row in its column falls into the cart."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.cart, self.load, self.points, self.steps = rng, BARN, list[int](), 0, 0
        self.objects: list[list[Any]] = []
        """[kind, row, column]"""

    def observation(self) -> dict[str, Any]:
        return {
            "cart": self.cart,
            "load": list(self.load),
            "objects": [list(one) for one in self.objects],
            "step": self.steps,
        }

    def step(self, move: str) -> None:
        self.steps += 1
        self.cart = min(max(self.cart + MOVES[move], 0), COLUMNS - 1)
        if self.cart == BARN:
            self.points += sum(self.load)
            self.load = []
        falling = []
        for kind, row, column in self.objects:
            row += KINDS[kind][0]
            if row < ROWS:
                falling.append([kind, row, column])
            elif column == self.cart:
                self._catch(kind)
        self.objects = falling
        # Fruit grows away from the barn, in the second half of a game more of it and more rocks.
        for kind, chance in (("apple", 0.25), ("plum", 0.10), ("rock", 0.15 + 0.15 * (2 * self.steps > STEPS))):
            if self.rng.random() < chance:
                self.objects.append([kind, 0, int(self.rng.integers(3, COLUMNS))])

    def _catch(self, kind: str) -> None:
        if kind == "rock":
            self.load = []
        elif len(self.load) < CAPACITY:
            self.load.append(KINDS[kind][1])


def play(act: Callable[[dict[str, Any]], str], seed: int) -> int:
    """The points of one game."""
    game = Game(np.random.default_rng(seed))
    while game.steps < STEPS:
        game.step(act(game.observation()))
    return game.points


if __name__ == "__main__":
    from policy import act

    points = [play(act, seed) for seed in range(20)]
    sys.stdout.write(f"{np.mean(points):.2f} points in the mean of 20 games\n")
