"""Distribute a number of examples by weight."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

K = TypeVar("K", bound=Hashable)


def share_out(total: int, weights: Mapping[K, float], cap: int | None = None) -> dict[K, int]:
    """Split `total` by `weights` into integers that add up to it, none of them above `cap`.

    The excess of a capped part goes to the others; if all are capped, the rest stays unspent.
    Rounding uses largest remainders; the order of `weights` breaks ties.

    >>> share_out(10, {"a": 2.0, "b": 1.0, "c": 0.0})
    {'a': 7, 'b': 3, 'c': 0}
    >>> share_out(10, {"a": 9.0, "b": 1.0}, cap=6)
    {'a': 6, 'b': 4}
    """
    if total < 0 or any(weight < 0 for weight in weights.values()):
        raise ValueError(f"expected a total and weights of at least 0; got {total} and {dict(weights)}")
    shares = dict.fromkeys(weights, 0)
    left = total
    while left > 0:
        open_keys = [k for k in weights if weights[k] > 0 and (cap is None or shares[k] < cap)]
        mass = sum(weights[k] for k in open_keys)
        if not open_keys:
            break
        exact = {k: left * weights[k] / mass for k in open_keys}
        whole = {k: int(exact[k]) for k in open_keys}
        rest = left - sum(whole.values())
        for k in sorted(open_keys, key=lambda k: whole[k] - exact[k])[:rest]:
            whole[k] += 1
        before = left
        for k in open_keys:
            given = whole[k] if cap is None else min(whole[k], cap - shares[k])
            shares[k] += given
            left -= given
        if left == before:
            break
    return shares
