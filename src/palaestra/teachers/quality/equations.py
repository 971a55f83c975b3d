"""The check `equations`: every plain equation between numbers in a response must hold, to the stated digits.

It needs no reference. A language model that writes question and answer together may be wrong and consistent with itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from palaestra.core.records import Example
from palaestra.teachers.quality.base import Context
from palaestra.teachers.quality.records import KEPT, CheckResult, drop, not_judged

WRONG, NONE = "wrong calculation", "no calculation"

_NUMBER = r"\d{1,3}(?:,\d{3})+(?![\d,])(?:\.\d+)?|\d+(?:\.\d+)?"
_SIGN = r"\s?[-+*/×÷−]\s?|\s[x]\s|(?<=\d)x(?=\d)"
# Only unambiguous equations count: they begin a sentence or follow a plain word, and no unit, bracket, power or further
# operator touches either side.
_EQUATION = re.compile(
    rf"(?:^|[.;:,!?]\s|<<|\b(?!x\b|of\b|times\b|by\b|and\b|plus\b|minus\b|over\b|per\b|to\b)[A-Za-z]+\s)"
    rf"(?P<equation>(?P<left>\$?(?:{_NUMBER})(?:(?:{_SIGN})\$?(?:{_NUMBER})){{1,8}})"
    rf"\s?=\s?(?P<right>[-−]?\$?(?:{_NUMBER})))(?![\w%^²³½¼¾(]|[.,:]\d|\s?[-+*/×÷−=x](?:[\s\w($]|$)|\s\d|\sand\b)",
    re.MULTILINE,
)
_TOKEN = re.compile(rf"{_NUMBER}|[-+*/]")
_SIGNS = str.maketrans("×x÷−", "**/-")


class Equations:
    """Drops a response with a false equation such as `12*7=94`. Rounded results are right to the digits given."""

    name = "equations"
    rank = 25
    needed = True

    def judge(self, examples: Sequence[Example], context: Context) -> list[CheckResult]:
        return [_judge(example.response) for example in examples]


def _judge(response: str) -> CheckResult:
    count = 0
    for match in _EQUATION.finditer(response):
        if match["left"].count("/") > 1:
            continue  # "50 / 1/2" means a half to most who write it.
        count += 1
        if not holds(match["left"], match["right"]):
            return drop(WRONG, match["equation"])
    return KEPT if count else not_judged(NONE)


def holds(left: str, right: str) -> bool:
    """Whether a calculation gives a number, to the digits that the number has.

    >>> holds("12*7", "84"), holds("10/3", "3.33"), holds("10/3", "3.35"), holds("7/2", "5")
    (True, True, False, False)
    """
    value, stated = _value(left), right.translate(_SIGNS).replace("$", "").replace(",", "")
    if value is None:
        return False
    digits = len(stated.partition(".")[2])
    off = abs(value - Fraction(stated))
    # "3.33" is meant to its last digit, rounded or cut off; so is the whole number that a division gives.
    return off < Fraction(1, 10**digits) if digits or re.search(r"[/÷]", left) else off == 0


def _value(expression: str) -> Fraction | None:
    """Evaluate numbers and operators, products first; `None` for a division by zero."""
    total, term, sign = Fraction(0), Fraction(0), "+"
    for token in _TOKEN.findall(expression.translate(_SIGNS).replace("$", "")):
        if token in "+-*/":
            sign = token
            continue
        number = Fraction(token.replace(",", ""))
        if sign in "+-":
            total, term = total + term, number if sign == "+" else -number
        elif sign == "*":
            term *= number
        elif number == 0:
            return None
        else:
            term /= number
    return total + term
