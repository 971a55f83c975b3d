"""Readings of a text: numbers in words and numerals as figures, and encoded texts decoded."""

from __future__ import annotations

import base64
import codecs
import re
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from urllib.parse import unquote

from palaestra.core.tables import load_table

_TABLE = load_table(__file__, "words")
_SMALL, _TENS = _TABLE["numbers"].split(), _TABLE["tens"].split()
_DIGIT_WORDS: list[str] = _SMALL[:10]
NUMBER_WORDS: dict[str, int] = {word: value for value, word in enumerate(_SMALL)}
NUMBER_WORDS |= {word: 10 * value for value, word in enumerate(_TENS, start=2)}
NUMBER_WORDS |= {tens + ones: NUMBER_WORDS[tens] + NUMBER_WORDS[ones] for tens in _TENS for ones in _DIGIT_WORDS[1:]}
SCALES: dict[str, int] = _TABLE["scales"]
_NUMERALS = frozenset((*NUMBER_WORDS, *SCALES))
HAS_NUMBER = re.compile(rf"\d|[^\x00-\x7f]|\b(?:{'|'.join(NUMBER_WORDS)}|{'|'.join(SCALES)})\b", re.IGNORECASE)
"""Matches texts that may contain a number."""
IMPLIED: dict[str, list[int]] = _TABLE["implied"]
"""Words that may stand for numbers. A text with such a word may contain these numbers, and need not."""
_RADIX = re.compile(r"0x[0-9a-f]+|0o[0-7]+|0b[01]+")
_MAX_TEXT = 20_000
"""Longer texts are read as they are; undoing disguises takes time."""
_SHORT = 400
"""Characters of a text in which a single capital may be a Roman numeral."""
_DIGIT = rf"\d|\b(?:{'|'.join(_DIGIT_WORDS)})\b"
_SPACED_DIGITS = re.compile(rf"(?:{_DIGIT})(?:[\s_]+(?:{_DIGIT}))+", re.IGNORECASE)
_ROMAN = re.compile(r"\b[IVXLCDM]+\b|\b[ivxlcdm]{2,}\b")
_ROMAN_NUMERAL = re.compile(r"M{0,3}(?:CM|CD|D?C{0,3})(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})")
_ROMAN_VALUES: dict[str, int] = _TABLE["roman"]
_BASE64 = re.compile(r"(?<![\w+/=-])[\w+/-]{8,}={0,2}(?![\w+/=-])", re.ASCII)
_HEX = re.compile(r"(?:\b|0x|\\x)[0-9a-f]{2}(?:(?:[\s:,]|\\x|0x)*[0-9a-f]{2}){5,}\b", re.IGNORECASE)
_WORD = re.compile(r"[^\W\d_]+")
_KNOWN = 0.5
"""Fraction of known words from which a text is not enciphered."""


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
            if word not in _DIGIT_WORDS:
                break
            digits += str(_DIGIT_WORDS.index(word))
    return digits


def _read_figures(tokens: Sequence[str], at: int) -> tuple[str, int]:
    word = tokens[at]
    if _RADIX.fullmatch(word):
        return str(int(word, 0)), 1
    scale = SCALES.get(tokens[at + 1], 0) if at + 1 < len(tokens) else 0
    if scale and len(word) <= 20:  # 3.5 million
        value = Fraction(word) * scale
        return (str(value.numerator) if value.denominator == 1 else str(float(value))), 2
    whole, point, rest = word.partition(".")
    rest = rest.rstrip("0")
    return (whole.lstrip("0") or "0") + (f".{rest}" if point and rest else ""), 1


