"""Numbers that somebody gives, checked where they come in."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from palaestra.core.errors import EnvError, PalaestraError


def check_integer(
    name: str,
    value: Any,
    minimum: int | None = None,
    maximum: int | None = None,
    *,
    error: type[PalaestraError] = EnvError,
) -> int:
    """A whole number within its limits; truth values, texts and 3.0 are none.

    Arguments:
        name: of the argument, for the error.
        minimum, maximum: the limits, both included.
        error: what is raised.

    >>> check_integer("attempts", 3, minimum=1)
    3
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or not _within(value, minimum, maximum):
        raise error(f"{name} is a whole number{_limits(minimum, maximum)}; got {short_repr(value)}")
    return int(value)


def check_number(
    name: str,
    value: Any,
    minimum: float | None = None,
    maximum: float | None = None,
    *,
    error: type[PalaestraError] = EnvError,
) -> float:
    """A finite number within its limits; truth values and texts are none. Arguments as of `check_integer`.

    >>> check_number("max_seconds", 0.5, minimum=0)
    0.5
    """
    try:
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:  # A whole number may be too large.
        number = math.inf
    if not math.isfinite(number) or not _within(number, minimum, maximum):
        raise error(f"{name} is a finite number{_limits(minimum, maximum)}; got {short_repr(value)}")
    return number


def short_repr(value: Any) -> str:
    """What came, for an error: in one line, and not all of it where it is long."""
    try:
        said = " ".join(repr(value).split())
    except Exception:  # It is somebody else's object: saying what it is may raise anything.
        said = type(value).__name__
    return said if len(said) <= 120 else f"{said[:117]}..."


def _within(value: Any, minimum: float | None, maximum: float | None) -> bool:
    return (minimum is None or value >= minimum) and (maximum is None or value <= maximum)


def _limits(minimum: float | None, maximum: float | None) -> str:
    if minimum is not None and maximum is not None:
        return f" from {minimum} to {maximum}"
    return f" of at least {minimum}" if minimum is not None else f" of at most {maximum}" if maximum is not None else ""
