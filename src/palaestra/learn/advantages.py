"""Advantages as pure functions. Axes are named: B sequences, T decisions, G groups, K members of a group.

A sequence is what follows itself in time: one environment over many episodes, or one episode. `ended`
marks the last decision of an episode; nothing flows backwards over it.
"""

from __future__ import annotations

import torch

ROUNDING = 8
"""Returns that differ by so few units of their last place are alike: the same rewards, paid in other turns."""


def generalised_advantages_BT(
    rewards_BT: torch.Tensor,
    values_BT: torch.Tensor,
    next_values_BT: torch.Tensor,
    terminated_BT: torch.Tensor,
    ended_BT: torch.Tensor,
    gamma: float,
    lam: float,
) -> torch.Tensor:
    """Generalised advantage estimation (Schulman et al. 2016).

    Arguments:
        next_values_BT: the value of the state that each decision led to. At the end of an episode this is
            the value of its *last* state, not of the first state of the next one.
        terminated_BT: decisions after which the episode was over for good: there is no value behind them.
        ended_BT: terminated or truncated. A truncated episode keeps the value of its last state: it was
            only cut.
        gamma, lam: discount, and how far the estimate looks before it trusts the value function.
    """
    going_on_BT = 1.0 - terminated_BT.to(rewards_BT.dtype)
    linked_BT = 1.0 - ended_BT.to(rewards_BT.dtype)
    delta_BT = rewards_BT + gamma * next_values_BT * going_on_BT - values_BT
    advantages_BT = torch.empty_like(delta_BT)
    running_B = torch.zeros_like(delta_BT[:, 0])
    for t in range(delta_BT.shape[1] - 1, -1, -1):
        running_B = delta_BT[:, t] + gamma * lam * linked_BT[:, t] * running_B
        advantages_BT[:, t] = running_B
    return advantages_BT


def discounted_returns_BT(
    rewards_BT: torch.Tensor,
    next_values_BT: torch.Tensor,
    terminated_BT: torch.Tensor,
    ended_BT: torch.Tensor,
    gamma: float,
) -> torch.Tensor:
    """The discounted sum of what follows each decision within its episode.

    Where an episode was cut rather than terminated, `next_values_BT` stands for what was cut off.
    """
    zeros_BT = torch.zeros_like(rewards_BT)
    # With lambda 1 and values 0 the recursion of the advantages is that of the returns.
    tail_BT = next_values_BT * (ended_BT & ~terminated_BT)
    return generalised_advantages_BT(
        rewards_BT + gamma * tail_BT, zeros_BT, zeros_BT, terminated_BT, ended_BT, gamma, 1.0
    )


def group_advantages_GK(
    returns_GK: torch.Tensor, valid_GK: torch.Tensor | None = None, scale: bool = True, epsilon: float = 1e-4
) -> torch.Tensor:
    """GRPO: how far each member of a group is above the group's mean, in its standard deviations.

    Members whose returns are alike get exactly 0: the rounding of a mean is no advantage, and an optimiser like Adam
    would make a full step of it.

    Arguments:
        valid_GK: members that count; a failed one has no return, moves no mean and gets 0.
        scale: divide by the standard deviation (unbiased, as in TRL). Dr. GRPO does not.
    """
    known_GK, valid_GK, count_G1 = _known(returns_GK, valid_GK)
    mean_G1 = known_GK.sum(-1, keepdim=True) / count_G1.clamp(min=1)
    found_GK = (known_GK - mean_G1) * valid_GK
    if scale:
        deviation_G1 = (found_GK.square().sum(-1, keepdim=True) / (count_G1 - 1).clamp(min=1)).sqrt()
        found_GK = found_GK / (deviation_G1 + epsilon)
    return (found_GK * _unlike_G1(returns_GK, valid_GK)).to(returns_GK.dtype)


def leave_one_out_GK(returns_GK: torch.Tensor, valid_GK: torch.Tensor | None = None) -> torch.Tensor:
    """RLOO (Ahmadian et al. 2024): each return less the mean of the *other* members of its group.

    A member without valid others has nothing to be compared with and gets 0; so do members whose returns are alike.
    """
    known_GK, valid_GK, count_G1 = _known(returns_GK, valid_GK)
    others_GK = count_G1 - valid_GK
    baseline_GK = (known_GK.sum(-1, keepdim=True) - known_GK) / others_GK.clamp(min=1)
    found_GK = (known_GK - baseline_GK) * valid_GK * (others_GK > 0)
    return (found_GK * _unlike_G1(returns_GK, valid_GK)).to(returns_GK.dtype)


def _known(returns_GK: torch.Tensor, valid_GK: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The returns that count (0 for the others), which they are, and how many of a group; see `precise`."""
    valid_GK = precise(torch.ones_like(returns_GK) if valid_GK is None else valid_GK.to(returns_GK.dtype))
    known_GK = torch.where(valid_GK > 0, precise(returns_GK), 0.0)
    return known_GK, valid_GK, valid_GK.sum(-1, keepdim=True)


def precise(values: torch.Tensor) -> torch.Tensor:
    """Values with 64 bits, in which the mean of equal ones is their value; Apple's GPUs have 32 at most."""
    return values if values.device.type == "mps" else values.double()


def _unlike_G1(returns_GK: torch.Tensor, valid_GK: torch.Tensor) -> torch.Tensor:
    """Which groups have valid members whose returns differ."""
    high_G1 = returns_GK.where(valid_GK > 0, -torch.inf).amax(-1, keepdim=True)
    low_G1 = returns_GK.where(valid_GK > 0, torch.inf).amin(-1, keepdim=True)
    return _differ(high_G1, low_G1, returns_GK.dtype)


def _differ(high: torch.Tensor, low: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Whether two numbers are further apart than rounding takes them."""
    return high - low > ROUNDING * torch.finfo(dtype).eps * torch.maximum(high.abs(), low.abs())


def normalised(advantages: torch.Tensor, mask: torch.Tensor | None = None, epsilon: float = 1e-8) -> torch.Tensor:
    """Mean 0 and standard deviation 1 over what `mask` keeps; 0 elsewhere, and everywhere where those are alike."""
    kept = advantages if mask is None else advantages[mask.bool()]
    if kept.numel() < 2:
        return advantages if mask is None else advantages * mask
    low, high = kept.aminmax()
    if not _differ(high, low, advantages.dtype):
        return torch.zeros_like(advantages)
    found = (advantages - kept.mean()) / (kept.std() + epsilon)
    return found if mask is None else found * mask


def explained_variance(values: torch.Tensor, returns: torch.Tensor) -> float:
    """The share of the returns' variance that the value function foresaw: 1 is all, 0 is none."""
    variance = float(returns.var()) if returns.numel() > 1 else 0.0
    return float("nan") if variance == 0.0 else 1.0 - float((returns - values).var()) / variance
