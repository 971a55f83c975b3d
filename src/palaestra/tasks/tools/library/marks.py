"""What a signature cannot say of a tool: arguments whose order means nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., object])


def alike(*names: str) -> Callable[[F], F]:
    """These arguments may change places: the distance from here to there is that from there to here."""

    def mark(function: F) -> F:
        function.alike = names  # type: ignore[attr-defined]
        return function

    return mark


def unordered(*names: str) -> Callable[[F], F]:
    """The items of these lists may change places: a mean is the same in any order."""

    def mark(function: F) -> F:
        function.unordered = names  # type: ignore[attr-defined]
        return function

    return mark
