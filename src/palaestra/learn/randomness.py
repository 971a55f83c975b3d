"""Scoped use of torch's global generator, for code that accepts no other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from palaestra.core.seeding import Seeds


@contextmanager
def fork_torch_rng(seeds: Seeds) -> Iterator[None]:
    """Seed torch's global generators within the scope and restore them after it."""
    with torch.random.fork_rng():
        torch.random.manual_seed(seeds.integer())
        yield
