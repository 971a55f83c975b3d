"""Fields of settings dataclasses: the default, one line of documentation and the allowed range in one place."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import field, fields
from typing import Any, TypeVar

from palaestra.core.errors import SettingsError

C = TypeVar("C", bound=type)


def setting(
    default: Any, help: str, *, low: float | None = None, high: float | None = None, above: float | None = None
) -> Any:
    """Define a field of a settings dataclass.

    Arguments:
        help: one sentence for the documentation and the command line.
        low, high: the inclusive range; checked by `check_ranges`.
        above: an exclusive lower bound.
    """
    return field(default=default, metadata={"help": help, "low": low, "high": high, "above": above})


def check_ranges(settings: Any) -> None:
    """Check every number of a settings dataclass against the range of its field.

    Raises:
        SettingsError: a number is infinite, NaN or out of range.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Settings:
    ...     gamma: float = setting(0.99, "Discount factor.", low=0, high=1)
    >>> check_ranges(Settings(gamma=2.0))
    Traceback (most recent call last):
    ...
    palaestra.core.errors.SettingsError: setting 'gamma': expected 0 to 1; got 2.0
    """
    for f in fields(settings):
        value = getattr(settings, f.name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        low, high, above = (f.metadata.get(name) for name in ("low", "high", "above"))
        if not math.isfinite(value):
            expected = "a finite number"
        elif above is not None and value <= above:
            expected = f"above {above}"
        elif (low is not None and value < low) or (high is not None and value > high):
            expected = (
                f"{low} to {high}"
                if None not in (low, high)
                else f"at least {low}"
                if high is None
                else f"at most {high}"
            )
        else:
            continue
        raise SettingsError(f"setting '{f.name}': expected {expected}; got {value}")


def accept_aliases(aliases: dict[str, str], ignored: Sequence[str] = ()) -> Callable[[C], C]:
    """Let the constructor of a dataclass also accept other names of its fields.

    Arguments:
        aliases: the field of each other name.
        ignored: arguments that are accepted and have no effect.
    """

    def decorate(kind: C) -> C:
        init = kind.__init__  # type: ignore[misc]

        @functools.wraps(init)
        def __init__(self: Any, *args: Any, **values: Any) -> None:
            init(self, *args, **{aliases.get(name, name): v for name, v in values.items() if name not in ignored})

        kind.__init__ = __init__  # type: ignore[misc]
        return kind

    return decorate
