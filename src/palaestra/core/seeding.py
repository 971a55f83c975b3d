"""Seeded randomness: streams by name, and the random order of batches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Seeds:
    """A root seed from which named, independent streams are derived.

    >>> seeds = Seeds(7)
    >>> seeds.derive("teacher", 2) == Seeds(7).derive("teacher", 2)
    True
    >>> seeds.derive("teacher").integer() == seeds.derive("student").integer()
    False
    """

    root: int
    path: tuple[str, ...] = ()

    def derive(self, *names: str | int) -> Seeds:
        """Derive the stream of `names` from this one."""
        return Seeds(self.root, self.path + tuple(str(name) for name in names))

    def integer(self) -> int:
        """Return the seed of this stream in 63 bits, for engines, torch and Gymnasium."""
        # Names are length-prefixed, so that ("a", "bc") and ("ab", "c") are different streams.
        text = f"{self.root}" + "".join(f"/{len(name)}:{name}" for name in self.path)
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1

    def generator(self) -> np.random.Generator:
        """Return a new NumPy generator at the start of this stream."""
        return np.random.default_rng(self.integer())


def plan_batches(lengths: Sequence[int], batch_size: int, generator: np.random.Generator) -> Iterator[list[int]]:
    """Plan one epoch: every index once, in batches of similar length and random order.

    Sorting within windows of a few batches avoids most of the padding and keeps the batches mixed.
    """
    order = generator.permutation(len(lengths))
    window = 8 * batch_size
    batches = []
    for start in range(0, len(order), window):
        near = sorted(order[start : start + window].tolist(), key=lambda index: lengths[index])
        batches += [near[k : k + batch_size] for k in range(0, len(near), batch_size)]
    for position in generator.permutation(len(batches)):
        yield batches[position]
