"""Numbers in texts: figures of any script, number words, Roman, hexadecimal, octal and binary numerals."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
DIGIT_WORDS = _SMALL.split()[:10]
NUMBER_WORDS = {word: value for value, word in enumerate(_SMALL.split())}
NUMBER_WORDS |= {word: 10 * value for value, word in enumerate(_TENS.split(), start=2)}
NUMBER_WORDS |= {
    tens + ones: NUMBER_WORDS[tens] + NUMBER_WORDS[ones] for tens in _TENS.split() for ones in DIGIT_WORDS[1:]
}
SCALES = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_NUMERALS = frozenset((*NUMBER_WORDS, *SCALES))
HAS_NUMBER = re.compile(rf"\d|[^\x00-\x7f]|\b(?:{'|'.join(NUMBER_WORDS)}|{'|'.join(SCALES)})\b", re.IGNORECASE)
"""Matches texts that may contain a number."""
IMPLIED = {
    "one": (1,), "single": (1,), "once": (1,), "half": (1, 2), "halves": (2,), "third": (1, 3), "thirds": (3,),
    "quarter": (1, 4), "quarters": (4,), "fourth": (1, 4), "fifth": (1, 5), "tenth": (1, 10), "double": (2,),
    "twice": (2,), "pair": (2,), "couple": (2,), "both": (2,), "triple": (3,), "thrice": (3,), "dozen": (12,),
    "week": (7,), "weekly": (7,), "percent": (100,), "hour": (60,), "day": (24,), "year": (12, 365),
}  # fmt: skip
"""Words that may stand for numbers. A text with such a word may contain these numbers, and need not."""
_RADIX = re.compile(r"0[xob][0-9a-f]+")
_ROMAN = re.compile(r"M{0,3}(?:CM|CD|D?C{0,3})(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})")
_ROMAN_VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}
_CHINESE = {character: value for value, character in enumerate("零一二三四五六七八九")} | {"〇": 0, "两": 2, "兩": 2}
_CHINESE_SCALES = {"十": 10, "百": 100, "千": 1000, "万": 10**4, "萬": 10**4}


def is_number(word: str) -> bool:
    return word[0].isdigit()


def to_figures(tokens: Sequence[str]) -> list[str]:
    """Write the numbers among words as decimal figures, without redundant zeros.

    >>> to_figures(["twenty", "-", "five", "three", "hundred", "and", "six", "12.50", "05", "0xc"])
    ['25', '306', '12.5', '5', '12']
    """
    out: list[str] = []
    at = 0
    while at < len(tokens):
        word = tokens[at]
        size = 0
        if word in _NUMERALS:
            number, size = read_number_words(tokens, at)
            decimals = _read_decimals(tokens, at + size)
            if size == 1 and word == "one" and not decimals:  # "one" alone is rarely a number.
                size = 0
            value, size = (f"{number}.{decimals}", size + 1 + len(decimals)) if decimals else (str(number), size)
        elif word[0].isdigit():
            value, size = _read_figures(tokens, at)
        elif word in _CHINESE or word in _CHINESE_SCALES:
            value, size = _read_chinese(tokens, at)
        out.append(value if size else word)
        at += size or 1
    return out


def read_number_words(tokens: Sequence[str], start: int) -> tuple[int, int]:
    """The value of the number in words at `start`, and its length in words."""
    total = current = size = 0
    last = ""
    for at in range(start, len(tokens)):
        word, value = tokens[at], NUMBER_WORDS.get(tokens[at])
        if value is not None and (last in ("", "times") or (last == "tens" and 0 < value < 10)):
            current += value
            last = "tens" if value >= 20 and value % 10 == 0 else "units"
        elif word == "hundred" and last in ("", "units", "tens"):
            current, last = (current or 1) * 100, "times"
        elif word in SCALES and word != "hundred" and (current or not last):
            total, current, last = total + (current or 1) * SCALES[word], 0, "times"
        elif (word == "-" and last == "tens") or (word == "and" and last == "times"):
            continue  # Part of the number if more of it follows.
        else:
            break
        size = at - start + 1
    return total + current, size


def _read_decimals(tokens: Sequence[str], at: int) -> str:
    """The digits after the word "point" at `at`."""
    digits = ""
    if tokens[at : at + 1] == ["point"]:
        for word in tokens[at + 1 :]:
            if word not in DIGIT_WORDS:
                break
            digits += str(DIGIT_WORDS.index(word))
    return digits


def _read_figures(tokens: Sequence[str], at: int) -> tuple[str, int]:
    word = tokens[at]
    if _RADIX.fullmatch(word):
        try:
            return str(int(word, 0)), 1
        except ValueError:
            return word, 1
    scale = SCALES.get(tokens[at + 1], 0) if at + 1 < len(tokens) else 0
    if scale and len(word) <= 20:  # 3.5 million
        value = Fraction(word) * scale
        return (str(value.numerator) if value.denominator == 1 else str(float(value))), 2
    whole, point, rest = word.partition(".")
    rest = rest.rstrip("0")
    return (whole.lstrip("0") or "0") + (f".{rest}" if point and rest else ""), 1


def _read_chinese(tokens: Sequence[str], start: int) -> tuple[str, int]:
    total = current = size = 0
    for word in tokens[start:]:
        if word in _CHINESE:
            current = current * 10 + _CHINESE[word]
        elif word in _CHINESE_SCALES:
            total, current = total + (current or 1) * _CHINESE_SCALES[word], 0
        else:
            break
        size += 1
    return str(total + current), size


def read_roman(word: str) -> int:
    """The value of a Roman numeral in capitals; 0 if the word is not one.

    >>> read_roman("XII"), read_roman("XIIII"), read_roman("Tim")
    (12, 0, 0)
    """
    if not word or not _ROMAN.fullmatch(word):
        return 0
    values = [_ROMAN_VALUES[letter] for letter in word]
    return sum(-value if value < max(values[at:]) else value for at, value in enumerate(values))


def read_values(tokens: Sequence[str]) -> set[Fraction]:
    """The values of the numbers and fractions among words in figures. `18/19` is one value, and `-5` is negative.

    >>> sorted(read_values(["x", "=", "-", "5", "or", "1", "/", "2"]))
    [Fraction(-5, 1), Fraction(1, 2)]
    """
    values: set[Fraction] = set()
    at = 0
    while at < len(tokens):
        if is_number(tokens[at]) and len(tokens[at]) <= 40:
            try:
                value, start = Fraction(tokens[at]), at
                if at + 2 < len(tokens) and tokens[at + 1] == "/" and is_number(tokens[at + 2]):
                    divisor = Fraction(tokens[at + 2])
                    value, at = (value / divisor, at + 2) if divisor else (value, at)
            except ValueError:
                at += 1
                continue
            negative = start > 0 and tokens[start - 1] == "-" and (start == 1 or not is_number(tokens[start - 2]))
            values.add(-value if negative else value)
        at += 1
    return values
