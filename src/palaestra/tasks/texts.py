"""Normalised words and hashed n-grams of texts, for NumPy.

Normalisation: Unicode compatibility decomposition, lower case, no accents and no invisible characters, Latin letters in
place of lookalikes, no markup (Markdown, HTML, JSON escapes) and no punctuation. Numbers and the signs of calculations
and calls (`+`, `-`, `(`, `=`) are words.
"""

from __future__ import annotations

import hashlib
import html
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from palaestra.core.errors import MissingExtraError
from palaestra.core.records import ImagePart, Message

Hashes = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]

_UNSPACED = "぀-ヿ㐀-鿿豈-﫿"
"""Scripts without spaces between words. Each character counts as a word."""
_WORD = re.compile(rf"\d+(?:\.\d+)?|[{_UNSPACED}]|[^\W\d_{_UNSPACED}]+|[^\w\s]|_")
_THOUSANDS = re.compile(r"(?<=\d)[,'_\u00a0\u2009\u202f](?=\d{3}(?!\d))")
_SIGNS = str.maketrans("×·÷⁄−–—", "**//---")
_PUNCTUATION = frozenset(".,;:?\"'`“”‘’…_\\$#|~")
_INVISIBLE = re.compile("[\u00ad\u0300-\u036f\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff]")
"""Combining accents, soft hyphens, zero-width characters."""
_LOOKALIKES = str.maketrans("авекмнорстухіјѕһԁԛԝαεικνορτυχ", "abekmhopctyxijshdqwaeikvoptux")
"""Cyrillic and Greek letters that look like Latin ones, in lower case."""
_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})|\\x([0-9a-fA-F]{2})|\\[nrt]")
_MARKUP = re.compile(
    r"</?[a-zA-Z][^<>\n]{0,200}>"  # HTML
    r"|^[ \t]*(?:[#>]+(?:[ \t]+|$)|[-*+•][ \t]+(?=[^\W\d_]|[\"'(\[`*_$]))+"  # Headings, quotes, comments, lists
    r"|\*{2,3}"
    r"|(?<=[^\W\d_])!|(?<=[^\W\d_]{2})-(?=[^\W\d_]{2})",
    re.MULTILINE,
)
_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
NUMBER_WORDS = {word: value for value, word in enumerate(_SMALL.split())}
NUMBER_WORDS |= {word: 10 * value for value, word in enumerate(_TENS.split(), start=2)}
_PAD = np.uint64(0x9E3779B97F4A7C15)


def words(text: str) -> list[str]:
    """The words of a text in normal form.

    >>> words("Tom has 1,200 Apples.  What is 3×4?")
    ['tom', 'has', '1200', 'apples', 'what', 'is', '3', '*', '4']
    """
    text = html.unescape(text) if "&" in text else text
    text = _ESCAPE.sub(_unescape, text) if "\\" in text else text
    text = _THOUSANDS.sub("", text)
    if not text.isascii():
        text = _INVISIBLE.sub("", unicodedata.normalize("NFKD", text))
        text = _THOUSANDS.sub("", unicodedata.normalize("NFC", text).translate(_SIGNS))
    text = _MARKUP.sub(" ", text).casefold()
    if not text.isascii():
        text = text.translate(_LOOKALIKES)
    return [word for word in _WORD.findall(text) if word not in _PUNCTUATION]


def _unescape(escape: re.Match[str]) -> str:
    code = escape[1] or escape[2]
    return chr(int(code, 16)) if code else " "


def in_figures(tokens: Sequence[str]) -> list[str]:
    """The words with numbers as digits, without redundant zeros.

    >>> in_figures(["twenty", "-", "five", "three", "hundred", "and", "six", "12.50", "05"])
    ['25', '306', '12.5', '5']
    """
    out: list[str] = []
    at = 0
    while at < len(tokens):
        word = tokens[at]
        value, size = read_number_words(tokens, at) if word in NUMBER_WORDS else (0, 0)
        if size > 1 or (size and word != "one"):  # "one" alone is rarely a number.
            out.append(str(value))
            at += size
            continue
        if word[0].isdigit():
            whole, point, rest = word.partition(".")
            rest = rest.rstrip("0")
            word = (whole.lstrip("0") or "0") + (f".{rest}" if point and rest else "")
        out.append(word)
        at += 1
    return out


def read_number_words(tokens: Sequence[str], start: int) -> tuple[int, int]:
    """The value of the number in words at `start`, and how many words it takes. `tokens[start]` is in `NUMBER_WORDS`."""
    total = current = size = 0
    last = ""
    for at in range(start, len(tokens)):
        word, value = tokens[at], NUMBER_WORDS.get(tokens[at])
        if value is not None and (last in ("", "times") or (last == "tens" and 0 < value < 10)):
            current += value
            last = "tens" if value >= 20 else "units"
        elif word == "hundred" and last in ("units", "tens"):
            current, last = current * 100, "times"
        elif word == "thousand" and current:
            total, current, last = total + current * 1000, 0, "times"
        elif (word == "-" and last == "tens") or (word == "and" and last == "times"):
            continue  # Part of the number if more of it follows.
        else:
            break
        size = at - start + 1
    return total + current, size


def is_number(word: str) -> bool:
    return word[0].isdigit()


def without_numbers(tokens: Iterable[str]) -> list[str]:
    """The words with every number replaced by `0`."""
    return ["0" if word[0].isdigit() else word for word in tokens]


def pictures(message: Message) -> str:
    """A digest of the images of a message; empty if it has none."""
    return digest_pictures(addresses(message))


