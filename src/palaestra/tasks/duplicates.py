"""Near-duplicates among questions."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from palaestra.tasks.texts import digest_texts, words

_ALIKE = 0.8
"""Questions with this Jaccard similarity of their word triples are near-duplicates."""
_BANDS, _ROWS = 16, 4
"""Questions that agree in all values of a band of their MinHash are compared."""
_PRIME = 2**31 - 1
_Triples = np.ndarray[Any, np.dtype[np.uint64]]


def find_near_duplicates(texts: Sequence[str]) -> list[str]:
    """A key for each text that near-duplicates share: the smallest digest among them.

    Two texts are near-duplicates if their words are the same, or most triples of words (`_ALIKE`) and all numbers are.
    Candidates are found by MinHash.
    """
    tokens = [words(text) for text in texts]
    triples = [_hash_triples(several) for several in tokens]
    keys = [digest_texts(" ".join(several)) for several in tokens]
    parents = list(range(len(texts)))

    def find_root(place: int) -> int:
        while parents[place] != place:
            parents[place] = place = parents[parents[place]]
        return place

    factors, offsets = np.random.default_rng(0).integers(1, _PRIME, (2, _BANDS * _ROWS, 1), dtype=np.uint64)
    same: dict[str, int] = {}
    buckets: dict[tuple[int, bytes], int] = {}
    for place, own in enumerate(triples):
        parents[find_root(place)] = find_root(same.setdefault(keys[place], place))
        if not len(own):
            continue
        signature = ((factors * own + offsets) % np.uint64(_PRIME)).min(axis=1).reshape(_BANDS, _ROWS)
        for band, row in enumerate(signature):
            other = buckets.setdefault((band, row.tobytes()), place)
            if find_root(other) != find_root(place) and _is_alike(tokens[other], tokens[place], triples[other], own):
                parents[find_root(place)] = find_root(other)
    smallest: dict[int, str] = {}
    for place, key in enumerate(keys):
        root = find_root(place)
        smallest[root] = min(key, smallest.get(root, key))
    return [smallest[find_root(place)] for place in range(len(texts))]


def _hash_triples(tokens: Sequence[str]) -> _Triples:
    triples = {zlib.crc32(" ".join(tokens[at : at + 3]).encode()) for at in range(len(tokens) - 2)}
    return np.array(sorted(triples), dtype=np.uint64)


def _is_alike(a: Sequence[str], b: Sequence[str], triples_a: _Triples, triples_b: _Triples) -> bool:
    shared = len(np.intersect1d(triples_a, triples_b))
    numbers_a, numbers_b = ([word for word in several if word[0].isdigit()] for several in (a, b))
    return shared >= _ALIKE * (len(triples_a) + len(triples_b) - shared) and numbers_a == numbers_b
