"""Compare the output of a program with the expected output. Whitespace is ignored; numbers are compared by value.

Lines are compared token by token. An expected decimal number allows a small tolerance. An expected integer does not:
`3.0` equals 3, but `3.0000001` does not. Other tokens must be identical: `yes` is not `YES`.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal

RELATIVE, ABSOLUTE = 1e-6, 1e-6
MOST_DIGITS = 10_000
"""Maximum length of a number; longer tokens are compared as text."""
_DECIMAL = re.compile(r"[+-]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d{1,6})?\Z", re.ASCII)


def same_output(
    printed: str, expected: str, relative: float = RELATIVE, absolute: float = ABSOLUTE, *, any_case: bool = False
) -> bool:
    """Whether two outputs are equal.

    Arguments:
        any_case: whether letters may be printed in either case.

    >>> same_output("1.5 2\\n\\n", "1.5000000001   2")
    True
    >>> same_output("12", "1 2")
    False
    """
    if any_case:
        printed, expected = printed.lower(), expected.lower()
    mine, theirs = _lines(printed), _lines(expected)
    if mine == theirs:
        return True
    if len(mine) != len(theirs):
        # Line breaks may differ if the words are the same.
        mine, theirs = [printed.split()], [expected.split()]
    return all(_same_line(a, b, relative, absolute) for a, b in zip(mine, theirs, strict=True))


def first_difference(printed: str, expected: str) -> str:
    """A description of the first difference."""
    mine, theirs = printed.split(), expected.split()
    for place, (a, b) in enumerate(zip(mine, theirs, strict=False)):
        if not _same_token(a, b, RELATIVE, ABSOLUTE):
            return f"word {place + 1}: expected {b[:80]!r}; got {a[:80]!r}"
    return f"expected {len(theirs)} words; got {len(mine)}"


def _lines(text: str) -> list[list[str]]:
    return [words for line in text.splitlines() if (words := line.split())]


def _same_line(mine: list[str], theirs: list[str], relative: float, absolute: float) -> bool:
    return len(mine) == len(theirs) and all(
        _same_token(a, b, relative, absolute) for a, b in zip(mine, theirs, strict=True)
    )


def _same_token(mine: str, expected: str, relative: float, absolute: float) -> bool:
    if mine == expected:
        return True
    if not (_is_decimal(mine) and _is_decimal(expected)) or not (_has_point(mine) or _has_point(expected)):
        return False
    if Decimal(mine) == Decimal(expected):
        return True
    if not _has_point(expected):
        return False
    a, b = float(mine), float(expected)
    return math.isfinite(a) and math.isfinite(b) and math.isclose(a, b, rel_tol=relative, abs_tol=absolute)


def _is_decimal(token: str) -> bool:
    return len(token) <= MOST_DIGITS and bool(_DECIMAL.match(token))


def _has_point(token: str) -> bool:
    return "." in token or "e" in token or "E" in token