def addresses(message: Message) -> list[str]:
    """The URLs of the images of a message."""
    return [] if isinstance(message.content, str) else [p.url for p in message.content if isinstance(p, ImagePart)]


def digest_pictures(urls: Sequence[str]) -> str:
    """A digest of the pixels of images, independent of their location and format; empty without images."""
    return digest(*map(_digest_picture, urls)) if urls else ""


def _digest_picture(url: str) -> str:
    if url.startswith(("http://", "https://")):
        return url  # Remote images are not downloaded.
    from palaestra.engines.images import ImageError, load_image

    try:
        image = load_image(url)
    except (ImageError, MissingExtraError):
        return url
    return f"{image.size} {hashlib.blake2b(image.tobytes(), digest_size=12).hexdigest()}"


def digest(*texts: str) -> str:
    """A digest of texts that is the same on every machine."""
    hashed = hashlib.blake2b(digest_size=12)
    for text in texts:
        encoded = text.encode("utf-8", "surrogatepass")
        hashed.update(len(encoded).to_bytes(8, "little") + encoded)
    return hashed.hexdigest()


def hashes(texts: Iterable[str]) -> Hashes:
    """A 64-bit hash of each text."""
    return np.array([int(digest(text)[:16], 16) for text in texts], dtype=np.uint64)


def mix(values_N: Hashes) -> Hashes:
    """Mix the bits of 64-bit values (the finaliser of SplitMix64, a bijection)."""
    mixed = (values_N ^ (values_N >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    scattered: Hashes = mixed ^ (mixed >> np.uint64(31))
    return scattered


@dataclass(frozen=True, slots=True)
class Grams:
    """The n-grams of several texts, in the order of the texts.

    Arguments:
        hashes_G: the hash of each gram.
        owners_G: the index of its text.
        starts_N: the index of the first gram of each text; every text has at least one gram.
    """

    hashes_G: Hashes
    owners_G: Places
    starts_N: Places

    @property
    def texts(self) -> int:
        return len(self.starts_N)

    def add_salts(self, salts_N: Hashes) -> Grams:
        """The grams with hashes that also depend on a value for each text."""
        return Grams(mix(self.hashes_G ^ mix(salts_N)[self.owners_G]), self.owners_G, self.starts_N)

    def get(self, text: int) -> Hashes:
        end = self.starts_N[text + 1] if text + 1 < self.texts else len(self.hashes_G)
        own: Hashes = self.hashes_G[self.starts_N[text] : end]
        return own


def grams(texts: Sequence[Sequence[str]], length: int) -> Grams:
    """All n-grams of `length` words in each text; a shorter text is a single gram.

    >>> len(grams([["a", "b", "c", "d"], ["a"]], 3).hashes_G)
    3
    """
    known = _Vocabulary()
    sizes_N = np.array([len(text) for text in texts], dtype=np.int64)
    padded_N = np.maximum(sizes_N, length)
    ends_N = np.cumsum(padded_N)
    begins_N = ends_N - padded_N
    total = int(ends_N[-1]) if len(texts) else 0
    words_W = np.full(total, _PAD, dtype=np.uint64)
    flat_W = np.fromiter(map(known.__getitem__, chain.from_iterable(texts)), np.uint64, int(sizes_N.sum()))
    shifts_N = begins_N - (np.cumsum(sizes_N) - sizes_N)
    words_W[np.arange(len(flat_W)) + np.repeat(shifts_N, sizes_N)] = flat_W
    counts_N = padded_N - length + 1
    starts_N = np.cumsum(counts_N) - counts_N
    owners_G = np.repeat(np.arange(len(texts)), counts_N)
    places_G = np.arange(int(counts_N.sum())) + (begins_N - starts_N)[owners_G]
    hashes_G = np.zeros(len(places_G), dtype=np.uint64)
    for offset in range(length):
        hashes_G = mix(hashes_G + words_W[places_G + offset])
    return Grams(hashes_G, owners_G, starts_N)


def among(values: Hashes, known: Hashes) -> npt.NDArray[np.bool_]:
    """Which of `values` are in the sorted array `known`."""
    if not len(known):
        return np.zeros(len(values), dtype=np.bool_)
    places = np.minimum(np.searchsorted(known, values), len(known) - 1)
    matches: npt.NDArray[np.bool_] = known[places] == values
    return matches


def distinct(hashes_G: Hashes, places_G: Places) -> tuple[Hashes, Places]:
    """The distinct pairs of hash and place, sorted by hash and then by place."""
    order = np.lexsort((places_G, hashes_G))
    hashes_G, places_G = hashes_G[order], places_G[order]
    new_G = np.ones(len(hashes_G), dtype=np.bool_)
    new_G[1:] = (hashes_G[1:] != hashes_G[:-1]) | (places_G[1:] != places_G[:-1])
    return hashes_G[new_G], places_G[new_G]


def frequent(held: Grams, most: int) -> Hashes:
    """The sorted hashes of grams in more than `most` texts, which are wording of the task."""
    values, counts = np.unique(distinct(held.hashes_G, held.owners_G)[0], return_counts=True)
    common: Hashes = values[counts > most]
    return common


class _Vocabulary(dict[str, int]):
    """Hashes of words that, unlike Python's own, are the same in every process."""

    def __missing__(self, word: str) -> int:
        code = word.encode("utf-8", "surrogatepass")
        self[word] = value = int.from_bytes(hashlib.blake2b(code, digest_size=8).digest(), "little")
        return value
