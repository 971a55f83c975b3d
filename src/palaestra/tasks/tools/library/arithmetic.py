"""The plain operations, for results of other tools.

With these almost everything could be done in another way. So they are offered only where a plan needs them.
"""

from __future__ import annotations

import math

from palaestra.tasks.tools.library.marks import alike, unordered
from palaestra.tasks.tools.library.values import neat


@unordered("numbers")
def total(numbers: list[float]) -> float:
    """The sum of a list of numbers.

    Arguments:
        numbers: one or more
    """
    return neat(math.fsum(numbers))


def difference(a: float, b: float) -> float:
    """The number a minus the number b.

    Arguments:
        a: from this
        b: this is taken
    """
    return neat(a - b)


@alike("a", "b")
def product(a: float, b: float) -> float:
    """The number a times the number b.

    Arguments:
        a: a factor
        b: the other
    """
    return neat(a * b)


def ratio(a: float, b: float) -> float:
    """The number a divided by the number b.

    Arguments:
        a: what is divided
        b: by which, not 0
    """
    if b == 0:
        raise ValueError("ratio: nothing can be divided by 0; got b = 0")
    return neat(a / b)
