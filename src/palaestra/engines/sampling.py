"""Sample tokens by inverting the cumulative distribution at one uniform number per row."""

from __future__ import annotations

import torch
from torch import nn


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


BLOCK = 64
"""Tokens per block of the search."""


def _sample_index(weight_SV: torch.Tensor, uniform_S: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The index at which the cumulative weight passes `uniform_S` times the total; and the total.

    It searches for a block of tokens first, then for the token in it. A cumulative sum over the whole vocabulary would
    cost more than everything else here.
    """
    count, width = weight_SV.shape
    blocks_SNK = nn.functional.pad(weight_SV, (0, -width % BLOCK)).view(count, -1, BLOCK)
    ends_SN = blocks_SNK.sum(-1).cumsum(-1)
    total_S = ends_SN[:, -1]
    # Slightly below the total, so that rounding never selects a token after the last one with weight.
    target_S1 = (uniform_S * (1 - 2**-22) * total_S)[:, None]
    block_S1 = torch.searchsorted(ends_SN, target_S1, right=True).clamp(max=ends_SN.shape[1] - 1)
    inside_SK = blocks_SNK.gather(1, block_S1[:, :, None].expand(-1, -1, BLOCK))[:, 0].cumsum(-1)
    before_S1 = ends_SN.gather(1, block_S1) - inside_SK[:, -1:]
    # The same sum in another order may differ in its last bit: stay within the block.
    left_S1 = torch.minimum((target_S1 - before_S1).clamp(min=0.0), inside_SK[:, -1:] * (1 - 2**-22))
    place_S1 = torch.searchsorted(inside_SK, left_S1, right=True)
    return (block_S1 * BLOCK + place_S1)[:, 0].clamp(max=width - 1), total_S
