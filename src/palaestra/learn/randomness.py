"""Torch's global generator, borrowed: some code draws from it and takes no other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from palaestra.core.seeding import Seeds


@contextmanager
def seeded_torch(seeds: Seeds) -> Iterator[None]:
    """A scope in which torch's global generators are seeded, and after which they are as before."""
    with torch.random.fork_rng():
        torch.random.manual_seed(seeds.integer())
        yield
