"""Operations of a language model that make fewer passes over memory than torch's own, and the choice of matrix kernels.

On ARM, torch sends products with a transposed weight to oneDNN. With several threads oneDNN is faster for large
matrices. With one thread plain BLAS was faster at every size measured, and for the matrices of a control policy oneDNN
costs up to a millisecond per call. Where torch does not use oneDNN (float32 on x86) the choice has no effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from palaestra.engines.cpu import fast_paths_enabled

CHUNK = 512
"""Number of rows of logits that are computed at once."""


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


@contextmanager
def _onednn(enabled: bool) -> Iterator[None]:
    before = torch.backends.mkldnn.set_flags(enabled)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        torch.backends.mkldnn.set_flags(before[0])  # type: ignore[no-untyped-call]


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
    """GPT-2's activation.

    Without gradients this is oneDNN's kernel, three times as fast on ARM as torch's own. With gradients it is
    `x * sigmoid(2 u)`, which equals `x * (1 + tanh(u)) / 2`: an exponential costs a third of a tanh, and the backward
    pass reuses it.
    """
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


def token_logprobs_N(
    hidden_ND: torch.Tensor, output_VD: torch.Tensor, tokens_N: torch.Tensor, temperature: float = 1.0
) -> torch.Tensor:
    """The log-prob of one token at each position: output layer, softmax and selection in one operation.

    It stores one table for the backward pass, instead of logits, log-probs and the gradients of both.
    """
    result: torch.Tensor = _TokenLogProbs.apply(hidden_ND, output_VD, tokens_N, temperature)  # type: ignore[no-untyped-call]
    return result


class _TokenLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_ND: torch.Tensor, output_VD: torch.Tensor, tokens_N: torch.Tensor, temperature: float
    ) -> torch.Tensor:
        count, vocabulary = len(hidden_ND), len(output_VD)
        needs_grad = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        weight_NV = hidden_ND.new_empty(count if needs_grad else min(count, CHUNK), vocabulary)
        total_N, logits_N = hidden_ND.new_empty(count), hidden_ND.new_empty(count)
        for start in range(0, count, CHUNK):
            rows = slice(start, min(start + CHUNK, count))
            logits = weight_NV[rows] if needs_grad else weight_NV[: rows.stop - rows.start]
            torch.mm(hidden_ND[rows], output_VD.t(), out=logits)
            if temperature != 1.0:
                logits.div_(temperature)
            logits.sub_(logits.amax(-1, keepdim=True))
            logits_N[rows] = logits.gather(-1, tokens_N[rows, None])[:, 0]
            total_N[rows] = logits.exp_().sum(-1)
        if needs_grad:
            ctx.save_for_backward(hidden_ND, output_VD, tokens_N, weight_NV, total_N)
            ctx.temperature = temperature
        return logits_N - total_N.log()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        hidden_ND, output_VD, tokens_N, weight_NV, total_N = ctx.saved_tensors
        grad_N = grads[0] / ctx.temperature
        hidden_grad, output_grad = torch.empty_like(hidden_ND), torch.zeros_like(output_VD)
        for start in range(0, len(hidden_ND), CHUNK):
            rows = slice(start, start + CHUNK)
            grad_C1 = grad_N[rows, None]
            logits_grad = weight_NV[rows] * (-grad_C1 / total_N[rows, None])
            logits_grad.scatter_add_(1, tokens_N[rows, None], grad_C1)
            torch.mm(logits_grad, output_VD, out=hidden_grad[rows])
            output_grad.addmm_(logits_grad.t(), hidden_ND[rows])
        return hidden_grad, output_grad, None, None
