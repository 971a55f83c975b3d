"""Advantages and losses as pure functions.

Axes of advantages: B sequences, T actions, N turns, G groups, K members of a group. A sequence is one environment over
many episodes, or one episode. `ended` marks the last action of an episode; no advantage flows backwards across it. The
functions with `_BT` also take the turns of sequences, `[B, N]` (`palaestra.rl.rollouts.Turns`).

Losses have any shape. A mask marks the entries that are actions; the others are padding. Losses per token are computed
first and aggregated afterwards: the aggregation is the difference between the variants of GRPO, see `aggregate_losses`.
"""

from __future__ import annotations

import math
from typing import Literal

import torch

_ROUNDING = 8
"""Returns that differ by at most this many units in the last place count as equal: they sum the same rewards in another order."""


def compute_gae_BT(
    rewards_BT: torch.Tensor,
    values_BT: torch.Tensor,
    next_values_BT: torch.Tensor,
    terminated_BT: torch.Tensor,
    ended_BT: torch.Tensor,
    gamma: float,
    gae_lambda: float,
) -> torch.Tensor:
    """Generalized advantage estimation (Schulman et al. 2016).

    Arguments:
        next_values_BT: the value of the state after each action. At the end of an episode this is the value of its
            *last* state, not of the first state of the next episode.
        terminated_BT: last actions of episodes after which nothing follows; the value after them is 0.
        ended_BT: last actions of all episodes. Those that are not in `terminated_BT` are bootstrapped with
            `next_values_BT`.
        gamma, gae_lambda: the discount factor, and the trade-off between bias and variance.
    """
    continues_BT = 1.0 - terminated_BT.to(rewards_BT.dtype)
    linked_BT = 1.0 - ended_BT.to(rewards_BT.dtype)
    delta_BT = rewards_BT + gamma * next_values_BT * continues_BT - values_BT
    advantages_BT = torch.empty_like(delta_BT)
    running_B = torch.zeros_like(delta_BT[:, 0])
    for t in range(delta_BT.shape[1] - 1, -1, -1):
        running_B = delta_BT[:, t] + gamma * gae_lambda * linked_BT[:, t] * running_B
        advantages_BT[:, t] = running_B
    return advantages_BT


def compute_returns_BT(
    rewards_BT: torch.Tensor,
    next_values_BT: torch.Tensor,
    terminated_BT: torch.Tensor,
    ended_BT: torch.Tensor,
    gamma: float,
) -> torch.Tensor:
    """The discounted sum of the rewards from each action to the end of its episode.

    At an end that is not in `terminated_BT`, `next_values_BT` estimates the missing rewards.
    """
    zeros_BT = torch.zeros_like(rewards_BT)
    # With lambda 1 and values 0 the recursion of GAE is that of the returns.
    tail_BT = next_values_BT * (ended_BT & ~terminated_BT)
    return compute_gae_BT(rewards_BT + gamma * tail_BT, zeros_BT, zeros_BT, terminated_BT, ended_BT, gamma, 1.0)


def compute_group_advantages_GK(
    returns_GK: torch.Tensor, valid_GK: torch.Tensor | None = None, scale: bool = True, epsilon: float = 1e-4
) -> torch.Tensor:
    """GRPO: the difference between each return and the mean of its group, in standard deviations of the group.

    Members of a group with equal returns get exactly 0: Adam would turn the rounding error of a mean into a full step.

    Arguments:
        valid_GK: members with a known return; the others are excluded from the mean and get 0.
        scale: divide by the standard deviation (unbiased, as in TRL). Dr. GRPO does not.
    """
    known_GK, valid_GK, count_G1 = _select_valid(returns_GK, valid_GK)
    mean_G1 = known_GK.sum(-1, keepdim=True) / count_G1.clamp(min=1)
    advantages_GK = (known_GK - mean_G1) * valid_GK
    if scale:
        deviation_G1 = (advantages_GK.square().sum(-1, keepdim=True) / (count_G1 - 1).clamp(min=1)).sqrt()
        advantages_GK = advantages_GK / (deviation_G1 + epsilon)
    return (advantages_GK * _has_variance_G1(returns_GK, valid_GK)).to(returns_GK.dtype)


