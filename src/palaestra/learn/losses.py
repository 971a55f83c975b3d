"""Losses as pure functions. They work on any shape; a mask says which entries are decisions.

Per-token losses are written first and aggregated afterwards, because how tokens are weighted is what
tells GRPO's variants apart: see `aggregate_BT`.
"""

from __future__ import annotations

from typing import Literal

import torch

Weighting = Literal["token", "sequence", "constant"]


def masked_mean(values: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """The mean over what `mask` keeps; 0 where it keeps nothing."""
    return values.mean() if mask is None else (values * mask).sum() / mask.sum().clamp(min=1)


def clipped_policy_loss(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    clip_low: float,
    clip_high: float | None = None,
) -> torch.Tensor:
    """PPO's clipped surrogate for each decision, to be minimised.

    Arguments:
        clip_high: how far the ratio may rise above 1; the same as `clip_low` if not given. DAPO's
            "clip-higher" sets it above, which leaves rare tokens room to grow.
    """
    ratio = (logprobs - old_logprobs).exp()
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + (clip_low if clip_high is None else clip_high))
    return -torch.minimum(ratio * advantages, clipped * advantages)


def sequence_logprobs_BT(
    logprobs_BT: torch.Tensor, old_logprobs_BT: torch.Tensor, mask_BT: torch.Tensor
) -> torch.Tensor:
    """Log-probs whose ratio to the old ones is one number a sequence (GSPO): the mean of its log-ratios.

    The gradient reaches every token, as in the paper: the value of the sequence's ratio is used at all of
    its tokens.
    """
    logratio_BT = (logprobs_BT - old_logprobs_BT) * mask_BT
    mean_B1 = logratio_BT.sum(-1, keepdim=True) / mask_BT.sum(-1, keepdim=True).clamp(min=1)
    return old_logprobs_BT + mean_B1


def aggregate_BT(
    losses_BT: torch.Tensor, mask_BT: torch.Tensor, weighting: Weighting, sequences: float, tokens: float, length: int
) -> torch.Tensor:
    """One number from the losses of tokens.

    Arguments:
        weighting: `"sequence"` averages within each sequence, then over sequences (GRPO as published:
            a token of a long response weighs less); `"token"` averages over all tokens (DAPO);
            `"constant"` divides by the largest length (Dr. GRPO: no bias by length at all).
        sequences, tokens: of the whole batch that one optimiser step sees, so that cutting the batch into
            microbatches changes nothing.
        length: the most tokens of a response.
    """
    if weighting == "token":
        return (losses_BT * mask_BT).sum() / max(tokens, 1.0)
    if weighting == "sequence":
        return ((losses_BT * mask_BT).sum(-1) / mask_BT.sum(-1).clamp(min=1)).sum() / max(sequences, 1.0)
    return (losses_BT * mask_BT).sum() / max(sequences * length, 1.0)


def clipped_value_loss(
    values: torch.Tensor, old_values: torch.Tensor, returns: torch.Tensor, clip: float | None
) -> torch.Tensor:
    """Half the squared error for each decision; with `clip`, of the worse of the clipped and the plain value."""
    loss = (values - returns).square()
    if clip is not None:
        held = old_values + (values - old_values).clamp(-clip, clip)
        loss = torch.maximum(loss, (held - returns).square())
    return 0.5 * loss


def kl_k1(logprobs: torch.Tensor, reference_logprobs: torch.Tensor) -> torch.Tensor:
    """The log-ratio: unbiased for the KL divergence to the reference under samples of the policy."""
    return logprobs - reference_logprobs


def kl_k3(logprobs: torch.Tensor, reference_logprobs: torch.Tensor) -> torch.Tensor:
    """Schulman's third estimator: unbiased as well, never negative, and of lower variance."""
    difference = reference_logprobs - logprobs
    return difference.exp() - difference - 1.0


def approximate_kl(
    logprobs: torch.Tensor, old_logprobs: torch.Tensor, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """How far an update has moved the policy: KL(old || new) estimated on the old policy's samples."""
    return masked_mean(kl_k3(old_logprobs, logprobs), mask)


def clip_fraction(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    mask: torch.Tensor | None,
    clip_low: float,
    clip_high: float | None = None,
) -> torch.Tensor:
    """The share of decisions whose ratio has left the clipping range."""
    ratio = (logprobs - old_logprobs).exp()
    out = (ratio < 1.0 - clip_low) | (ratio > 1.0 + (clip_low if clip_high is None else clip_high))
    return masked_mean(out.to(logprobs.dtype), mask)