def read_values(tokens: Sequence[str]) -> set[Fraction]:
    """The values of the numbers and fractions among words in figures. `18/19` is one value, and `-5` is negative.

    >>> sorted(read_values(["x", "=", "-", "5", "or", "1", "/", "2"]))
    [Fraction(-5, 1), Fraction(1, 2)]
    """
    values: set[Fraction] = set()
    at = 0
    while at < len(tokens):
        value = _read_value(tokens[at])
        if value is not None:
            negative = at > 0 and tokens[at - 1] == "-" and (at == 1 or not is_number(tokens[at - 2]))
            divisor = _read_value(tokens[at + 2]) if at + 2 < len(tokens) and tokens[at + 1] == "/" else None
            if divisor:
                value, at = value / divisor, at + 2
            values.add(-value if negative else value)
        at += 1
    return values


def _read_value(word: str) -> Fraction | None:
    try:
        return Fraction(word) if is_number(word) and len(word) <= 40 else None
    except ValueError:
        return None


def read_disguised(text: str, is_known: Callable[[str], bool], depth: int = 2) -> Iterator[str]:
    """The other readings of a text.

    Arguments:
        is_known: whether a word in lower case is a common one. A text without known words may be enciphered.
        depth: how many encodings inside one another are undone.
    """
    if len(text) > _MAX_TEXT:
        return
    if (joined := _SPACED_DIGITS.sub(_join_digits, text)) != text:
        yield joined
    numerals = {word for word in _ROMAN.findall(text) if _read_roman(word.upper())}
    if numerals - {"I"} and (len(text) < _SHORT or any(len(word) > 1 for word in numerals)):
        yield _ROMAN.sub(lambda word: str(_read_roman(word[0].upper()) or word[0]), text)
    if depth:
        for decoded in dict.fromkeys((*_decode(text), *_decipher(text, is_known))):
            if decoded != text:
                yield decoded
                yield from read_disguised(decoded, is_known, depth - 1)


def _join_digits(run: re.Match[str]) -> str:
    words = re.split(r"[\s_]+", run[0].lower())
    return "".join(str(_DIGIT_WORDS.index(word)) if word in _DIGIT_WORDS else word for word in words)


def _read_roman(word: str) -> int:
    """The value of a Roman numeral in capitals; 0 if the word is not one.

    >>> _read_roman("XII"), _read_roman("XIIII"), _read_roman("Tim")
    (12, 0, 0)
    """
    if not _ROMAN_NUMERAL.fullmatch(word):
        return 0
    values = [_ROMAN_VALUES[letter] for letter in word]
    return sum(-value if value < max(values[at:]) else value for at, value in enumerate(values))


def _decode(text: str) -> Iterator[str]:
    """The text with parts in base64, in hexadecimal bytes and in URL encoding replaced by what they encode."""
    yield _BASE64.sub(partial(_decode_part, _from_base64), text)
    yield _HEX.sub(partial(_decode_part, _from_hex), text)
    yield unquote(text)


def _decode_part(to_bytes: Callable[[str], bytes], part: re.Match[str]) -> str:
    """The decoded part; the part itself if its bytes are not readable text."""
    try:
        text = to_bytes(part[0]).decode("utf-8")
    except ValueError:
        return part[0]
    return f" {text} " if all(char.isprintable() or char.isspace() for char in text) else part[0]


def _from_base64(part: str) -> bytes:
    plain = part.rstrip("=").replace("-", "+").replace("_", "/")
    return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)


def _from_hex(part: str) -> bytes:
    return bytes.fromhex(re.sub(r"0x|\\x|[\s:,]", "", part))


def _decipher(text: str, is_known: Callable[[str], bool]) -> Iterator[str]:
    """The text backwards or in rot13, if that gives it the known words that it lacks."""
    if _WORD.search(text) and _measure_known(text, is_known) < _KNOWN:
        best = max((text[::-1], codecs.encode(text, "rot13")), key=lambda reading: _measure_known(reading, is_known))
        if _measure_known(best, is_known) >= _KNOWN:
            yield best


def _measure_known(text: str, is_known: Callable[[str], bool]) -> float:
    words = _WORD.findall(text.lower())[:200]
    return sum(map(is_known, words)) / max(1, len(words))
