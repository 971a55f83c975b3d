"""Progress events. The library emits them; the command line displays them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Event:
    """A step of progress.

    Arguments:
        phase: the current activity, for example `"train"` or `"evaluate validation"`.
        done, total: the progress; `total` is 0 if unknown.
        round: the round of the run; 0 is before the first.
        data: values to display, for example `{"loss": 0.31}`.
    """

    phase: str
    done: int = 0
    total: int = 0
    round: int = 0
    data: Mapping[str, Any] = field(default_factory=dict)


NOTICE = "notice"
"""The phase of an event with a message for the user. The text is in `data["text"]`."""


def notice(text: str) -> Event:
    """Make an event with a message for the user.

    >>> notice("stopping after this iteration").data["text"]
    'stopping after this iteration'
    """
    return Event(NOTICE, data={"text": text})


Listener = Callable[[Event], None]


def ignore(event: Event) -> None:
    """A listener that does nothing."""
