"""Named random streams.

Palaestra does not use the global generators of `random`, NumPy or torch. If a library or a user's environment needs them,
their state is restored afterwards. Random choices come from a `Seeds`, which derives independent streams by name: the same
root seed and name give the same stream on every machine and in any order.
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
