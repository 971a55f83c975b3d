"""Detect competition problems that stored outputs cannot decide: several answers are correct, or the problem is interactive.

This is determined from the statement: from phrases about several answers, and from its examples, whose outputs must
agree with the stored ones.
"""

from __future__ import annotations

import html
import re

from palaestra.tasks.code.comparison import same_output

_SENTENCE = re.compile(r"[^.\n]+")
_ANY_CASE = re.compile(r"\bany (?:case|register)\b|\b(?:upper|lower)\s?case or (?:upper|lower)|case[- ]insensitive", re.IGNORECASE)  # fmt: skip
_SAY = r"(?:print|output|write|report|find|give|display|return|accept\w*|you (?:may|can) choose)"
_ANY = re.compile(
    rf"\b{_SAY}\b[^.\n]{{0,80}}?\b(?:any|arbitrary)\b(?: (?:one )?of (?:them|these|those)| (?:suitable|valid|correct|such|possible|order|one|solution|answer)\b|\s*$)"
    rf"|\b(?:any|arbitrary)\b[^.\n]{{0,40}}?\b(?:order|solution|answer|one)\b[^.\n]{{0,40}}?\b(?:accepted|allowed|correct)\b"
    rf"|\b(?:several|multiple|many|more than one)\b[^.\n]{{0,80}}?\b{_SAY}\b[^.\n]{{0,30}}?\bany\b"
    rf"|\bin (?:any|an arbitrary) order\b|\bnot always uniquely determined\b",
    re.IGNORECASE,
)
_DIALOGUE = re.compile(r"\binteractive (?:problem|task)\b|\bthis is an interactive\b|\bflush\b", re.IGNORECASE)
_EXAMPLE = re.compile(r"^\s*Input\s*\n(?P<given>.*?)^\s*Output\s*\n(?P<printed>.*?)(?=^\s*(?:Input|Notes?|Examples?)\s*$|^Time Limit:|\Z)", re.MULTILINE | re.DOTALL)  # fmt: skip


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
    for given, printed in read_examples(statement):
        expected = stored.get(" ".join(given.split()))
        if expected is not None and not same_output(printed, expected, any_case=admits_any_case(statement)):
            return "the output of its own example is not the stored one"
    return ""


def read_examples(statement: str) -> list[tuple[str, str]]:
    """The example inputs and outputs in a statement of CodeContests."""
    start = re.search(r"^Examples?\s*$", statement, re.MULTILINE)
    if start is None:
        return []
    shown = html.unescape(statement)
    return [(match["given"], match["printed"]) for match in _EXAMPLE.finditer(shown, start.start())]
