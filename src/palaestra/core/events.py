"""What a long job tells whoever watches it. The library emits; the command line draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Event:
    """A step of progress.

    Arguments:
        phase: what is being done, for example `"train"` or `"evaluate validation"`.
        done, total: how far it is; `total` is 0 where nobody knows.
        round: which round of the run this belongs to; 0 is before the first.
        figures: numbers worth showing, for example `{"loss": 0.31}`.
    """

    phase: str
    done: int = 0
    total: int = 0
    round: int = 0
    figures: Mapping[str, Any] = field(default_factory=dict)


Listener = Callable[[Event], None]


def ignore(event: Event) -> None:
    """The listener of those who do not listen."""
