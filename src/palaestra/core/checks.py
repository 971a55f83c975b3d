"""Checks of numbers in arguments and settings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from typing import Any

from palaestra.core.errors import EnvError, PalaestraError, SettingsError


def check_integer(
    name: str,
    value: Any,
    minimum: int | None = None,
    maximum: int | None = None,
    *,
    error: type[PalaestraError] = EnvError,
) -> int:
    """Return `value` as an `int` if it is an integer within limits. Booleans, strings and 3.0 are rejected.

    Arguments:
        name: the name of the argument, for the error message.
        minimum, maximum: inclusive limits.
        error: the type of the exception.

    >>> check_integer("attempts", 3, minimum=1)
    3
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or not _within(value, minimum, maximum):
        raise error(f"{name} must be a whole number{_limits(minimum, maximum)}; got {short_repr(value)}")
    return int(value)


def check_number(
    name: str,
    value: Any,
    minimum: float | None = None,
    maximum: float | None = None,
    *,
    error: type[PalaestraError] = EnvError,
) -> float:
    """Return `value` as a `float` if it is a finite number within limits. Arguments as for `check_integer`.

    >>> check_number("max_seconds", 0.5, minimum=0)
    0.5
    """
    try:
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:  # An integer may be too large.
        number = math.inf
    if not math.isfinite(number) or not _within(number, minimum, maximum):
        raise error(f"{name} must be a finite number{_limits(minimum, maximum)}; got {short_repr(value)}")
    return number


def check_options(name: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Raise `SettingsError` for the first option in `given` that is not in `known`.

    Arguments:
        name: the owner of the options, for the error message.
    """
    for option in given:
        if option not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise SettingsError(f"{name} has no option '{option}'; {takes}")


def short_repr(value: Any) -> str:
    """Return the repr of a value in one line of at most 120 characters, for error messages."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # A user's `__repr__` may raise anything.
        text = type(value).__name__
    return text if len(text) <= 120 else f"{text[:117]}..."


def _within(value: Any, minimum: float | None, maximum: float | None) -> bool:
    return (minimum is None or value >= minimum) and (maximum is None or value <= maximum)


def _limits(minimum: float | None, maximum: float | None) -> str:
    if minimum is not None and maximum is not None:
        return f" from {minimum} to {maximum}"
    return f" of at least {minimum}" if minimum is not None else f" of at most {maximum}" if maximum is not None else ""
