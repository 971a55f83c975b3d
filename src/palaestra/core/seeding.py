"""Randomness with an owner.

Nothing in Palaestra changes the global generators of `random`, NumPy or torch (they are borrowed where a
library, or a user's environment, knows no other, and put back). Whoever makes random choices owns a `Seeds`, and hands out independent streams by name: the same root seed and the same
name give the same stream, on every machine, in any order of asking.
"""

from __future__ import annotations

import hashlib
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
        """The stream that belongs to `names` below this one."""
        return Seeds(self.root, self.path + tuple(str(name) for name in names))

    def integer(self) -> int:
        """This stream's own seed, in 63 bits: for engines, torch and Gymnasium."""
        # Length-prefixed, so that ("a", "bc") and ("ab", "c") are different streams.
        text = f"{self.root}" + "".join(f"/{len(name)}:{name}" for name in self.path)
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1

    def generator(self) -> np.random.Generator:
        """A fresh NumPy generator at the start of this stream."""
        return np.random.default_rng(self.integer())