def compute_leave_one_out_advantages_GK(returns_GK: torch.Tensor, valid_GK: torch.Tensor | None = None) -> torch.Tensor:
    """RLOO (Ahmadian et al. 2024): each return minus the mean of the *other* valid members of its group.

    A member without other valid members gets 0, and so do members of a group with equal returns.
    """
    known_GK, valid_GK, count_G1 = _select_valid(returns_GK, valid_GK)
    others_GK = count_G1 - valid_GK
    baseline_GK = (known_GK.sum(-1, keepdim=True) - known_GK) / others_GK.clamp(min=1)
    advantages_GK = (known_GK - baseline_GK) * valid_GK * (others_GK > 0)
    return (advantages_GK * _has_variance_G1(returns_GK, valid_GK)).to(returns_GK.dtype)


def compute_turn_leave_one_out_advantages_GKN(returns_GKN: torch.Tensor, reached_GKN: torch.Tensor) -> torch.Tensor:
    """RLOO per turn: the return from each turn on, minus the mean return of the *other* valid members from the same turn on.

    An episode that has ended before a turn has a return of 0 there. So the baseline depends on the index of the turn and on
    other episodes, never on what the own episode does from this turn on, and the policy gradient is unbiased. Subtracting the
    mean reward of each later turn that the own episode reaches is biased, because the policy chooses how many there are.

    Arguments:
        returns_GKN: the discounted rewards from each turn to the end of its episode; 0 after the end.
        reached_GKN: the turns of the valid members.
    """
    rows, valid, shape = _arrange_by_turn(returns_GKN, reached_GKN)
    return compute_leave_one_out_advantages_GK(rows, valid).view(shape).transpose(1, 2) * reached_GKN


def compute_turn_group_advantages_GKN(
    returns_GKN: torch.Tensor, reached_GKN: torch.Tensor, scale: bool = True, epsilon: float = 1e-4
) -> torch.Tensor:
    """GRPO per turn, with the baseline of `compute_turn_leave_one_out_advantages_GKN` up to the factor (K - 1) / K.

    With one turn per episode it equals `compute_group_advantages_GK`.

    Arguments:
        scale: divide by the standard deviation of the advantages of all turns, one number per group.
    """
    rows, valid, shape = _arrange_by_turn(returns_GKN, reached_GKN)
    advantages_GKN = compute_group_advantages_GK(rows, valid, scale=False).view(shape).transpose(1, 2) * reached_GKN
    if not scale:
        return advantages_GKN
    count_G11, turns_G11 = reached_GKN[..., :1].sum(1, keepdim=True), reached_GKN.sum((1, 2), keepdim=True)
    variance_G11 = to_double(advantages_GKN).square().sum((1, 2), keepdim=True) / turns_G11.clamp(min=1)
    deviation_G11 = (variance_G11 * count_G11 / (count_G11 - 1).clamp(min=1)).sqrt()
    return (advantages_GKN / (deviation_G11 + epsilon)).to(returns_GKN.dtype)


def _arrange_by_turn(
    returns_GKN: torch.Tensor, reached_GKN: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, tuple[int, int, int]]:
    """Each turn of a group as a group of its own: returns and valid members `[G * N, K]`, and the shape `[G, N, K]`."""
    groups, members, turns = returns_GKN.shape
    valid_GNK = reached_GKN[..., :1].expand_as(returns_GKN).transpose(1, 2)
    rows = returns_GKN.transpose(1, 2).reshape(-1, members)
    return rows, valid_GNK.reshape(-1, members), (groups, turns, members)


def compute_frac_reward_zero_std(returns_GK: torch.Tensor, valid_GK: torch.Tensor) -> float:
    """The fraction of groups in which all returns are equal, of those with at least two valid members (`is_std_zero` of TRL)."""
    has_std_G1 = valid_GK.sum(-1, keepdim=True) > 1
    is_zero_G1 = has_std_G1 & ~_has_variance_G1(returns_GK, valid_GK.to(returns_GK.dtype)).bool()
    return float(is_zero_G1.sum() / has_std_G1.sum().clamp(min=1))


