"""Advantages as pure functions. Axes: B sequences, T decisions, G groups, K members of a group.

A sequence is one environment over many episodes, or one episode. `ended` marks the last decision of an episode; no
advantage flows backwards across it.
"""

from __future__ import annotations

import math

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
        next_values_BT: the value of the state after each decision. At the end of an episode this is the value of its
            *last* state, not of the first state of the next episode.
        terminated_BT: last decisions of episodes after which nothing follows; the value after them is 0.
        ended_BT: last decisions of all episodes. Those that are not in `terminated_BT` are bootstrapped with
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
    """The discounted sum of the rewards from each decision to the end of its episode.

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
