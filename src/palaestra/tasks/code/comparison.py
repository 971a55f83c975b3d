"""Is what a program printed what was expected? Whitespace does not count, and numbers are numbers.

Lines are compared token by token. A token that is a decimal number may differ in its last digits; one that is an
integer may not, and neither may anything else: `yes` is not `YES`.
"""

from __future__ import annotations

import math
import re

RELATIVE, ABSOLUTE = 1e-6, 1e-6
_DECIMAL = re.compile(r"[+-]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?\Z")


def same_output(printed: str, expected: str, relative: float = RELATIVE, absolute: float = ABSOLUTE) -> bool:
    """Whether two outputs say the same.

    >>> same_output("1.5 2\\n\\n", "1.5000000001   2")
    True
    >>> same_output("12", "1 2")
    False
    """
    mine, theirs = _lines(printed), _lines(expected)
    if mine == theirs:
        return True
    if len(mine) != len(theirs):
        # A program may break its lines elsewhere, as long as it says the same words in the same order.
        mine, theirs = [printed.split()], [expected.split()]
    return all(_same_line(a, b, relative, absolute) for a, b in zip(mine, theirs, strict=True))


def first_difference(printed: str, expected: str) -> str:
    """What stands where the outputs part, for a reader."""
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
    a, b = float(mine), float(expected)
    return math.isfinite(a) and math.isfinite(b) and math.isclose(a, b, rel_tol=relative, abs_tol=absolute)


def _is_decimal(token: str) -> bool:
    return bool(_DECIMAL.match(token))


def _has_point(token: str) -> bool:
    return "." in token or "e" in token or "E" in token
