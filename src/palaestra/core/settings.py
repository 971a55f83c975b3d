"""Fields of settings dataclasses with their documentation and range, and checks of arguments."""

from __future__ import annotations

import ast
import functools
import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, fields
from itertools import pairwise
from numbers import Integral, Real
from textwrap import dedent
from typing import TYPE_CHECKING, Any, TypeVar

from palaestra.core.errors import EnvError, PalaestraError, SettingsError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

C = TypeVar("C", bound=type)


def setting(
    default: object,
    help: str = "",
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    panel: str = "Learning",
    policies: Sequence[str] = (),
    needs: str = "",
    usual: bool = False,
    names: str = "",
    repeated: bool = False,
    option: bool = True,
) -> Any:
    """Define a field of a settings dataclass.

    Arguments:
        help: one sentence for the documentation and the command line; by default the string below the field.
        low, high: the inclusive range; checked by `check_ranges`.
        above: an exclusive lower bound.
        panel: the group of the option in `--help`.
        policies: the policies that the setting has an effect on; all if empty.
        needs: another setting, without which this one has no effect.
        usual: whether `--help` shows the option; `--help-all` shows every option.
        names: the kind of `palaestra list` whose names a shell completes.
        repeated: whether the option may be given several times.
        option: whether the command line has it.
    """
    metadata: dict[str, Any] = {"help": help, "low": low, "high": high, "above": above, "panel": panel}
    metadata |= {"policies": policies, "needs": needs, "usual": usual, "names": names}
    metadata |= {"repeated": repeated, "option": option}
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


@functools.cache
def describe_fields(kind: type) -> dict[str, str]:
    """Return the documentation of each field of a settings dataclass: its `help`, or the string below it."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        try:
            [definition] = ast.parse(dedent(inspect.getsource(base))).body
        except (OSError, TypeError):  # A class without source has only the texts that `setting` was given.
            continue
        for line, following in pairwise(getattr(definition, "body", ())):
            match line, following:
                case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                    texts[name] = " ".join(text.split())
    return {f.name: f.metadata.get("help") or texts.get(f.name, "") for f in fields(kind)}


def check_ranges(settings: DataclassInstance) -> None:
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
            bound = f"at most {high}" if low is None else f"at least {low}"
            expected = bound if None in (low, high) else f"{low} to {high}"
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


def check_integer(
    name: str,
    value: object,
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
    low, high = -math.inf if minimum is None else minimum, math.inf if maximum is None else maximum
    if isinstance(value, bool) or not isinstance(value, Integral) or not low <= int(value) <= high:
        raise error(f"{name} must be a whole number{_limits(minimum, maximum)}; got {short_repr(value)}")
    return int(value)


def check_number(
    name: str, value: object, minimum: float | None = None, *, error: type[PalaestraError] = EnvError
) -> float:
    """Return `value` as a `float` if it is a finite number. Arguments as for `check_integer`.

    >>> check_number("max_seconds", 0.5, minimum=0)
    0.5
    """
    try:
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:  # An integer may be too large.
        number = math.inf
    if not math.isfinite(number) or (minimum is not None and number < minimum):
        raise error(f"{name} must be a finite number{_limits(minimum, None)}; got {short_repr(value)}")
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


def short_repr(value: object) -> str:
    """Return the repr of a value in one line of at most 120 characters, for error messages."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # A user's `__repr__` may raise anything.
        text = type(value).__name__
    return text if len(text) <= 120 else f"{text[:117]}..."


def _limits(minimum: float | None, maximum: float | None) -> str:
    if minimum is not None and maximum is not None:
        return f" from {minimum} to {maximum}"
    return f" of at least {minimum}" if minimum is not None else f" of at most {maximum}" if maximum is not None else ""
