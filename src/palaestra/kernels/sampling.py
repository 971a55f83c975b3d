"""Sample tokens by inverting the cumulative distribution, and compute the log-probs of given tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from palaestra.kernels.gpu.training import recompute_token_logprobs

_BLOCK = 64
"""Tokens per block of the search."""
CHUNK = 512
"""Number of rows of logits that a CPU computes at once."""


def sample_tokens(
    logits_SV: torch.Tensor, uniform_S: torch.Tensor, temperature: float = 1.0, legal_SV: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sample by inverting the cumulative distribution; returns tokens, log-probs and entropies.

    One exponential per logit is enough for all three. Illegal tokens are never sampled.
    """
    if temperature != 1.0:
        logits_SV = logits_SV / temperature
    if legal_SV is not None:
        logits_SV = logits_SV.masked_fill(~legal_SV, float("-inf"))
    shifted_SV = logits_SV - logits_SV.amax(-1, keepdim=True)
    weight_SV = shifted_SV.exp()
    chosen_S, total_S = _sample_index(weight_SV, uniform_S.to(weight_SV.dtype))
    log_total_S = total_S.log()
    logprobs_S = shifted_SV.gather(-1, chosen_S[:, None])[:, 0] - log_total_S
    finite_SV = shifted_SV if legal_SV is None else shifted_SV.masked_fill(~legal_SV, 0.0)
    entropy_S = log_total_S - (weight_SV * finite_SV).sum(-1) / total_S
    return chosen_S, logprobs_S, entropy_S


def _sample_index(weight_SV: torch.Tensor, uniform_S: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The index at which the cumulative weight passes `uniform_S` times the total; and the total.

    It searches for a block of tokens first, then for the token in it. A cumulative sum over the whole vocabulary would
    cost more than everything else here.
    """
    count, width = weight_SV.shape
    blocks_SNK = nn.functional.pad(weight_SV, (0, -width % _BLOCK)).view(count, -1, _BLOCK)
    ends_SN = blocks_SNK.sum(-1).cumsum(-1)
    total_S = ends_SN[:, -1]
    # Slightly below the total, so that rounding never selects a token after the last one with weight.
    target_S1 = (uniform_S * (1 - 2**-22) * total_S)[:, None]
    block_S1 = torch.searchsorted(ends_SN, target_S1, right=True).clamp(max=ends_SN.shape[1] - 1)
    inside_SK = blocks_SNK.gather(1, block_S1[:, :, None].expand(-1, -1, _BLOCK))[:, 0].cumsum(-1)
    before_S1 = ends_SN.gather(1, block_S1) - inside_SK[:, -1:]
    # The same sum in another order may differ in its last bit: stay within the block.
    left_S1 = torch.minimum((target_S1 - before_S1).clamp(min=0.0), inside_SK[:, -1:] * (1 - 2**-22))
    place_S1 = torch.searchsorted(inside_SK, left_S1, right=True)
    return (block_S1 * _BLOCK + place_S1)[:, 0].clamp(max=width - 1), total_S


def compute_token_logprobs(
    hidden_ND: torch.Tensor, output_VD: torch.Tensor, tokens_N: torch.Tensor, temperature: float = 1.0
) -> torch.Tensor:
    """Output layer, softmax and selection of one token in one operation, with gradients.

    A CPU keeps one table of `[positions, vocabulary]` for the backward pass. A GPU keeps none and computes the logits again.
    """
    compute = recompute_token_logprobs if hidden_ND.is_cuda else _TokenLogProbs.apply
    logprobs_N: torch.Tensor = compute(hidden_ND, output_VD, tokens_N, temperature)
    return logprobs_N


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
