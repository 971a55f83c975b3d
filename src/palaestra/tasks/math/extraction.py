r"""The final answer of a free text, and how it was found.

Looked for in this order, the last of each kind: a box, a line after `####`, what follows "the answer is" or
"Final answer:", the last formula, the last number. Where a response thinks aloud first (`<think>`), only what
comes after counts. Every search is linear in the length of the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from palaestra.tasks.math.equivalence import is_answer


class Evidence(StrEnum):
    """How an answer was found, from the surest to the weakest."""

    BOXED = "boxed"
    UNCLOSED_BOX = "unclosed box"
    """A box whose last brace is missing, for example because the response was cut off."""
    HASHES = "####"
    PHRASE = "phrase"
    """After "the answer is", "Final answer:" and the like."""
    FORMULA = "formula"
    """The last formula between dollars or in LaTeX brackets, in the last line that has any."""
    NUMBER = "last number"
    WHOLE = "whole text"
    """The text is nothing but an answer."""


@dataclass(frozen=True, slots=True)
class Extracted:
    """An answer, and how it was found."""

    text: str
    evidence: Evidence


_THOUGHT = "</think>"
_BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?![a-zA-Z])\s*")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_BARE_WORD = re.compile(r"[^\s$,;]*")
_LINE_END = re.compile(r"\$|\n|\\\)|\\\]")
_HASHES = re.compile(r"^[ \t>*]*####[ \t]*([^\n]*)", re.MULTILINE)
_HEADING = re.compile(r"[A-Za-z]{2,}")
_PHRASE = re.compile(
    r"\b(?:answer|result|solution)\b[*_ \t]{0,4}(?:\([^()\n]{0,40}\)|to (?:the|this) (?:problem|question))?[*_ \t]{0,4}"
    r"(?::|=|\b(?:is|are|was|equals|would be|should be|must be|comes (?:out )?to)\b)"
    r"(?:[*_ \t:=]|\b(?:therefore|thus|hence|then|simply|just|equal to|given by)\b[, \t]?){0,12}",
    re.IGNORECASE,
)
_SPAN = re.compile(r"\$\$(.+?)\$\$|(?<![\\\d])\$((?:[^$\\\n]|\\.)+)\$(?!\d)|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_NUMBER = re.compile(
    r"(?<![\w.,/])[-+−]?(?:\\?[$€£]\s?[-−]?)?(?:\d{1,3}(?:,\d{3})+(?![\d,])(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
    r"(?:[eE][+-]?\d{1,3}(?!\w))?(?:\s?/\s?\d+(?![\d/]))?(?:\s?\\?%|\s(?:percent|per cent)\b)?",
    re.ASCII,
)
_SENTENCE = re.compile(r"(?<=[^\s\d])\.(?=\s+[A-Z(])|(?<=\d)\.(?=\s+[A-Z])|[!?](?=\s+[A-Z])|\n")
_DENIED = re.compile(r"(?:not|never|neither|no longer|unclear|unknown)\b", re.IGNORECASE)
_TAIL = 4000
"""How many characters of a text's end the weaker searches look at."""
_MAX_ANSWER = 2000
_CANDIDATES = 20
"""How many boxes or phrases are looked at from the end before a text counts as having none."""


def extract(text: str) -> Extracted | None:
    r"""The final answer of `text`; `None` where it gives none.

    >>> extract(r"So we get $\boxed{\frac{1}{2}}$.")
    Extracted(text='\\frac{1}{2}', evidence=<Evidence.BOXED: 'boxed'>)
    >>> extract("She sold 9 eggs at $2 each. The answer is $18.").text
    '$18'
    >>> extract("I do not know.") is None
    True
    """
    thought = text.rfind(_THOUGHT)
    if thought >= 0:
        text = text[thought + len(_THOUGHT) :]
    for search in (boxed, _hashes, _phrase, _whole, _formula, _last_number):
        found = search(text)
        if found is not None and len(found.text) <= _MAX_ANSWER and is_answer(found.text):
            return found
    return None


