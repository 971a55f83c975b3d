"""MinHash: near duplicates among many texts without comparing all pairs (Broder, 1997; bands after Leskovec et al.).

The smallest hashes of two sets under a random permutation are equal with a probability of their Jaccard similarity. Many
permutations form a signature. Signatures are divided into bands, and texts that agree in a whole band are candidates.
Candidates are compared exactly, so there are no false positives.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from palaestra.core.seeding import Seeds
from palaestra.tasks.texts import Grams, Hashes, mix

BLOCK = 1 << 16
"""N-grams that are hashed at once; they fit into the processor's cache."""
RECALL = 0.999
"""The probability that a pair at the threshold becomes a candidate."""
DOUBT = 4.0
"""Standard deviations by which a signature may underestimate the similarity of a pair that is compared exactly."""


def signatures(sets: Grams, permutations: int = 128, seed: int = 0) -> Hashes:
    """The MinHash signatures of texts, as `signatures_NP`."""
    rng = Seeds(seed).derive("minhash").generator()
    factors_P = rng.integers(1 << 63, size=permutations, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    shifts_P = rng.integers(1 << 63, size=permutations, dtype=np.uint64)
    signatures_NP = np.empty((sets.texts, permutations), dtype=np.uint64)
    first = 0
    while first < sets.texts:
        begin = int(sets.starts_N[first])
        last = max(first + 1, int(np.searchsorted(sets.starts_N, begin + BLOCK)))
        end = int(sets.starts_N[last]) if last < sets.texts else len(sets.hashes_G)
        block_G, starts = sets.hashes_G[begin:end], sets.starts_N[first:last] - begin
        room_G = np.empty_like(block_G)
        for column in range(permutations):
            # The n-grams are hashes; a multiplication by an odd number permutes them.
            np.multiply(block_G ^ shifts_P[column], factors_P[column], out=room_G)
            signatures_NP[first:last, column] = np.minimum.reduceat(room_G, starts)
        first = last
    return signatures_NP


def rows_a_band(permutations: int, threshold: float, recall: float = RECALL) -> int:
    """The maximum rows per band with which a pair at `threshold` becomes a candidate with probability `recall`.

    >>> rows_a_band(128, 0.8)
    5
    """
    for rows in range(permutations, 1, -1):
        if 1 - (1 - threshold**rows) ** (permutations // rows) >= recall:
            return rows
    return 1


def band_keys(signatures_NP: Hashes, rows: int) -> Hashes:
    """One hash per band, as `keys_NB`."""
    count, permutations = signatures_NP.shape
    keys_NB = np.zeros((count, permutations // rows), dtype=np.uint64)
    for row in range(rows):
        keys_NB = mix(keys_NB + signatures_NP[:, row : keys_NB.shape[1] * rows : rows])
    return keys_NB


def jaccard(first: frozenset[int], other: frozenset[int]) -> float:
    """The Jaccard similarity of two sets, from 0 to 1; 1 for two empty sets."""
    both = len(first & other)
    every = len(first) + len(other) - both
    return both / every if every else 1.0


class Repeats:
    """Finds near duplicates among texts that are added one by one.

    Arguments:
        sets: the n-grams of the texts, in order.
        threshold: the Jaccard similarity of near duplicates.
    """

    def __init__(self, sets: Grams, threshold: float, permutations: int = 128, seed: int = 0) -> None:
        self.sets, self.threshold = sets, threshold
        self.signatures_NP = signatures(sets, permutations, seed)
        keys_NB = band_keys(self.signatures_NP, rows_a_band(permutations, threshold))
        self._buckets = _find_buckets(keys_NB)
        self._members: dict[int, list[int]] = {}
        self._grams: dict[int, frozenset[int]] = {}
        spread = math.sqrt(threshold * (1 - threshold) / permutations)
        self._least = (threshold - DOUBT * spread) * permutations

    def add(self, text: int, always: bool = False) -> tuple[int, float] | None:
        """Return the first text that `text` nearly repeats, with their similarity; if there is none, add `text`.

        Arguments:
            always: add `text` without a comparison.
        """
        own = self._buckets[text]
        match = None if always else self._find_repeat(text, own)
        if match is None:
            for bucket in own:
                self._members.setdefault(bucket, []).append(text)
        return match

    def _find_repeat(self, text: int, own: list[int]) -> tuple[int, float] | None:
        near = sorted({other for bucket in own for other in self._members.get(bucket, ())})
        if not near:
            return None
        alike = (self.signatures_NP[near] == self.signatures_NP[text]).sum(axis=1)
        for other in np.array(near)[alike >= self._least].tolist():
            similarity = jaccard(self._set(text), self._set(other))
            if similarity >= self.threshold:
                return other, similarity
        return None

    def _set(self, text: int) -> frozenset[int]:
        if text not in self._grams:
            self._grams[text] = frozenset(self.sets.get(text).tolist())
        return self._grams[text]


def _find_buckets(keys_NB: Hashes) -> list[list[int]]:
    """For each text the numbers of the buckets that it shares with another text."""
    buckets: list[list[int]] = [[] for _ in range(len(keys_NB))]
    first = 0
    for band in range(keys_NB.shape[1]):
        _, inverse_N, counts = np.unique(keys_NB[:, band], return_inverse=True, return_counts=True)
        members: npt.NDArray[np.int64] = np.flatnonzero(counts[inverse_N] > 1)
        for text, bucket in zip(members.tolist(), (inverse_N[members] + first).tolist(), strict=True):
            buckets[text].append(bucket)
        first += len(counts)
    return buckets
