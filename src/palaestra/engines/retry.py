"""How long to wait before a call is made again, and when to stop trying."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from palaestra.core.errors import SettingsError
from palaestra.core.seeding import Seeds

AGAIN = "call again"
"""The phase of an event: a call has failed for the moment. It says how many of how many were made for this answer, and in
its data the `reason` and the `seconds` until the next."""

WAITING = "no answer yet"
"""The phase of an event: calls are under way and nothing has come back for a while. The data have the `model`, the
`calls` that are silent, for how many `seconds` the longest has been, and the `limit` after which the engine gives up."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How a call that failed for the moment is repeated.

    Arguments:
        first: seconds before the second try; they double from try to try, less up to a half by chance.
        longest: most seconds between two tries. A server that names its own wish is given that instead.
        total: most seconds from the first try to the last. A wish beyond that ends the trying at once.
        tries: most calls for one answer.
        unreached: most seconds where nobody was ever met at the address, which is more often wrong than asleep.
    """

    first: float = 0.5
    longest: float = 60.0
    total: float = 600.0
    tries: int = 10
    unreached: float = 10.0

    def __post_init__(self) -> None:
        seconds = (self.first, self.longest, self.total, self.unreached)
        if not (all(one >= 0 for one in seconds) and self.tries >= 1):
            raise SettingsError(f"patience needs seconds of 0 or more and at least 1 try; got {self}")

    def wait(self, tried: int, elapsed: float, wish: float | None, seeds: Seeds, reached: bool = True) -> float | None:
        """Seconds until the next try; `None` where there is to be none.

        Arguments:
            tried: calls that were made already.
            elapsed: seconds since the first of them.
            wish: what the server asked for, if it did.
            seeds: whose chance it is.
            reached: whether there was ever somebody at the other end.

        >>> Patience(first=1.0, total=30.0).wait(1, 0.0, 7.0, Seeds(0))
        7.0
        >>> Patience(first=1.0, total=30.0).wait(1, 25.0, 7.0, Seeds(0)) is None
        True
        """
        if tried >= self.tries:
            return None
        if wish is not None:
            seconds = wish
        else:
            chance = seeds.derive("retry", tried).generator().random()
            seconds = min(self.longest, self.first * 2.0 ** min(tried - 1, 60)) * (1.0 - 0.5 * float(chance))
        left = (self.total if reached else min(self.total, self.unreached)) - elapsed
        if not reached and left >= self.first:
            seconds = min(seconds, left)  # One last time, when its time is over.
        return seconds if seconds <= left else None


def server_wish(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Seconds that a server asks to wait, by `retry-after-ms` or `retry-after` (seconds or a date).

    Arguments:
        headers: with names in lower case, or of a kind that does not care.
        now: seconds since 1970; for a wish that is a date.

    >>> server_wish({"retry-after": "2"}), server_wish({"retry-after-ms": "150"}), server_wish({})
    (2.0, 0.15, None)
    """
    for name, scale in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        said = headers.get(name)
        if said is None:
            continue
        try:
            seconds = float(said) * scale
        except ValueError:
            try:
                seconds = parsedate_to_datetime(said).timestamp() - (time.time() if now is None else now)
            except (ValueError, TypeError, OverflowError):
                continue
        if math.isfinite(seconds):
            return max(0.0, seconds)
    return None