def normalize(advantages: torch.Tensor, mask: torch.Tensor | None = None, epsilon: float = 1e-8) -> torch.Tensor:
    """Scale to mean 0 and standard deviation 1 over the masked entries; 0 elsewhere, and everywhere if all are equal."""
    kept = advantages if mask is None else advantages[mask.bool()]
    if kept.numel() < 2:
        return advantages if mask is None else advantages * mask
    low, high = kept.aminmax()
    if not _differ(high, low, advantages.dtype):
        return torch.zeros_like(advantages)
    scaled = (advantages - kept.mean()) / (kept.std() + epsilon)
    return scaled if mask is None else scaled * mask


def measure_values(values: torch.Tensor, returns: torch.Tensor) -> dict[str, float]:
    """Compare a critic with the returns: the means of both, and the explained variance if the returns vary.

    A mean value that stays above every possible return shows that rewards are counted twice.
    """
    if not returns.numel():
        return {}
    metrics = {"value_mean": float(values.mean()), "return_mean": float(returns.mean())}
    explained_variance = compute_explained_variance(values, returns)
    return metrics if math.isnan(explained_variance) else metrics | {"explained_variance": explained_variance}


def compute_explained_variance(values: torch.Tensor, returns: torch.Tensor) -> float:
    """The fraction of the variance of the returns that the value function explains; NaN if they are equal up to rounding.

    Returns are sums of advantages and values, so their rounding errors grow with both.
    """
    if returns.numel() < 2:
        return math.nan
    scale = max(float(returns.abs().max()), float(values.abs().max()))
    if float(returns.max() - returns.min()) <= 1e-5 * scale:
        return math.nan
    return 1.0 - float((returns - values).var() / returns.var())


def to_double(values: torch.Tensor) -> torch.Tensor:
    """Convert to double precision, in which the mean of equal values is exact. Apple's GPUs have single precision only."""
    return values if values.device.type == "mps" else values.double()


def _select_valid(
    returns_GK: torch.Tensor, valid_GK: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The valid returns (0 for the others), the mask of the valid ones, and their number per group; in double precision."""
    valid_GK = to_double(torch.ones_like(returns_GK) if valid_GK is None else valid_GK.to(returns_GK.dtype))
    known_GK = torch.where(valid_GK > 0, to_double(returns_GK), 0.0)
    return known_GK, valid_GK, valid_GK.sum(-1, keepdim=True)


def _has_variance_G1(returns_GK: torch.Tensor, valid_GK: torch.Tensor) -> torch.Tensor:
    """Whether the returns of the valid members of each group differ."""
    high_G1 = returns_GK.where(valid_GK > 0, -torch.inf).amax(-1, keepdim=True)
    low_G1 = returns_GK.where(valid_GK > 0, torch.inf).amin(-1, keepdim=True)
    return _differ(high_G1, low_G1, returns_GK.dtype)


def _differ(high: torch.Tensor, low: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Whether two numbers differ by more than rounding."""
    return high - low > _ROUNDING * torch.finfo(dtype).eps * torch.maximum(high.abs(), low.abs())


LossAggregation = Literal["token", "turn", "sequence", "constant"]


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
    """PPO's clipped surrogate of each action, negated.

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
            long responses have less weight); `"token"` averages over all tokens (DAPO); `"turn"` does the same with a mask
            whose weights add up to 1 in each turn (`Turns.weights_BT`); `"constant"` divides by the maximum length (Dr. GRPO:
            no length bias).
        num_sequences, num_tokens: counts of the whole minibatch, so that the losses of its microbatches add up to its loss.
        max_length: the maximum number of tokens of a response.
    """
    if loss_aggregation in ("token", "turn"):
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
    """The fraction of actions whose ratio is outside the clipping range."""
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
    """The fraction of actions that get no gradient because of clipping, under TRL's names.

    Below the range this happens only with a negative advantage (`low_mean`), above it only with a positive one (`high_mean`).
    """
    ratio = (logprobs - old_logprobs).exp()
    low = (ratio < 1.0 - clip_range) & (advantages < 0)
    high = (ratio > 1.0 + (clip_range if clip_range_high is None else clip_range_high)) & (advantages > 0)
    masks = {"low": low, "high": high, "region": low | high}
    return {f"clip_ratio/{name}_mean": mean_where(clipped.float(), mask) for name, clipped in masks.items()}
