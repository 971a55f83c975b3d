"""Other readings of a text: spaced digits, Roman numerals, encodings and simple ciphers.

A reading is a text in which one disguise is undone. Most texts have none. A wrong reading does no harm: it is compared with
held-out problems like any other text, and resembles none.
"""

from __future__ import annotations

import base64
import binascii
import re
import string
from collections.abc import Callable, Iterator
from urllib.parse import unquote

from palaestra.tasks.numerals import DIGIT_WORDS, read_roman

MAX_TEXT = 20_000
"""Longer texts are read as they are; undoing disguises takes time."""
SHORT = 400
"""Characters of a text in which a single capital may be a Roman numeral."""
_DIGIT = rf"(?:\d|\b(?:{'|'.join(DIGIT_WORDS)})\b)"
_SPACED_DIGITS = re.compile(rf"{_DIGIT}[\s_]+(?={_DIGIT})", re.IGNORECASE)
_DIGIT_WORD = re.compile(rf"\b(?:{'|'.join(DIGIT_WORDS)})\b", re.IGNORECASE)
_SPACED_LETTERS = re.compile(r"(?<!\w)[^\W\d_](?:[ .·_-][^\W\d_])+(?!\w)")
_ROMAN = re.compile(r"\b[IVXLCDM]+\b|\b[ivxlcdm]{2,}\b")
_LETTERS_AS_DIGITS = re.compile(r"(?<![^\W_])(?=[OolI\d]*\d)(?=\d*[OolI])[OolI\d]+(?![^\W_])")
_BASE64 = re.compile(r"(?<![\w+/=-])[\w+/-]{8,}={0,2}(?![\w+/=-])", re.ASCII)
_HEX = re.compile(r"(?:\b|0x|\\x)[0-9a-f]{2}(?:(?:[\s:,]|\\x|0x)*[0-9a-f]{2}){5,}\b", re.IGNORECASE)
_BITS = re.compile(r"\b[01]{7,8}(?:[\s,]+[01]{7,8}){5,}\b")
_CODES = re.compile(r"\b\d{2,3}(?:[\s,]+\d{2,3}){7,}\b")
_PERCENT = re.compile(r"%[0-9a-f]{2}", re.IGNORECASE)
_WORD = re.compile(r"[^\W\d_]+")
KNOWN = 0.5
"""Fraction of known words from which a text is not enciphered."""


def read_disguised(text: str, is_known: Callable[[str], bool], depth: int = 2) -> Iterator[str]:
    """The other readings of a text.

    Arguments:
        is_known: whether a word in lower case is a common one. A text without known words may be enciphered.
        depth: how many encodings inside one another are undone.
    """
    if len(text) > MAX_TEXT:
        return
    plain = dict.fromkeys(_read_figures(text))
    yield from plain
    if depth:
        for decoded in dict.fromkeys((*_decode(text), *_decipher(text, is_known))):
            if decoded != text:
                yield decoded
                yield from read_disguised(decoded, is_known, depth - 1)


def _read_figures(text: str) -> Iterator[str]:
    """Readings with spaced digits joined, Roman numerals as figures, and letters that stand for digits replaced."""
    joined = text
    if _SPACED_LETTERS.search(text):
        joined = _SPACED_LETTERS.sub(lambda run: re.sub(r"(?<=\S)[ .·_-](?=\S)", "", run[0]), text)
    if _SPACED_DIGITS.search(joined):
        joined = _SPACED_DIGITS.sub(
            lambda digit: _DIGIT_WORD.sub(_to_digit, digit[0]).rstrip(" \t\n\r_\u00a0\u2009\u202f"), joined
        )
        joined = re.sub(
            rf"(?<=\d)(?:{'|'.join(DIGIT_WORDS)})\b", _to_digit, joined, flags=re.IGNORECASE
        )  # The last of a run.
    if joined != text:
        yield joined
    numerals = {word for word in _ROMAN.findall(text) if read_roman(word.upper())}
    if numerals - {"I"} and (len(text) < SHORT or any(len(word) > 1 for word in numerals)):
        yield _ROMAN.sub(lambda word: str(read_roman(word[0].upper()) or word[0]), text)
    if _LETTERS_AS_DIGITS.search(text):
        yield _LETTERS_AS_DIGITS.sub(lambda word: word[0].translate(_DIGITS), text)


_DIGITS = str.maketrans("OolI", "0011")


def _to_digit(word: re.Match[str]) -> str:
    return str(DIGIT_WORDS.index(word[0].lower()))


def _decode(text: str) -> Iterator[str]:
    """The text with encoded parts replaced by what they encode."""
    for pattern, decode in (
        (_BASE64, _from_base64), (_BASE64, _from_base32), (_HEX, _from_hex), (_BITS, _from_bits), (_CODES, _from_codes),
    ):  # fmt: skip
        if pattern.search(text):
            yield pattern.sub(lambda part, decode=decode: decode(part[0]) or part[0], text)  # type: ignore[misc]
    if _PERCENT.search(text):
        yield unquote(text)


def _from_base64(part: str) -> str:
    padded = part.rstrip("=").translate(str.maketrans("-_", "+/"))
    return _to_text(lambda: base64.b64decode(padded + "=" * (-len(padded) % 4), validate=True))


def _from_base32(part: str) -> str:
    return _to_text(lambda: base64.b32decode(part.rstrip("=") + "=" * (-len(part.rstrip("=")) % 8), casefold=True))


def _from_hex(part: str) -> str:
    return _to_text(lambda: bytes.fromhex(re.sub(r"0x|\\x|[\s:,]", "", part)))


def _from_bits(part: str) -> str:
    return _to_text(lambda: bytes(int(bits, 2) for bits in re.split(r"[\s,]+", part)))


def _from_codes(part: str) -> str:
    return _to_text(lambda: bytes(int(code) for code in re.split(r"[\s,]+", part)))


def _to_text(decode: Callable[[], bytes]) -> str:
    """The decoded text; empty if the bytes are not readable text."""
    try:
        text = decode().decode("utf-8")
    except (ValueError, binascii.Error):
        return ""
    return f" {text} " if all(character.isprintable() or character.isspace() for character in text) else ""


def _decipher(text: str, is_known: Callable[[str], bool]) -> Iterator[str]:
    """The text after the rotation, mirroring or reversal that gives it the most known words, if it has few of its own."""
    if not _WORD.search(text) or _measure_known(text, is_known) >= KNOWN:
        return
    best = max(
        (text[::-1], text.translate(_ATBASH), *(text.translate(table) for table in _ROTATIONS)),
        key=lambda reading: _measure_known(reading, is_known),
    )
    if _measure_known(best, is_known) >= KNOWN:
        yield best


def _measure_known(text: str, is_known: Callable[[str], bool]) -> float:
    words = _WORD.findall(text.lower())[:200]
    return sum(map(is_known, words)) / max(1, len(words))


def _rotate(places: int) -> dict[int, int]:
    lower, upper = string.ascii_lowercase, string.ascii_uppercase
    return str.maketrans(lower + upper, lower[places:] + lower[:places] + upper[places:] + upper[:places])


_ROTATIONS = [_rotate(places) for places in range(1, 26)]
_ATBASH = str.maketrans(string.ascii_letters, string.ascii_lowercase[::-1] + string.ascii_uppercase[::-1])
