"""When two values of tools are the same."""

from __future__ import annotations

import math
from typing import Any

from palaestra.tasks.code.comparison import ABSOLUTE, RELATIVE


def same_value(one: Any, other: Any) -> bool:
    """Equal; numbers of which one has a point within a rounding of each other.

    >>> same_value([0.1 + 0.2, "a"], [0.3, "a"]), same_value(3, 3.0), same_value(3, "3"), same_value(1, True)
    (True, True, False, False)
    """
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        if isinstance(one, int) and isinstance(other, int):
            return one == other
        try:
            return math.isclose(one, other, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
        except OverflowError:
            return False
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same_value, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_value(one[key], other[key]) for key in one)
    return type(one) is type(other) and bool(one == other)
