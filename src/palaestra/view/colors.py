"""Token colors: by log-prob, advantage, entropy or divergence from the reference, each with its legend.

A class `t0` to `t4` is a shade of one color. Classes `n3` to `n1` and `p1` to `p3` are two colors around `t0`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

SHADES = ("t0", "t1", "t2", "t3", "t4")
DIVERGING = ("n3", "n2", "n1", "t0", "p1", "p2", "p3")
NAMES = {"logprob": "log-prob", "advantage": "advantage", "entropy": "entropy"}
NAMES["divergence"] = "divergence from the reference"
"""The values that a token can be colored by, with their names."""


@dataclass(frozen=True, slots=True)
class Coloring:
    """Classes of tokens by a value.

    Arguments:
        name: the value, a key of `NAMES`.
        meaning: what the shades show, in words.
        classes: from the lowest value to the highest.
        edges: where a class ends and the next begins.
        labels: the numbers behind each class.
    """

    name: str
    meaning: str
    classes: Sequence[str]
    edges: Sequence[float]
    labels: Sequence[str]

    def choose_class(self, value: float | None) -> str:
        """The class of a value; `t0` if it is not known."""
        return "t0" if value is None else self.classes[bisect_right(self.edges, value)]

    @property
    def legend(self) -> list[tuple[str, str]]:
        return list(zip(self.classes, self.labels, strict=True))


_LOGPROB = Coloring(
    "logprob",
    "Sampled tokens by their probability when they were sampled",
    SHADES[::-1],
    [math.log(p) for p in (1 / 256, 1 / 64, 1 / 16, 1 / 4)],
    ("less than 1/256", "1/256 to 1/64", "1/64 to 1/16", "1/16 to 1/4", "1/4 or more"),
)
_ENTROPY = Coloring(
    "entropy",
    "Sampled tokens by the entropy of the policy's distribution, in nats",
    SHADES,
    (0.25, 0.5, 1.0, 2.0),
    ("below 0.25", "0.25 to 0.5", "0.5 to 1", "1 to 2", "2 or more"),
)
_DIVERGENCE = Coloring(
    "divergence",
    "Sampled tokens by their probability under the policy, divided by that under the reference",
    DIVERGING,
    [math.log(ratio) for ratio in (1 / 4, 1 / 2, 1 / 1.1, 1.1, 2.0, 4.0)],
    ("below 1/4", "1/4 to 1/2", "1/2 to 1/1.1", "about 1", "1.1 to 2", "2 to 4", "4 or more"),
)


def make_coloring(name: str, values: Iterable[float | None]) -> Coloring:
    """The classes of a value. Advantages have no scale of their own: their classes reach to the largest of `values`.

    >>> make_coloring("advantage", [3.0, -1.0]).edges
    [-2.0, -1.0, -0.15, 0.15, 1.0, 2.0]
    >>> make_coloring("entropy", []).choose_class(0.7)
    't2'
    """
    if name != "advantage":
        return {"entropy": _ENTROPY, "divergence": _DIVERGENCE}.get(name, _LOGPROB)
    largest = max((abs(value) for value in values if value is not None), default=0.0) or 1.0
    zero, small, medium = largest / 20, largest / 3, 2 * largest / 3
    a, b, c = (f"{number:.3g}" for number in (zero, small, medium))
    below, above = (f"below −{c}", f"−{c} to −{b}", f"−{b} to −{a}"), (f"{a} to {b}", f"{b} to {c}", f"above {c}")
    meaning = "Sampled tokens by their advantage: above 0 made more likely, below 0 less"
    edges = [-medium, -small, -zero, zero, small, medium]
    return Coloring("advantage", meaning, DIVERGING, edges, (*below, "about 0", *above))