def boxed(text: str) -> Extracted | None:
    """The last box that holds something; of nested boxes the outermost."""
    if "box" not in text:
        return None
    boxes: list[tuple[int, int, Evidence]] = []
    index, ends = 0, _braces(text)
    while found := _BOX.search(text, index):
        index = found.end()
        if text[index : index + 1] != "{":
            boxes.append((index, _BARE_WORD.match(text, index).end(), Evidence.BOXED))  # type: ignore[union-attr]
        elif index in ends:
            boxes.append((index + 1, ends[index], Evidence.BOXED))
            index = ends[index] + 1
        else:
            boxes.append((index + 1, index + _MAX_ANSWER, Evidence.UNCLOSED_BOX))
    for start, end, evidence in boxes[: -_CANDIDATES - 1 : -1]:
        inner = text[start:end].strip()
        if evidence is Evidence.UNCLOSED_BOX:
            # Cut off, or one brace too few: the rest of the line is what there is.
            inner = _LINE_END.split(inner, maxsplit=1)[0].strip()
        if is_answer(inner):
            return Extracted(inner, evidence)
    return None


def _braces(text: str) -> dict[int, int]:
    """Where each brace that opens is closed. Escaped braces do not count."""
    opened, ends = [], {}
    for found in _BRACE.finditer(text):
        if found.group() == "{":
            opened.append(found.start())
        elif found.group() == "}" and opened:
            ends[opened.pop()] = found.start()
    return ends


def _hashes(text: str) -> Extracted | None:
    if "####" not in text:
        return None
    for line in reversed(_HASHES.findall(text)):
        answer = line.strip()
        # "#### Step 2" is a heading.
        if answer and not _HEADING.match(answer) and not answer.startswith("#"):
            return Extracted(answer, Evidence.HASHES)
    return None


def _phrase(text: str) -> Extracted | None:
    best = None
    lowered = text.lower()
    start = max(lowered.rfind("answer"), lowered.rfind("result"), lowered.rfind("solution"))
    if start < 0:
        return None
    # From the last mark backwards: a mark that nothing follows ("the answer is below.") does not count.
    for found in list(_PHRASE.finditer(text, max(0, start - 20_000)))[: -_CANDIDATES - 1 : -1]:
        rest = text[found.end() : found.end() + _MAX_ANSWER].lstrip()
        weak = not found.group().lower().lstrip().startswith("answer")
        best = _narrowed(rest)
        if best and (not weak or any(char.isdigit() for char in best)):
            return Extracted(best, Evidence.PHRASE)
    return None


def _narrowed(rest: str) -> str | None:
    """The answer at the head of what follows a phrase: its formula, or its sentence down to the number in it."""
    if _DENIED.match(rest):
        return None
    span = _SPAN.match(rest)
    if span:
        # $18 and $5 are money, $18$ is mathematics; "$x$ and $y$" is a list that ends with the sentence.
        sentence = _first_sentence(rest)
        after = sentence[span.end() :].strip(" .*")
        return sentence if after.startswith(("and", "or", ",")) and "$" in after else _inner(span)
    sentence = _first_sentence(rest)
    spans = list(_SPAN.finditer(sentence))
    if spans and re.match(r"[A-Za-z]", sentence):
        return _inner(spans[-1])
    if _HEADING.match(sentence) and (numbers := numbers_in(sentence)):
        return numbers[-1]
    return sentence.rstrip("!.*_` ").lstrip("*_` ") or None


def _first_sentence(text: str) -> str:
    return _SENTENCE.split(text, maxsplit=1)[0].strip()


def _inner(span: re.Match[str]) -> str:
    return next(group for group in span.groups() if group is not None).strip()


def _whole(text: str) -> Extracted | None:
    """A text that is nothing but an answer, such as `18` or `**x = 5**`."""
    plain = text.strip()
    if len(plain) > 200 or "\n" in plain or re.search(r"(?<!\\)[A-Za-z]{2,}", re.sub(r"\\[A-Za-z]+", "", plain)):
        return None
    return Extracted(plain, Evidence.WHOLE)


def _formula(text: str) -> Extracted | None:
    spans = list(_SPAN.finditer(text[-_TAIL:]))
    if not spans:
        return None
    tail = text[-_TAIL:][spans[-1].end() :]
    if numbers_in(tail):
        return None  # A number after the last formula is nearer to the end.
    return Extracted(_inner(spans[-1]), Evidence.FORMULA)


def _last_number(text: str) -> Extracted | None:
    numbers = numbers_in(text[-_TAIL:])
    return Extracted(numbers[-1], Evidence.NUMBER) if numbers else None


def numbers_in(text: str) -> list[str]:
    """The plain numbers in a text, as they are written."""
    return [found.group() for found in _NUMBER.finditer(text)]
