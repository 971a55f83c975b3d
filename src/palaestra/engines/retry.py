"""When a failed call to a service is repeated, and how long to wait before."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from palaestra.core.errors import SettingsError
from palaestra.core.seeding import Seeds

RETRY = "call again"
"""The phase of an event: a call failed and is repeated. The event counts the calls for this answer; its data have the
`reason` and the `seconds` until the next call."""

WAITING = "no answer yet"
"""The phase of an event: running calls have received nothing for a while. The data have the `model`, the number of such
`calls`, the `seconds` of the longest silence, and the `limit` after which the engine gives up."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff with jitter for calls with a temporary failure.

    Arguments:
        first: seconds before the second call. They double each time, minus a random fraction of up to a half.
        longest: maximum seconds between two calls. A server's `Retry-After` takes precedence.
        total: maximum seconds from the first call to the last. A `Retry-After` beyond that ends the retries.
        tries: maximum number of calls for one answer.
        unreached: replaces `total` while no server has ever answered at the address.
    """

    first: float = 0.5
    longest: float = 60.0
    total: float = 600.0
    tries: int = 10
    unreached: float = 10.0

    def __post_init__(self) -> None:
        seconds = (self.first, self.longest, self.total, self.unreached)
        if not (all(value >= 0 for value in seconds) and self.tries >= 1):
            raise SettingsError(f"a retry policy needs seconds of 0 or more and at least 1 try; got {self}")

    def wait(self, tried: int, elapsed: float, wish: float | None, seeds: Seeds, reached: bool = True) -> float | None:
        """Return the seconds until the next call; `None` for no further call.

        Arguments:
            tried: number of calls so far.
            elapsed: seconds since the first call.
            wish: the server's `Retry-After` in seconds, if any.
            seeds: the source of the jitter.
            reached: whether a server has ever answered.

        >>> RetryPolicy(first=1.0, total=30.0).wait(1, 0.0, 7.0, Seeds(0))
        7.0
        >>> RetryPolicy(first=1.0, total=30.0).wait(1, 25.0, 7.0, Seeds(0)) is None
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
            seconds = min(seconds, left)  # One last call at the end of the time.
        return seconds if seconds <= left else None


def parse_retry_after(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Parse the seconds that a server asks to wait: `retry-after-ms`, or `retry-after` in seconds or as a date.

    Arguments:
        headers: a mapping with lower-case names, or one that ignores case.
        now: seconds since 1970, for dates.

    >>> parse_retry_after({"retry-after": "2"}), parse_retry_after({"retry-after-ms": "150"}), parse_retry_after({})
    (2.0, 0.15, None)
    """
    for name, scale in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        try:
            seconds = float(value) * scale
        except ValueError:
            try:
                seconds = parsedate_to_datetime(value).timestamp() - (time.time() if now is None else now)
            except (ValueError, TypeError, OverflowError):
                continue
        if math.isfinite(seconds):
            return max(0.0, seconds)
    return None
