"""Two steps of a language model with their gradients, in fewer passes over memory than torch's own."""

from __future__ import annotations

from typing import Any

import torch

from palaestra.engines import kernels

CHUNK = 512
"""Rows of logits that are computed at once."""


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    """GPT-2's activation: `x * sigmoid(2 u)` is the same number as `x * (1 + tanh(u)) / 2`.

    An exponential costs a third of a tanh here, and what is kept of it leaves the way back without any.
    """
    if not torch.is_grad_enabled():
        return kernels.gelu_tanh(x)
    found: torch.Tensor = _Gelu.apply(x)  # type: ignore[no-untyped-call]
    return found


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


def chosen_logprobs_N(
    hidden_ND: torch.Tensor, output_VD: torch.Tensor, chosen_N: torch.Tensor, temperature: float = 1.0
) -> torch.Tensor:
    """The log-prob of one token at each position: the output layer, the softmax and the choice in one.

    What a gradient needs is kept once, instead of logits, log-probs and the gradients of both.
    """
    found: torch.Tensor = _ChosenLogProbs.apply(hidden_ND, output_VD, chosen_N, temperature)  # type: ignore[no-untyped-call]
    return found


class _ChosenLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_ND: torch.Tensor, output_VD: torch.Tensor, chosen_N: torch.Tensor, temperature: float
    ) -> torch.Tensor:
        count, vocabulary = len(hidden_ND), len(output_VD)
        kept = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        weight_NV = hidden_ND.new_empty(count if kept else min(count, CHUNK), vocabulary)
        total_N, found_N = hidden_ND.new_empty(count), hidden_ND.new_empty(count)
        for start in range(0, count, CHUNK):
            rows = slice(start, min(start + CHUNK, count))
            logits = weight_NV[rows] if kept else weight_NV[: rows.stop - rows.start]
            torch.mm(hidden_ND[rows], output_VD.t(), out=logits)
            if temperature != 1.0:
                logits.div_(temperature)
            logits.sub_(logits.amax(-1, keepdim=True))
            found_N[rows] = logits.gather(-1, chosen_N[rows, None])[:, 0]
            total_N[rows] = logits.exp_().sum(-1)
        if kept:
            ctx.save_for_backward(hidden_ND, output_VD, chosen_N, weight_NV, total_N)
            ctx.temperature = temperature
        return found_N - total_N.log()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        hidden_ND, output_VD, chosen_N, weight_NV, total_N = ctx.saved_tensors
        share_N = grads[0] / ctx.temperature
        hidden_grad, output_grad = torch.empty_like(hidden_ND), torch.zeros_like(output_VD)
        for start in range(0, len(hidden_ND), CHUNK):
            rows = slice(start, start + CHUNK)
            share_C1 = share_N[rows, None]
            logits_grad = weight_NV[rows] * (-share_C1 / total_N[rows, None])
            logits_grad.scatter_add_(1, chosen_N[rows, None], share_C1)
            torch.mm(logits_grad, output_VD, out=hidden_grad[rows])
            output_grad.addmm_(logits_grad.t(), hidden_ND[rows])
        return hidden_grad, output_grad, None, None
