"""Equality of tool values."""

from __future__ import annotations

import math
from typing import Any

from palaestra.tasks.code.comparison import ABSOLUTE, RELATIVE


def same_value(value: Any, other: Any) -> bool:
    """Whether two values are equal; floating-point numbers are compared with a tolerance.

    >>> same_value([0.1 + 0.2, "a"], [0.3, "a"]), same_value(3, 3.0), same_value(3, "3"), same_value(1, True)
    (True, True, False, False)
    """
    if isinstance(value, bool) or isinstance(other, bool):
        return value is other
    if isinstance(value, int | float) and isinstance(other, int | float):
        if isinstance(value, int) and isinstance(other, int):
            return value == other
        try:
            return math.isclose(value, other, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
        except OverflowError:
            return False
    if isinstance(value, list | tuple) and isinstance(other, list | tuple):
        return len(value) == len(other) and all(map(same_value, value, other))
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(same_value(value[key], other[key]) for key in value)
    return type(value) is type(other) and bool(value == other)
