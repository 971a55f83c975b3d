"""Predict the opponent with several models, weighted by their past accuracy, and compute the best response.

The margin is a sum over the fields, so dynamic programming over the fields finds the best division against any mixture
of predictions.
"""

from __future__ import annotations

from functools import cache

import numpy as np

VALUES = np.array([1, 2, 3, 4, 5])
SOLDIERS = 100
BLURS = np.array([0.8, 2.0, 5.0, 12.0])
"""Candidate standard deviations of a prediction's error; they are weighted together with the models."""
FADE = 0.95
"""The decay of a round's weight, because an opponent may change."""
NUMBERS = np.arange(SOLDIERS + 1)
FIELDS = np.arange(len(VALUES))
KERNELS = np.exp(-0.5 * ((NUMBERS - NUMBERS[:, None]) / BLURS[:, None, None]) ** 2)
KERNELS /= KERNELS.sum(2, keepdims=True)
LEFT = NUMBERS[:, None] - NUMBERS
Division = tuple[int, ...]
Past = tuple[tuple[Division, Division], ...]
"""Our and their divisions by round."""


def allocate(mine: list[list[int]], theirs: list[list[int]]) -> list[int]:
    past = tuple((tuple(one), tuple(other)) for one, other in zip(mine, theirs, strict=True))
    if not past:
        return [4, 9, 23, 29, 35]
    points, weights, owner = models(past)
    trusted = np.exp(trust(past) - trust(past).max())
    shares = (trusted / trusted.sum())[owner] * weights[:, None]
    # The predicted number of soldiers on each field: [blur, field, soldiers].
    seen = np.zeros((len(BLURS), len(VALUES), SOLDIERS + 1))
    for k in np.flatnonzero(shares.max(1) > 1e-4):
        seen[:, FIELDS, points[k].astype(int)] += shares[k, :, None]
    return best_division((seen @ KERNELS).sum(0))


@cache
def models(past: Past) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Predict the opponent's next division: points, their weights, and the model of each."""
    ours = np.array([one for one, _ in past], dtype=float)
    theirs = np.array([other for _, other in past], dtype=float)
    count = len(past)
    single = [theirs[-min(lag, count)] for lag in (1, 2, 3, 4, 6, 9)] + [ours[-1], moved(ours[-1], theirs[-1])]
    single += [answer(ours[-rounds:].mean(0), spare) for rounds in (1, 4, 7) for spare in (1, 3)]
    recent = 0.8 ** np.arange(count - 1, -1, -1)
    # What followed similar rounds: detects cycles and changes after a loss.
    alike = np.exp(-np.abs(theirs[:-1] - theirs[-1]).sum(1) / 6.0) + 1e-3
    many = [(theirs, np.ones(count)), (theirs, recent)] + ([(theirs[1:], alike)] if count > 1 else [(theirs, recent)])
    points = np.concatenate([single, *(found for found, _ in many)])
    weights = np.concatenate([np.ones(len(single)), *(weights / weights.sum() for _, weights in many)])
    owner = np.repeat(np.arange(len(single) + len(many)), [1] * len(single) + [len(found) for found, _ in many])
    return points.round(), weights, owner


@cache
def trust(past: Past) -> np.ndarray:
    """The log-likelihood of each model with each blur after these rounds."""
    points, weights, owner = models(past[:-1] or past)
    if len(past) < 2:
        return np.zeros((owner[-1] + 1, len(BLURS)))
    off = ((points - np.array(past[-1][1])) ** 2).sum(1)
    # Four of the five fields determine a division.
    density = weights[:, None] * np.exp(-0.5 * off[:, None] / BLURS**2) / BLURS**4
    foretold = np.add.reduceat(density, np.searchsorted(owner, np.arange(owner[-1] + 1)))
    return FADE * trust(past[:-1]) + np.log(foretold + 1e-9)


def answer(expected: np.ndarray, spare: int) -> np.ndarray:
    """The response of an opponent that expects this division: it wins the fields with the highest value per soldier."""
    division, left = np.zeros(5), SOLDIERS
    for k in np.argsort((expected + spare) / VALUES, kind="stable"):
        needed = int(expected[k]) + spare
        if needed <= left:
            division[k] = needed
            left -= needed
    division[division.argmax()] += left
    return division


def moved(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """The next division of an opponent that moves soldiers from its largest win to its smallest loss."""
    ahead, division = theirs - ours, theirs.copy()
    lost = np.flatnonzero(ahead <= 0)
    if len(lost):
        count = min(6, division[ahead.argmax()])
        division[ahead.argmax()] -= count
        division[lost[(ahead[lost] / VALUES[lost]).argmax()]] += count
    return division


def best_division(chances: np.ndarray) -> list[int]:
    """The division with the largest expected margin. `chances[k, n]` is the probability of n soldiers on field k."""
    below = np.cumsum(chances, axis=1) - chances
    gains = VALUES[:, None] * (below - (1.0 - below - chances))
    total, choices = gains[0], []
    for gain in gains[1:]:
        # sums[n, s]: n soldiers so far, s of them on this field
        sums = np.where(LEFT >= 0, total[LEFT] + gain, -np.inf)
        choices.append(sums.argmax(1))
        total = sums.max(1)
    division, left_over = [], SOLDIERS
    for choice in reversed(choices):
        division.append(int(choice[left_over]))
        left_over -= division[-1]
    return [left_over, *reversed(division)]
