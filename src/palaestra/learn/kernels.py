"""Which of torch's matrix kernels serve: a choice of the process, borrowed and put back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def small_matrices() -> Iterator[None]:
    """A scope for networks of a few thousand weights.

    On ARM, torch sends products with a transposed weight to oneDNN, which wins for large matrices and costs
    up to a millisecond a call for small ones (`benchmarks/cartpole_vs_sb3.py` says what that is worth). Where
    oneDNN takes no part, this changes nothing.
    """
    before = torch.backends.mkldnn.set_flags(False)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        torch.backends.mkldnn.set_flags(before[0])  # type: ignore[no-untyped-call]
