"""Which of torch's matrix kernels serve: a choice of the process, borrowed and put back.

On ARM, torch sends products with a transposed weight to oneDNN. With several threads that wins for large
matrices. With one thread the plain BLAS is faster at every size that was measured, and for matrices of a control
policy oneDNN costs up to a millisecond a call. Where oneDNN takes no part (x86 in float32), nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def suited(small: bool = False) -> Iterator[None]:
    """A scope with the kernels that suit the number of threads.

    Arguments:
        small: the networks have only a few thousand weights.
    """
    if not (small or torch.get_num_threads() == 1):
        yield
        return
    with onednn(False):
        yield


@contextmanager
def onednn(on: bool) -> Iterator[None]:
    """A scope with oneDNN's kernels, or without them."""
    before = torch.backends.mkldnn.set_flags(on)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        torch.backends.mkldnn.set_flags(before[0])  # type: ignore[no-untyped-call]


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    """GPT-2's activation by oneDNN's kernel, three times as fast on ARM as torch's own, whoever does the products."""
    with onednn(True):
        return torch.nn.functional.gelu(x, approximate="tanh")
