"""Learn how the partner answers the last rounds, and plan ahead with what was learned.

The model says how likely the partner goes to A, given the last three rounds of both; contexts that were seen seldom lean on
shorter ones. Value iteration over the contexts then tells what to do, so that insisting is tried where it may pay later.
"""

from __future__ import annotations

import numpy as np

DEPTH = 3
"""Rounds that a context holds, two bits each: ours and theirs; 1 is A."""
SIZE = 4**DEPTH
CONTEXTS = np.arange(SIZE)
FADE = 0.98
"""What an observation counts that is one round older: partners change."""
LEAN = 1.0
"""How many observations what the shorter context says is worth."""
PRIOR = (0.2, 0.9)
"""How likely the partner goes to A after we went to B, and after we went to A, before anything is known."""
DISCOUNT = 0.9
SWEEPS = 12
NEXT = np.array([[(4 * CONTEXTS + 2 * own + other) % SIZE for other in (0, 1)] for own in (0, 1)])
"""[own, other, context]: the context that follows."""
POINTS = np.array([[2.0, 0.0], [0.0, 3.0]])


def choose(mine: list[str], theirs: list[str]) -> str:
    if not mine:
        return "A"
    past = [2 * (own == "A") + (other == "A") for own, other in zip(mine, theirs, strict=True)]
    # The first rounds are read as if they had been preceded by meetings at B.
    codes, context = [], 0
    for pair in past:
        codes.append(context)
        context = (4 * context + pair) % SIZE
    chance = model(np.array(codes), np.array([pair & 1 for pair in past], dtype=float))
    chances = np.stack([1.0 - chance, chance])
    values = np.zeros(SIZE)
    for _ in range(SWEEPS):
        wanted = np.einsum("oc,aoc->ac", chances, POINTS[:, :, None] + DISCOUNT * values[NEXT])
        values = wanted.max(0)
    return "BA"[int(wanted[:, context].argmax())]


def model(codes: np.ndarray, went_to_a: np.ndarray) -> np.ndarray:
    """How likely the partner goes to A in each context."""
    weights = FADE ** np.arange(len(codes) - 1, -1, -1)
    chance = np.where(CONTEXTS & 2, PRIOR[1], PRIOR[0])
    for depth in range(1, DEPTH + 1):
        size = 4**depth
        total = np.bincount(codes % size, weights, size)
        to_a = np.bincount(codes % size, weights * went_to_a, size)
        short = CONTEXTS % size
        chance = (to_a[short] + LEAN * chance) / (total[short] + LEAN)
    return chance
