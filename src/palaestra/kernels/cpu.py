"""Fast paths on a CPU: the choice of matrix kernels, and GPT-2's activation.

On ARM, torch sends products with a transposed weight to oneDNN. With several threads oneDNN is faster for large
matrices. With one thread plain BLAS was faster at every size measured, and for the matrices of a control policy oneDNN
costs up to a millisecond per call. Where torch does not use oneDNN (float32 on x86) the choice has no effect.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from palaestra.models.families import fast_paths_enabled


@contextmanager
def select_matmul_kernels(small: bool = False) -> Iterator[None]:
    """Within the context, use the fastest matrix kernels for the number of threads.

    Arguments:
        small: the networks have only a few thousand weights.
    """
    if not fast_paths_enabled() or not (small or torch.get_num_threads() == 1):
        yield
        return
    with _onednn(False):
        yield


_LOCK = threading.Lock()
_CHOICES: list[tuple[object, bool]] = []
"""The choices of the contexts that are open in any thread, below them the flag from before the first."""


@contextmanager
def _onednn(enabled: bool) -> Iterator[None]:
    """Enable or disable oneDNN for the process. Contexts of several threads may overlap: the last one restores the flag."""
    choice = (object(), enabled)
    with _LOCK:
        if not _CHOICES:
            _CHOICES.append((None, bool(torch.backends.mkldnn.enabled)))
        _CHOICES.append(choice)
        torch.backends.mkldnn.set_flags(enabled)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        with _LOCK:
            _CHOICES.remove(choice)
            torch.backends.mkldnn.set_flags(_CHOICES[-1][1])  # type: ignore[no-untyped-call]
            if len(_CHOICES) == 1:
                _CHOICES.clear()


def fuse_activations(model: nn.Module) -> None:
    """Replace GPT-2's activation, eight operations in transformers, with torch's fused kernel."""
    from transformers.activations import NewGELUActivation

    if not fast_paths_enabled():
        return
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, NewGELUActivation):
                setattr(module, name, nn.GELU(approximate="tanh"))


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    """GELU with a tanh, of GPT-2 and Gemma.

    On a CPU without gradients this is oneDNN's kernel, three times as fast on ARM as torch's own. With gradients it is
    `x * sigmoid(2 u)`, which equals `x * (1 + tanh(u)) / 2`: an exponential costs a third of a tanh, and the backward
    pass reuses it.
    """
    if x.is_cuda:
        return torch.nn.functional.gelu(x, approximate="tanh")
    if not torch.is_grad_enabled():
        with _onednn(True):
            return torch.nn.functional.gelu(x, approximate="tanh")
    result: torch.Tensor = _Gelu.apply(x)  # type: ignore[no-untyped-call]
    return result


_LINEAR = 2 * (2 / torch.pi) ** 0.5
_CUBIC = 0.044715 * _LINEAR


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        gate = (x * x).mul_(_CUBIC).add_(_LINEAR).mul_(x).sigmoid_()
        ctx.save_for_backward(x, gate)
        return x * gate

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, gate = ctx.saved_tensors
        slope = (x * x).mul_(3 * _CUBIC).add_(_LINEAR).mul_(x)
        return slope.addcmul_(slope, gate, value=-1).add_(1).mul_(gate).mul_(grads[0])
