"""Numbers that somebody gives, checked where they come in."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from palaestra.core.errors import EnvError, PalaestraError


def whole(
    name: str, value: Any, least: int | None = None, most: int | None = None, *, error: type[PalaestraError] = EnvError
) -> int:
    """A whole number within its limits; truth values, texts and 3.0 are none.

    Arguments:
        name: of the argument, for the error.
        least, most: the limits, both included.
        error: what is raised.

    >>> whole("attempts", 3, least=1)
    3
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or not _within(value, least, most):
        raise error(f"{name} is a whole number{_limits(least, most)}; got {short(value)}")
    return int(value)


def finite(
    name: str,
    value: Any,
    least: float | None = None,
    most: float | None = None,
    *,
    error: type[PalaestraError] = EnvError,
) -> float:
    """A finite number within its limits; truth values and texts are none. Arguments as of `whole`.

    >>> finite("max_seconds", 0.5, least=0)
    0.5
    """
    try:
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:  # A whole number may be too large.
        number = math.inf
    if not math.isfinite(number) or not _within(number, least, most):
        raise error(f"{name} is a finite number{_limits(least, most)}; got {short(value)}")
    return number


def short(value: Any) -> str:
    """What came, for an error: in one line, and not all of it where it is long."""
    try:
        said = " ".join(repr(value).split())
    except Exception:  # It is somebody else's object: saying what it is may raise anything.
        said = type(value).__name__
    return said if len(said) <= 120 else f"{said[:117]}..."


def _within(value: Any, least: float | None, most: float | None) -> bool:
    return (least is None or value >= least) and (most is None or value <= most)


def _limits(least: float | None, most: float | None) -> str:
    if least is not None and most is not None:
        return f" from {least} to {most}"
    return f" of at least {least}" if least is not None else f" of at most {most}" if most is not None else ""
