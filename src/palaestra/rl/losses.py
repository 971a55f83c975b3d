"""Losses as pure functions of any shape. A mask marks the entries that are decisions; the others are padding.

Losses per token are computed first and aggregated afterwards: the aggregation is the difference between the variants of
GRPO, see `aggregate_losses`.
"""

from __future__ import annotations

from typing import Literal

import torch

LossAggregation = Literal["token", "sequence", "constant"]


def mean_where(values: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """The mean of the masked entries; 0 if the mask is empty."""
    return values.mean() if mask is None else (values * mask).sum() / mask.sum().clamp(min=1)


def compute_policy_loss(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    clip_range: float,
    clip_range_high: float | None = None,
) -> torch.Tensor:
    """PPO's clipped surrogate of each decision, negated.

    Arguments:
        clip_range_high: the clipping range above 1; by default `clip_range`. DAPO's "clip-higher" sets a larger one,
            so that the probability of rare tokens can grow.
    """
    ratio = (logprobs - old_logprobs).exp()
    clipped = ratio.clamp(1.0 - clip_range, 1.0 + (clip_range if clip_range_high is None else clip_range_high))
    return -torch.minimum(ratio * advantages, clipped * advantages)


def compute_importance_weights(
    logprobs: torch.Tensor, sampling_logprobs: torch.Tensor, clip_max: float
) -> torch.Tensor:
    """The probability under the learner over the probability when it was sampled, truncated at `clip_max`."""
    return (logprobs - sampling_logprobs).exp().clamp(max=clip_max)


def compute_sequence_logprobs_BT(
    logprobs_BT: torch.Tensor, old_logprobs_BT: torch.Tensor, mask_BT: torch.Tensor
) -> torch.Tensor:
    """Log-probs whose ratio to the old ones is constant in a sequence (GSPO): the mean of its log-ratios.

    Every token has the ratio of its sequence, and the gradient reaches every token, as in the paper.
    """
    logratio_BT = (logprobs_BT - old_logprobs_BT) * mask_BT
    mean_B1 = logratio_BT.sum(-1, keepdim=True) / mask_BT.sum(-1, keepdim=True).clamp(min=1)
    return old_logprobs_BT + mean_B1


def aggregate_losses(
    losses_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    loss_aggregation: LossAggregation,
    num_sequences: float,
    num_tokens: float,
    max_length: int,
) -> torch.Tensor:
    """Aggregate the losses of the tokens of a microbatch.

    Arguments:
        loss_aggregation: `"sequence"` averages within each sequence, then over sequences (GRPO as published: tokens of
            long responses have less weight); `"token"` averages over all tokens (DAPO); `"constant"` divides by the
            maximum length (Dr. GRPO: no length bias).
        num_sequences, num_tokens: counts of the whole minibatch, so that the losses of its microbatches add up to its loss.
        max_length: the maximum number of tokens of a response.
    """
    if loss_aggregation == "token":
        return (losses_BT * mask_BT).sum() / max(num_tokens, 1.0)
    if loss_aggregation == "sequence":
        return ((losses_BT * mask_BT).sum(-1) / mask_BT.sum(-1).clamp(min=1)).sum() / max(num_sequences, 1.0)
    return (losses_BT * mask_BT).sum() / max(num_sequences * max_length, 1.0)


def compute_value_loss(
    values: torch.Tensor, old_values: torch.Tensor, returns: torch.Tensor, clip_range_vf: float | None
) -> torch.Tensor:
    """Half the squared error of each value; with `clip_range_vf`, the maximum over the clipped and the plain value."""
    loss = (values - returns).square()
    if clip_range_vf is not None:
        clipped = old_values + (values - old_values).clamp(-clip_range_vf, clip_range_vf)
        loss = torch.maximum(loss, (clipped - returns).square())
    return 0.5 * loss


def kl_k1(logprobs: torch.Tensor, reference_logprobs: torch.Tensor) -> torch.Tensor:
    """The log-ratio: an unbiased estimator of KL(policy || reference) on samples of the policy."""
    return logprobs - reference_logprobs


def kl_k3(logprobs: torch.Tensor, reference_logprobs: torch.Tensor) -> torch.Tensor:
    """Schulman's k3 estimator of KL(policy || reference): unbiased, never negative, of lower variance than k1."""
    difference = reference_logprobs - logprobs
    return difference.exp() - difference - 1.0


def approximate_kl(
    logprobs: torch.Tensor, old_logprobs: torch.Tensor, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """Estimate KL(old || new) on samples of the old policy: how far an update has moved the policy."""
    return mean_where(kl_k3(old_logprobs, logprobs), mask)


def compute_clip_fraction(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    mask: torch.Tensor | None,
    clip_range: float,
    clip_range_high: float | None = None,
) -> torch.Tensor:
    """The fraction of decisions whose ratio is outside the clipping range."""
    ratio = (logprobs - old_logprobs).exp()
    high = clip_range if clip_range_high is None else clip_range_high
    outside = (ratio < 1.0 - clip_range) | (ratio > 1.0 + high)
    return mean_where(outside.to(logprobs.dtype), mask)


def compute_clip_ratios(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    clip_range: float,
    clip_range_high: float | None = None,
) -> dict[str, torch.Tensor]:
    """The fraction of decisions that get no gradient because of clipping, under TRL's names.

    Below the range this happens only with a negative advantage (`low_mean`), above it only with a positive one (`high_mean`).
    """
    ratio = (logprobs - old_logprobs).exp()
    low = (ratio < 1.0 - clip_range) & (advantages < 0)
    high = (ratio > 1.0 + (clip_range if clip_range_high is None else clip_range_high)) & (advantages > 0)
    masks = {"low": low, "high": high, "region": low | high}
    return {f"clip_ratio/{name}_mean": mean_where(clipped.float(), mask) for name, clipped in masks.items()}
