r"""Extract the final answer from free text.

The search tries, in this order and from the end: "Final answer:" after the last box, a box, a line after `####`, the text
after "the answer is" or "Final answer:", the last formula, the last number. Boxes that are joined by commas, "and" or
"or" are one list. Text before `</think>` is ignored. Every search takes linear time.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from enum import StrEnum

from palaestra.tasks.math.equivalence.compare import is_answer


class Evidence(StrEnum):
    """Where an answer was found, from the most to the least certain."""

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
    """The text is an answer and nothing else."""


@dataclass(frozen=True, slots=True)
class ExtractedAnswer:
    """An answer, and where it was found."""

    text: str
    evidence: Evidence


Box = tuple[int, int, int, Evidence]
"""The start of the command, the start and end of the content, and whether the box is closed."""

_BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?![a-zA-Z])\s*")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_BARE_WORD = re.compile(r"[^\s$,;]{0,200}")
_LINE_END = re.compile(r"\$|\n|\\\)|\\\]")
_HASHES = re.compile(r"^[ \t>*]*####[ \t]*([^\n]*)", re.MULTILINE)
_HEADING = re.compile(r"[A-Za-z]{2,}")
_PHRASE = re.compile(
    r"\b(?:answer|result|solution)\b[*_ \t]{0,4}(?:\([^()\n]{0,40}\)|to (?:the|this) (?:problem|question))?[*_ \t]{0,4}"
    r"(?::|=|\b(?:is|are|was|equals|would be|should be|must be|comes (?:out )?to)\b)"
    r"(?:[*_ \t:=]|\b(?:therefore|thus|hence|then|simply|just|equal to|given by)\b[, \t]?){0,12}",
    re.IGNORECASE,
)
_FINAL = re.compile(r"\bfinal answer\b", re.IGNORECASE)
_SPAN = re.compile(r"\$\$(.+?)\$\$|(?<![\\\d])\$((?:[^$\\\n]|\\.)+)\$(?!\d)|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_NUMBER = re.compile(
    r"(?<![\w.,/])[-+−]?(?:\\?[$€£]\s?[-−]?)?(?:\d{1,3}(?:,\d{3})+(?![\d,])(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
    r"(?:[eE][+-]?\d{1,3}(?!\w))?(?:\s?/\s?\d+(?![\d/]))?(?:\s?\\?%|\s(?:percent|per cent|pct)\b)?",
    re.ASCII,
)
_PERCENT = re.compile(r"\s*(?:\$|\\\)|\\\])?\s*(?:\\?%|(?:percent|per cent|pct)\b)", re.IGNORECASE)
_PLAIN = re.compile(r"[-+]?[\d.,]*\d", re.ASCII)
_VERB = re.compile(r"\b(?:is|are|was|were|equals?|be)\b|=", re.IGNORECASE)
_NAME = re.compile(r"\\?[A-Za-z]+(?:_(?:\w|\{\w{1,9}\}))?'?")
_STATES = re.compile(r"\s*(?:=|:|\b(?:is|are|was|equals?|must be|would be)\b)\s*", re.IGNORECASE)
_SEPARATOR = re.compile(r"\s*(?:,|,?\s*\b(?:and|or)\b)\s*", re.IGNORECASE)
# The text between two boxes of a list: layout, and words that end with "and".
_LAYOUT = re.compile(r"\\(?:text|mathrm|textbf)\s*\{|\\(?:q?quad|[,;! ()\[\]])|[\s${}]+")
_ASSIGNING = re.compile(r"[A-Za-z](?:_\w+|\([a-z]\))?\s*=\s*$")
_JOINING = re.compile(r"[,;&+]*|(?:[\w(),;]+ ){0,6}(?:and|or)", re.IGNORECASE)
_OR = re.compile(r"\bor\b", re.IGNORECASE)
_CORRECTING = re.compile(r"\b(?:not?|but|wait|wrong|actually|instead|so|then|thus|hence|therefore)\b", re.IGNORECASE)
_NO_WORDS = re.compile(r"\\[A-Za-z]+|(?<![A-Za-z])(?:and|or)(?![a-z])")
_MAX_GAP = 80
"""Boxes further apart than this many characters are not joined."""
_MAX_BOXES = 40
"""Maximum number of boxes in a list."""
_SENTENCE = re.compile(r"(?<=[^\s\d])\.(?=\s+[A-Z(])|(?<=\d)\.(?=\s+[A-Z])|[!?](?=\s+[A-Z])|\n")
_DENIED = re.compile(r"(?:not|never|neither|no longer|unclear|unknown)\b", re.IGNORECASE)
_NOT = re.compile(r"\b(?:not|n't|never)(?: be| equal to)?\s\$?\Z", re.IGNORECASE)
_MAX_TEXT = 200_000
"""Maximum number of characters that are searched, at the end of the text."""
_TAIL = 4000
"""The same limit for the less certain searches."""
_MAX_ANSWER = 2000
_MAX_CANDIDATES = 20
"""Maximum number of boxes or phrases that are tried, from the end."""


def extract_worked(text: str) -> ExtractedAnswer | None:
    r"""The final answer of `text`; `None` if there is none.

    >>> extract_worked(r"So we get $\boxed{\frac{1}{2}}$.")
    ExtractedAnswer(text='\\frac{1}{2}', evidence=<Evidence.BOXED: 'boxed'>)
    >>> extract_worked("She sold 9 eggs at $2 each. The answer is $18.").text
    '$18'
    >>> extract_worked("I do not know.") is None
    True
    """
    text = text[-_MAX_TEXT:]
    text = text.rpartition("</think>")[2]
    for search in (_final, _find_boxed_percent, _hashes, _phrase, _whole, _formula, _last_number):
        answer = search(text)
        if answer is not None and len(answer.text) <= _MAX_ANSWER and is_answer(answer.text):
            return answer
    return None


def find_boxed(text: str) -> ExtractedAnswer | None:
    """The last box that is not empty, with the boxes that are joined to it. Of nested boxes the outermost counts."""
    return _last_box(text)[0]


def _find_boxed_percent(text: str) -> ExtractedAnswer | None:
    """As `find_boxed`, with the percent sign that follows a number in a box."""
    answer, end = _last_box(text)
    if answer and _PERCENT.match(text, end) and _PLAIN.fullmatch(answer.text):
        return ExtractedAnswer(answer.text + r"\%", answer.evidence)
    return answer


def _last_box(text: str) -> tuple[ExtractedAnswer | None, int]:
    """The answer in the last box, and where the box ends."""
    boxes = _boxes(text)
    for last in range(len(boxes) - 1, max(-1, len(boxes) - 1 - _MAX_CANDIDATES), -1):
        _, start, end, evidence = boxes[last]
        inner = text[start:end].strip()
        if evidence is Evidence.UNCLOSED_BOX:
            # Truncated, or a brace is missing: take the rest of the line.
            inner = _LINE_END.split(inner, maxsplit=1)[0].strip()
        if is_answer(inner):
            return ExtractedAnswer(_join_boxes(text, boxes, last, inner), evidence), end + 1
    return None, 0


def _join_boxes(text: str, boxes: list[Box], last: int, answer: str) -> str:
    """The answers of box `last` and of the boxes before it that belong to the same list."""
    answers, separator = [answer], ", "
    for index in range(last - 1, max(-1, last - _MAX_BOXES), -1):
        _, start, end, _ = boxes[index]
        between = text[end + 1 : boxes[index + 1][0]]
        if not _joins(between) or not is_answer(text[start:end]):
            break
        answers.append(text[start:end].strip())
        if _OR.search(between):
            separator = " or "
    return separator.join(dict.fromkeys(reversed(answers)))


def _boxes(text: str) -> list[Box]:
    """Every box of a text; of nested ones the outermost."""
    if "box" not in text:
        return []
    boxes: list[Box] = []
    index, ends = 0, _braces(text)
    while match := _BOX.search(text, index):
        index = match.end()
        if text[index : index + 1] != "{":
            end = _BARE_WORD.match(text, index).end()  # type: ignore[union-attr]
            boxes.append((match.start(), index, end, Evidence.BOXED))
        elif index in ends:
            boxes.append((match.start(), index + 1, ends[index], Evidence.BOXED))
            index = ends[index] + 1
        else:
            boxes.append((match.start(), index + 1, index + _MAX_ANSWER, Evidence.UNCLOSED_BOX))
    return boxes


def _joins(between: str) -> bool:
    """Whether the text between two boxes joins them into a list."""
    if len(between) > _MAX_GAP:
        return False
    words = _ASSIGNING.sub("", " ".join(_LAYOUT.sub(" ", between).rstrip("\\").split())).strip()
    if not words:
        return "\n" not in between
    return bool(_JOINING.fullmatch(words)) and not _CORRECTING.search(words)


def _final(text: str) -> ExtractedAnswer | None:
    """The answer after a "Final answer" that follows the last box."""
    if ("inal" not in text and "INAL" not in text) or not (boxes := _boxes(text)):
        return None
    match = _FINAL.search(text, boxes[-1][2])
    if match is None:
        return None
    stated = _phrase(text[match.start() :])
    return stated if stated and any(char.isdigit() for char in stated.text) else None


def _braces(text: str) -> dict[int, int]:
    """Where each brace that opens is closed. Escaped braces do not count."""
    opened, ends = [], {}
    for match in _BRACE.finditer(text):
        if match.group() == "{":
            opened.append(match.start())
        elif match.group() == "}" and opened:
            ends[opened.pop()] = match.start()
    return ends


def _hashes(text: str) -> ExtractedAnswer | None:
    if "####" not in text:
        return None
    for line in reversed(_HASHES.findall(text)):
        answer = line.strip()
        # "#### Step 2" is a heading.
        if answer and not _HEADING.match(answer) and not answer.startswith("#"):
            return ExtractedAnswer(answer, Evidence.HASHES)
    return None


def _phrase(text: str) -> ExtractedAnswer | None:
    lowered = text.lower()
    start = max(lowered.rfind("answer"), lowered.rfind("result"), lowered.rfind("solution"))
    if start < 0:
        return None
    # Backwards from the last mark. A mark without an answer ("the answer is below.") is skipped.
    for match in list(_PHRASE.finditer(text, max(0, start - 20_000)))[: -_MAX_CANDIDATES - 1 : -1]:
        rest = text[match.end() : match.end() + _MAX_ANSWER].lstrip()
        weak = not match.group().lower().lstrip().startswith("answer")
        best = _narrow(rest)
        if best and (not weak or any(char.isdigit() for char in best)):
            return ExtractedAnswer(best, Evidence.PHRASE)
    return None


def _narrow(rest: str) -> str | None:
    """The answer at the start of the text after a phrase: its formula, or its sentence reduced to the number in it."""
    if _DENIED.match(rest):
        return None
    span = _SPAN.match(rest)
    if span:
        # $18 and $5 are money, $18$ is mathematics; "$x$ and $y$" is a list that ends with the sentence.
        sentence = _first_sentence(rest)
        after = sentence[span.end() :]
        if _NAME.fullmatch(_inner(span)) and (states := _STATES.match(after)):  # "$n$ is 34"
            return _narrow(after[states.end() :])
        after = after.strip(" .*")
        return sentence if after.startswith(("and", "or", ",")) and "$" in after else _inner(span)
    sentence = _first_sentence(rest)
    if re.match(r"[A-Za-z]", sentence) and (stated := _find_stated(sentence)):
        return stated
    return sentence.rstrip("!.*_` ").lstrip("*_` ") or None


def _find_stated(sentence: str) -> str | None:
    """The formulas or numbers in a sentence: those after its last verb if they are a list, else the last one.

    A variable such as $n$ only counts if there is nothing else.
    """
    spans = [(span.start(), span.end(), _inner(span)) for span in _SPAN.finditer(sentence)]

    def is_outside(index: int) -> bool:
        return not any(start <= index < end for start, end, _ in spans)

    numbers = _NUMBER.finditer(sentence) if _HEADING.match(sentence) else ()
    places = sorted([*spans, *((n.start(), n.end(), n[0]) for n in numbers if is_outside(n.start()))])
    places = [place for place in places if not place[2].isalpha()] or places
    verb = max((verb.end() for verb in _VERB.finditer(sentence) if is_outside(verb.start())), default=0)
    stated = sentence[verb:].strip(" .*_`")
    if stated[:1] in ("(", "[", "{") and not re.search(r"[A-Za-z]{2,}|\$", _NO_WORDS.sub("", stated)):
        return stated  # "The point $P$ is (3, 4)."
    places = [place for place in places if place[0] >= verb] or places
    if not places:
        return None
    gaps = [sentence[first[1] : second[0]] for first, second in itertools.pairwise(places)]
    if gaps and not sentence[verb : places[0][0]].strip() and all(map(_SEPARATOR.fullmatch, gaps)):
        return sentence[places[0][0] : places[-1][1]]
    return places[-1][2]


def _first_sentence(text: str) -> str:
    return _SENTENCE.split(text, maxsplit=1)[0].strip()


def _inner(span: re.Match[str]) -> str:
    """The formula of a span, with the percent sign that follows it."""
    formula = next(group for group in span.groups() if group is not None).strip()
    percent = _PERCENT.match(span.string, span.end()) if _PLAIN.fullmatch(formula) else None
    return formula + r"\%" if percent else formula


def _whole(text: str) -> ExtractedAnswer | None:
    """A text that is only an answer, such as `18` or `**x = 5**`."""
    plain = text.strip()
    if len(plain) > 200 or "\n" in plain or re.search(r"[A-Za-z]{2,}", _NO_WORDS.sub("", plain)):
        return None
    return ExtractedAnswer(plain, Evidence.WHOLE)


def _formula(text: str) -> ExtractedAnswer | None:
    spans = list(_SPAN.finditer(text[-_TAIL:]))
    if not spans:
        return None
    tail = text[-_TAIL:][spans[-1].end() :]
    if numbers_in(tail):
        return None  # A number after the last formula is nearer to the end.
    return ExtractedAnswer(_inner(spans[-1]), Evidence.FORMULA)


def _last_number(text: str) -> ExtractedAnswer | None:
    tail = text[-_TAIL:]
    numbers = [
        match.group()
        for match in _NUMBER.finditer(tail)
        if not _NOT.search(tail, max(0, match.start() - 16), match.start())
    ]
    return ExtractedAnswer(numbers[-1], Evidence.NUMBER) if numbers else None


def numbers_in(text: str) -> list[str]:
    """The plain numbers in a text, as they are written."""
    return [match.group() for match in _NUMBER.finditer(text)]
