"""The words of a short answer: numbers in digits, one spelling, and which words are denied.

A word is denied where it lies in the scope of a negation: "not red", "isn't a circle", "blue rather than red". The scope
ends with the clause, at "but", or at "and" where a new subject follows.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_TOKEN = re.compile(
    r"(?P<number>-?\d+(?:\.\d+)?)(?P<ordinal>(?:st|nd|rd|th)(?![^\W_]))?|[^\W_]+(?:'[^\W_]+)?|[.,;:!?()\n\u2013\u2014]"
)
_DECIMAL = re.compile(r"(?P<sign>-?)(?P<whole>[0-9]+)(?:\.(?P<part>[0-9]+))?")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
ARTICLES = frozenset({"a", "an", "the"})
_ONES: Mapping[str, int] = {
    word: value
    for value, word in enumerate((
        "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
        "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
    ))
}  # fmt: skip
_TENS: Mapping[str, int] = {
    word: 10 * value
    for value, word in enumerate(
        ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"), 2
    )
} | {"fourty": 40}  # fmt: skip
_SCALES: Mapping[str, int] = {"thousand": 10**3, "million": 10**6, "billion": 10**9}
_ORDINALS: Mapping[str, int] = {
    word: value
    for value, word in enumerate((
        "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh", "twelfth",
        "thirteenth", "fourteenth", "fifteenth", "sixteenth", "seventeenth", "eighteenth", "nineteenth",
    ), 1)
} | {word[:-1] + "ieth": value for word, value in _TENS.items()}  # fmt: skip
_NUMBER_STARTS = frozenset({*_ONES, *_TENS, *_SCALES, "hundred", "dozen", "half"})
_SPELLINGS: Mapping[str, str] = {
    "color": "colour", "gray": "grey", "yeah": "yes", "yep": "yes", "nope": "no", "true": "yes", "false": "no",
    "correct": "yes", "incorrect": "no", "untrue": "no", "none": "0",
}  # fmt: skip

MARKS = frozenset(".,;:!?()\n\u2013\u2014")
_SENTENCE_ENDS = frozenset(".!?;\n")
_DENIALS = frozenset({
    "not", "never", "no", "neither", "nor", "non", "without", "except", "excluding", "unlike", "cannot", "isnt", "arent",
    "wasnt", "werent", "doesnt", "dont", "didnt", "cant", "wont", "aint", "hasnt", "havent", "couldnt", "wouldnt", "shouldnt",
})  # fmt: skip
_DENIAL_PAIRS = frozenset({
    ("rather", "than"), ("other", "than"), ("instead", "of"), ("opposed", "to"), ("opposite", "of"), ("far", "from"),
    ("apart", "from"), ("aside", "from"), ("anything", "but"),
})  # fmt: skip
_TURNS = frozenset({
    "but", "however", "instead", "rather", "because", "since", "so", "although", "though", "while", "whereas", "yet",
    "actually", "therefore", "hence",
})  # fmt: skip
_SUBJECTS = frozenset({
    "it", "it's", "they", "they're", "this", "that", "that's", "these", "those", "there", "there's", "he", "she", "we",
    "i", "is", "are",
})  # fmt: skip
_IDIOMS = (
    (re.compile(r"\bno longer\b", re.IGNORECASE), "not"),
    (re.compile(r"\b(?:no|without(?: an?| any)?) (?:doubt|question)\b", re.IGNORECASE), " "),
    (re.compile(r"\bnot (only|just|merely|simply)\b", re.IGNORECASE), r"\1"),
    (re.compile(r"\b(?:nothing|none|no) (?:but|other than)\b", re.IGNORECASE), " "),
    (re.compile(r"\b(?:yes|true)\s*(?:or|and|/)\s*(?:no|false)\b", re.IGNORECASE), " "),
)
"""Phrases that hold the words of a negation or of an answer and are neither, and "no longer", which is a "not"."""


@dataclass(frozen=True, slots=True)
class Word:
    """A word or a punctuation mark of an answer.

    Arguments:
        text: in normal form.
        raw: as it was written.
        denied: it lies in the scope of a negation.
    """

    text: str
    raw: str
    denied: bool = False


def read_words(text: str) -> list[str]:
    """The words in normal form, without punctuation and articles (unless there is nothing else)."""
    return [word.text for word in _read(text) if word.text not in MARKS]


def statement_words(text: str, *, keep_articles: bool = False) -> list[Word]:
    """The words and punctuation marks of what `text` states, without its questions; a word knows if it is denied."""
    for pattern, replacement in _IDIOMS:
        text = pattern.sub(replacement, text)
    kept: list[Word] = []
    sentence: list[Word] = []
    for word in _read(text, find_denied=True, keep_articles=keep_articles):
        sentence.append(word)
        if word.text in _SENTENCE_ENDS:
            kept += sentence if word.text != "?" else ()
            sentence = []
    return kept + sentence


def _read(text: str, *, find_denied: bool = False, keep_articles: bool = False) -> list[Word]:
    text = _THOUSANDS.sub("", unicodedata.normalize("NFKC", text).replace("’", "'"))
    tokens = [match.group() for match in _TOKEN.finditer(text)]
    lower = [token.lower() for token in tokens]
    denied = _find_denied(lower) if find_denied else [False] * len(lower)
    kept = [k for k, token in enumerate(lower) if token not in ARTICLES]
    if keep_articles or all(lower[k] in MARKS for k in kept):
        kept = list(range(len(tokens)))
    words, place = [], 0
    while place < len(kept):
        first = kept[place]
        token, length = lower[first], 1
        if token in _NUMBER_STARTS or token[0].isdigit():
            number, length = _parse_number([lower[k] for k in kept[place : place + 16]])
            token = number or token
        words.append(Word(_plain_number(_SPELLINGS.get(token, token)), tokens[first], denied[first]))
        place += max(length, 1)
    return words


def _find_denied(tokens: Sequence[str]) -> list[bool]:
    """Which tokens lie in the scope of a negation."""
    denied, active, commas = [], False, 0  # `commas`: how many do not end the scope.
    for place, token in enumerate(tokens):
        before = tokens[place - 1] if place else ""
        after = tokens[place + 1] if place + 1 < len(tokens) else ""
        inside = active
        if (before, token) in _DENIAL_PAIRS or token in _DENIALS or token.endswith("n't"):
            active = True
            # "It is not, I think, red": what stands between the commas does not end the scope. "No, it is red" does.
            commas = 2 if after == "," and token != "no" else 0
        elif token == "," and commas:
            commas -= 1
        elif token in MARKS or token in _TURNS or (token == "and" and after in _SUBJECTS):
            active = inside = False
        denied.append(inside)
    return denied


def _plain_number(word: str) -> str:
    # 3.0 is 3, and 007 is 7, however many digits there are; a word stays a word.
    match = _DECIMAL.fullmatch(word) if word[0] in "-0123456789" else None
    if match is None:
        return word
    whole, part = match["whole"].lstrip("0") or "0", (match["part"] or "").rstrip("0")
    number = f"{whole}.{part}" if part else whole
    return number if number == "0" else f"{match['sign']}{number}"


def _parse_number(tokens: Sequence[str]) -> tuple[str, int]:
    """The number that `tokens` begin with in words, and how many of them it takes; `("", 0)` if there is none.

    An ordinal is no number: "twenty-fifth" becomes `25th`. A single ordinal ("second") stays a word.

    >>> _parse_number(["one", "hundred", "and", "five", "cats"]), _parse_number(["two", "three"])
    (('105', 4), ('2', 1))
    >>> _parse_number(["twenty", "fifth"]), _parse_number(["2", "million"]), _parse_number(["2", "cats"])
    (('25th', 2), ('2000000', 2), ('', 0))
    """
    if tokens[:2] == ["half", "dozen"]:
        return "6", 2
    total, group, place = 0, 0, 0
    # What is added to the group must be below `room`; the next scale word must be below `scale`.
    room, scale = 1000, 10**12
    if tokens[0].isascii() and tokens[0].isdecimal() and len(tokens[0]) <= 12 and tokens[1:2]:
        if tokens[1] not in _SCALES and tokens[1] not in ("hundred", "dozen"):
            return "", 0
        group, place, room = int(tokens[0]), 1, 0
    while place < len(tokens):
        token = tokens[place]
        if token == "and" and place and room >= 100 and _is_small(tokens[place + 1 : place + 2]):
            place += 1
            token = tokens[place]
        if (value := _ONES.get(token, _TENS.get(token))) is not None and value < room and (value or not place):
            group, room = group + value, 10 if token in _TENS else 0
        elif (value := _ORDINALS.get(token)) is not None and value < room:
            return (f"{total + group + value}th", place + 1) if place else ("", 0)
        elif token == "hundred" and group < 100 and (room < 100 or not place):
            group, room = 100 * (group or 1), 100
        elif token == "dozen" and not total and room != 100:
            group, room, scale = 12 * (group or 1), 0, 0
        elif (value := _SCALES.get(token, 0)) and value < scale:
            total, group, room, scale = total + value * (group or 1), 0, 1000, value
        else:
            break
        place += 1
    if place and tokens[place : place + 1] == ["point"]:
        digits = _digits(tokens[place + 1 :])
        if digits:
            return _plain_number(f"{total + group}.{digits}"), place + 1 + len(digits)
    return (str(total + group), place) if place else ("", 0)


def _is_small(tokens: Sequence[str]) -> bool:
    return any(token in words for token in tokens for words in (_ONES, _TENS, _ORDINALS))


def _digits(tokens: Sequence[str]) -> str:
    """The digits that stand at the start as words: "two", "five" is `25`."""
    digits = ""
    for token in tokens:
        if _ONES.get(token, 10) > 9:
            break
        digits += str(_ONES[token])
    return digits
