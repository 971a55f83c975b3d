"""Which questions share most of their n-grams of words with a text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeVar

from palaestra.tasks.texts import ExampleTexts, NormalText

K = TypeVar("K")
V = TypeVar("V")
_Gram = tuple[str, ...]
Shares = dict[int, tuple[int, float]]
"""By index of the example: the index of a problem, and the fraction of its grams that the example contains."""


class GramIndex:
    """The questions of each gram.

    Arguments:
        texts: the questions; the first `prompts` of them are the whole prompts of the problems.
        length: words in a gram.
        common: grams in more problems than this are ignored.
    """

    def __init__(self, texts: Sequence[NormalText], prompts: int, length: int, common: int) -> None:
        self.texts, self.length = texts, length
        own = [self._make_grams(text) for text in texts]
        times = Counter(gram for grams in own[:prompts] for gram in grams)
        self._owners = index_pairs(
            (gram, place) for place, grams in enumerate(own) for gram in grams if times[gram] <= common
        )
        self._counts = Counter(place for places in self._owners.values() for place in places)

    def find_shares(self, texts: Sequence[ExampleTexts], least: float) -> tuple[Shares, Shares]:
        """The problem of which each example contains the largest fraction of grams, if that is at least `least`.

        Returns two mappings: for problems whose numbers are all in the example, and for the others.
        """
        with_numbers, without = Shares(), Shares()
        for example, text in enumerate(texts):
            parts = [*text.asked, text.everything]
            grams = {gram for part in parts for gram in self._make_grams(part)}
            hits = Counter(place for gram in grams for place in self._owners.get(gram, ()))
            shares = {place: count / self._counts[place] for place, count in sorted(hits.items())}
            close = {place: share for place, share in shares.items() if share >= least - 1e-12}
            numbers: Counter[str] = Counter()
            for part in parts if close else ():
                numbers |= Counter(part.numbers)
            for place, share in close.items():
                best = with_numbers if Counter(self.texts[place].numbers) <= numbers else without
                if example not in best or share > best[example][1]:
                    best[example] = (place, share)
        return with_numbers, without

    def _make_grams(self, text: NormalText) -> set[_Gram]:
        """The grams of a text that has at least `length` words."""
        words = text.words
        return {(text.pictures, *words[k : k + self.length]) for k in range(len(words) - self.length + 1)}


def index_pairs(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The values of each key, in order."""
    index: dict[K, list[V]] = {}
    for key, value in pairs:
        index.setdefault(key, []).append(value)
    return index
