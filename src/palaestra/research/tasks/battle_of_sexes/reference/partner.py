"""Learn how the partner responds to the last rounds, and plan ahead with this model.

The model estimates the probability that the partner chooses A, given the last three rounds of both; rare contexts back off to
shorter ones. Value iteration over the contexts then selects the action, so that insisting is tried if it may pay off later.
"""

from __future__ import annotations

import numpy as np

DEPTH = 3
"""Rounds in a context, two bits each: ours and theirs; 1 is A."""
SIZE = 4**DEPTH
CONTEXTS = np.arange(SIZE)
FADE = 0.98
"""The decay of an observation's weight per round, because partners change."""
LEAN = 1.0
"""The weight of the shorter context's estimate, in observations."""
PRIOR = (0.2, 0.9)
"""The prior probability that the partner chooses A after we chose B, and after we chose A."""
DISCOUNT = 0.9
SWEEPS = 12
NEXT = np.array([[(4 * CONTEXTS + 2 * own + other) % SIZE for other in (0, 1)] for own in (0, 1)])
"""[own, other, context]: the next context."""
POINTS = np.array([[2.0, 0.0], [0.0, 3.0]])


def choose(mine: list[str], theirs: list[str]) -> str:
    if not mine:
        return "A"
    past = [2 * (own == "A") + (other == "A") for own, other in zip(mine, theirs, strict=True)]
    # Assume meetings at B before the first round.
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
    """The probability that the partner chooses A in each context."""
    weights = FADE ** np.arange(len(codes) - 1, -1, -1)
    chance = np.where(CONTEXTS & 2, PRIOR[1], PRIOR[0])
    for depth in range(1, DEPTH + 1):
        size = 4**depth
        total = np.bincount(codes % size, weights, size)
        to_a = np.bincount(codes % size, weights * went_to_a, size)
        short = CONTEXTS % size
        chance = (to_a[short] + LEAN * chance) / (total[short] + LEAN)
    return chance
