"""Which of several measurements on the same problems is the best."""

from __future__ import annotations

from collections.abc import Sequence

from palaestra.core.records import Attempt
from palaestra.core.statistics import measure_gain


def is_better(attempts: Sequence[Attempt], best: Sequence[Attempt]) -> bool:
    """Whether `attempts` have a higher accuracy than `best`, over the problems that were scored both times.

    Where every problem was scored that is the accuracy of the whole. Where some failed around the model, the rest is
    compared: a measurement that lost its hard problems is not better for it. Anything scored is better than nothing.
    """
    gain = measure_gain(best, attempts)
    if gain.count:
        return gain.points > 0
    return any(a.correct is not None for a in attempts) and all(a.correct is None for a in best)


def find_best(measured: Sequence[Sequence[Attempt]]) -> int:
    """The place of the best of several measurements; of equals the first."""
    best = 0
    for place, attempts in enumerate(measured):
        if place and is_better(attempts, measured[best]):
            best = place
    return best
