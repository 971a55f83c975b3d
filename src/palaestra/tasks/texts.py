"""Texts as numbers: words, and stretches of words (grams), hashed and ready for NumPy.

Words are compared in one form: compatibility characters unfolded, lower case, no punctuation that ends or joins
sentences. Signs that calculate or call (`+`, `-`, `(`, `=`) are words, and so is every number.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from palaestra.core.records import ImagePart, Message

Hashes = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]

_UNSPACED = "぀-ヿ㐀-鿿豈-﫿"
"""Scripts that put no space between words: there every character counts as one."""
_WORD = re.compile(rf"\d+(?:\.\d+)?|[{_UNSPACED}]|[^\W\d_{_UNSPACED}]+|[^\w\s]|_")
_THOUSANDS = re.compile(r"(?<=\d)[,'_\u00a0\u2009\u202f](?=\d{3}(?!\d))")
_SIGNS = str.maketrans("×·÷−–—", "**/---")
_PUNCTUATION = frozenset(".,;:?\"'`“”‘’…")
_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_SPELLED = {word: value for value, word in enumerate(_SMALL.split())}
_SPELLED |= {word: 10 * value for value, word in enumerate(_TENS.split(), start=2)}
_TIMES = {"hundred": 100, "thousand": 1000}
_PAD = np.uint64(0x9E3779B97F4A7C15)


def words(text: str) -> list[str]:
    """The words of a text in normal form.

    >>> words("Tom has 1,200 Apples.  What is 3×4?")
    ['tom', 'has', '1200', 'apples', 'what', 'is', '3', '*', '4']
    """
    text = _THOUSANDS.sub("", text)
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text).translate(_SIGNS)
    found = _WORD.findall(text.casefold())
    return [word for word in found if word not in _PUNCTUATION]


def in_figures(found: Iterable[str]) -> list[str]:
    """The same words with numbers in one form: in figures, without zeros that change nothing.

    >>> in_figures(["twenty", "-", "five", "three", "hundred", "12.50", "05"])
    ['25', '300', '12.5', '5']
    """
    out: list[str] = []
    last = ""
    for word in found:
        value = _SPELLED.get(word)
        if word in _TIMES and last == "spelled":
            out[-1] = str(int(out[-1]) * _TIMES[word])
            continue
        if value is not None and (word != "one" or last in ("tens", "tens-")):  # Most often "one" counts nothing.
            if value < 10 and last in ("tens", "tens-"):
                if last == "tens-":
                    out.pop()
                out[-1] = str(int(out[-1]) + value)
                last = "spelled"
            else:
                out.append(str(value))
                last = "tens" if value >= 20 else "spelled"
            continue
        last = "tens-" if word == "-" and last == "tens" else ""
        if word[0].isdigit():
            whole, point, rest = word.partition(".")
            rest = rest.rstrip("0")
            word = (whole.lstrip("0") or "0") + (f".{rest}" if point and rest else "")
        out.append(word)
    return out


def is_number(word: str) -> bool:
    return word[0].isdigit()


def without_numbers(found: Iterable[str]) -> list[str]:
    """The same words with every number replaced by one and the same."""
    return ["0" if word[0].isdigit() else word for word in found]


def pictures(message: Message) -> str:
    """What tells the images of a message from others; empty where there are none."""
    if isinstance(message.content, str):
        return ""
    urls = [part.url for part in message.content if isinstance(part, ImagePart)]
    return digest(*urls) if urls else ""


def digest(*texts: str) -> str:
    """A short name for texts: equal texts, equal names, on every machine."""
    hashed = hashlib.blake2b(digest_size=12)
    for text in texts:
        encoded = text.encode("utf-8", "surrogatepass")
        hashed.update(len(encoded).to_bytes(8, "little") + encoded)
    return hashed.hexdigest()


def hashes(texts: Iterable[str]) -> Hashes:
    """64 bits for each text."""
    return np.array([int(digest(text)[:16], 16) for text in texts], dtype=np.uint64)


def mix(values_N: Hashes) -> Hashes:
    """Scatter 64-bit values, one to one (the finaliser of SplitMix64)."""
    mixed = (values_N ^ (values_N >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    scattered: Hashes = mixed ^ (mixed >> np.uint64(31))
    return scattered


@dataclass(frozen=True, slots=True)
class Grams:
    """The grams of several texts, one text after the other.

    Arguments:
        hashes_G: of each gram.
        owners_G: the text that it is of.
        starts_N: where each text's grams begin; every text has at least one.
    """

    hashes_G: Hashes
    owners_G: Places
    starts_N: Places

    @property
    def texts(self) -> int:
        return len(self.starts_N)

    def salted(self, salts_N: Hashes) -> Grams:
        """The same grams, told apart by a property of their texts: equal only where that is equal too."""
        return Grams(mix(self.hashes_G ^ mix(salts_N)[self.owners_G]), self.owners_G, self.starts_N)

    def without(self, common: Hashes, instead_N: Hashes) -> Grams:
        """The same texts without some grams; a text that has no others is the one gram `instead`.

        Arguments:
            common: hashes of grams, sorted.
        """
        left_G = ~among(self.hashes_G, common)
        bare_N = np.add.reduceat(left_G, self.starts_N, dtype=np.int64) == 0 if self.texts else self.starts_N
        hashes_G = self.hashes_G.copy()
        first_of_bare = self.starts_N[np.flatnonzero(bare_N)]
        hashes_G[first_of_bare] = instead_N[np.flatnonzero(bare_N)]
        left_G[first_of_bare] = True
        owners_G = self.owners_G[left_G]
        return Grams(hashes_G[left_G], owners_G, np.searchsorted(owners_G, np.arange(self.texts)))

    def of(self, text: int) -> Hashes:
        end = self.starts_N[text + 1] if text + 1 < self.texts else len(self.hashes_G)
        own: Hashes = self.hashes_G[self.starts_N[text] : end]
        return own


def grams(texts: Sequence[Sequence[str]], length: int) -> Grams:
    """All stretches of `length` words in each text; a shorter text is one gram as a whole.

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
    """Which of `values` are in `known`, which is sorted."""
    if not len(known):
        return np.zeros(len(values), dtype=np.bool_)
    places = np.minimum(np.searchsorted(known, values), len(known) - 1)
    found: npt.NDArray[np.bool_] = known[places] == values
    return found


def distinct(hashes_G: Hashes, places_G: Places) -> tuple[Hashes, Places]:
    """The different pairs of hash and place, by hash and then by place."""
    order = np.lexsort((places_G, hashes_G))
    hashes_G, places_G = hashes_G[order], places_G[order]
    new_G = np.ones(len(hashes_G), dtype=np.bool_)
    new_G[1:] = (hashes_G[1:] != hashes_G[:-1]) | (places_G[1:] != places_G[:-1])
    return hashes_G[new_G], places_G[new_G]


def frequent(held: Grams, most: int) -> Hashes:
    """The grams that are in more than `most` of the texts: words of a task, not of a problem. Sorted."""
    values, counts = np.unique(distinct(held.hashes_G, held.owners_G)[0], return_counts=True)
    common: Hashes = values[counts > most]
    return common


class _Vocabulary(dict[str, int]):
    """Words and their hashes, which are the same in every process, unlike Python's own."""

    def __missing__(self, word: str) -> int:
        code = word.encode("utf-8", "surrogatepass")
        self[word] = value = int.from_bytes(hashlib.blake2b(code, digest_size=8).digest(), "little")
        return value
