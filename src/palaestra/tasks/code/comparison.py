"""Compare the output of a program with the expected output. Whitespace is ignored; numbers are compared by value.

Lines are compared token by token. An expected decimal number allows a small tolerance. An expected integer does not:
`3.0` equals 3, but `3.0000001` does not. Other tokens must be identical: `yes` is not `YES`.

Some competition problems cannot be judged by stored outputs: several answers are correct, or the problem is interactive.
`why_undecided` detects them from the statement: from phrases about several answers, and from its examples, whose outputs
must agree with the stored ones.
"""

from __future__ import annotations

import html
import math
import re
from decimal import Decimal

RELATIVE, ABSOLUTE = 1e-6, 1e-6
_MAX_DIGITS = 10_000
"""Maximum length of a number; longer tokens are compared as text."""
_DECIMAL = re.compile(r"[+-]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d{1,6})?\Z", re.ASCII)


def same_output(printed: str, expected: str, *, any_case: bool = False) -> bool:
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
    mine, theirs = _split_lines(printed), _split_lines(expected)
    if len(mine) != len(theirs):
        # Line breaks may differ if the words are the same.
        mine, theirs = [printed.split()], [expected.split()]
    return all(len(a) == len(b) and all(map(_same_token, a, b)) for a, b in zip(mine, theirs, strict=True))


def first_difference(printed: str, expected: str) -> str:
    """A description of the first difference."""
    mine, theirs = printed.split(), expected.split()
    for place, (a, b) in enumerate(zip(mine, theirs, strict=False), start=1):
        if not _same_token(a, b):
            return f"word {place}: expected {b[:80]!r}; got {a[:80]!r}"
    return f"expected {len(theirs)} words; got {len(mine)}"


def _split_lines(text: str) -> list[list[str]]:
    return [words for line in text.splitlines() if (words := line.split())]


def _same_token(mine: str, expected: str) -> bool:
    if mine == expected:
        return True
    if not (_is_decimal(mine) and _is_decimal(expected)) or not (_has_point(mine) or _has_point(expected)):
        return False
    if Decimal(mine) == Decimal(expected):
        return True
    a, b = float(mine), float(expected)
    if not _has_point(expected) or not (math.isfinite(a) and math.isfinite(b)):
        return False
    return math.isclose(a, b, rel_tol=RELATIVE, abs_tol=ABSOLUTE)


def _is_decimal(token: str) -> bool:
    return len(token) <= _MAX_DIGITS and bool(_DECIMAL.match(token))


def _has_point(token: str) -> bool:
    return "." in token or "e" in token or "E" in token


_SENTENCE = re.compile(r"[^.\n]+")
_ANY_CASE = re.compile(
    r"\bany (?:case|register)\b|\b(?:upper|lower)\s?case or (?:upper|lower)|case[- ]insensitive", re.IGNORECASE
)
_SAY = r"(?:print|output|write|report|find|give|display|return|accept\w*|you (?:may|can) choose)"
_ANY = re.compile(
    rf"\b{_SAY}\b[^.\n]{{0,80}}?\b(?:any|arbitrary)\b(?: (?:one )?of (?:them|these|those)| (?:suitable|valid|correct|such|possible|order|one|solution|answer)\b|\s*$)"
    rf"|\b(?:any|arbitrary)\b[^.\n]{{0,40}}?\b(?:order|solution|answer|one)\b[^.\n]{{0,40}}?\b(?:accepted|allowed|correct)\b"
    rf"|\b(?:several|multiple|many|more than one)\b[^.\n]{{0,80}}?\b{_SAY}\b[^.\n]{{0,30}}?\bany\b"
    rf"|\bin (?:any|an arbitrary) order\b|\bnot always uniquely determined\b",
    re.IGNORECASE,
)
_DIALOGUE = re.compile(r"\binteractive (?:problem|task)\b|\bthis is an interactive\b|\bflush\b", re.IGNORECASE)
_EXAMPLE = re.compile(
    r"^\s*Input\s*\n(?P<given>.*?)^\s*Output\s*\n(?P<printed>.*?)(?=^\s*(?:Input|Notes?|Examples?)\s*$|^Time Limit:|\Z)",
    re.MULTILINE | re.DOTALL,
)


def admits_any_case(statement: str) -> bool:
    """Whether a statement lets a program print letters in either case."""
    return bool(_ANY_CASE.search(statement))


def why_undecided(statement: str, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> str:
    """Why the stored outputs cannot decide whether a program is correct; empty if they can.

    >>> why_undecided("If there are several answers, print any of them.", (), ())
    'it admits several answers'
    """
    if _DIALOGUE.search(statement):
        return "it is interactive"
    task = statement.split("\nExample", 1)[0]
    for sentence in _SENTENCE.findall(task):
        says_output = re.search(rf"\b{_SAY}\b", sentence, re.IGNORECASE)
        if says_output and not _ANY_CASE.search(sentence) and _ANY.search(sentence):
            return "it admits several answers"
    stored = {" ".join(given.split()): printed for given, printed in zip(inputs, outputs, strict=True)}
    for given, printed in read_statement_examples(statement):
        expected = stored.get(" ".join(given.split()))
        if expected is not None and not same_output(printed, expected, any_case=admits_any_case(statement)):
            return "the output of its example differs from the stored one"
    return ""


def read_statement_examples(statement: str) -> list[tuple[str, str]]:
    """The example inputs and outputs in a statement of CodeContests."""
    start = re.search(r"^Examples?\s*$", statement, re.MULTILINE)
    if start is None:
        return []
    shown = html.unescape(statement)
    return [(match["given"], match["printed"]) for match in _EXAMPLE.finditer(shown, start.start())]
