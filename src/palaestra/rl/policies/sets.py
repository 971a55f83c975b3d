"""A policy for observations that are a set: a table with a row of features for each member, and an action for each.

The same small network reads every row together with the mean of all rows. So it does not depend on the order of the rows or
on their number: a policy that is trained with 18 skills can plan for 5.
"""

from __future__ import annotations

from collections.abc import Sequence

import gymnasium
import torch
from torch import nn

from palaestra.core.errors import EnvError
from palaestra.core.seeding import Seeds
from palaestra.envs.base import GymSpace
from palaestra.envs.lesson.flat import FEATURES, SHARPNESS
from palaestra.rl.optimizers import fork_torch_rng
from palaestra.rl.policies.control import ControlPolicy, mlp


class SetNetwork(nn.Module):
    """One value per row of a table, or one value per table.

    Arguments:
        features: number of features of a row.
        pooled: return the mean over the rows.
    """

    def __init__(self, features: int, width: int, layers: int, last_gain: float, pooled: bool) -> None:
        super().__init__()
        self.features, self.pooled = features, pooled
        self.rows = mlp([2 * features, *[width] * layers, 1], last_gain, nn.Tanh)

    def forward(self, tables_BF: torch.Tensor) -> torch.Tensor:
        tables_BRF = tables_BF.view(*tables_BF.shape[:-1], -1, self.features)
        means_BRF = tables_BRF.mean(-2, keepdim=True).expand_as(tables_BRF)
        values_BR: torch.Tensor = self.rows(torch.cat([tables_BRF, means_BRF], -1))[..., 0]
        return values_BR.mean(-1, keepdim=True) if self.pooled else values_BR


class PlanNetwork(nn.Module):
    """The value of each skill in a lesson, as a weighted sum of a few functions of its features (`FEATURES`).

    At the start only the first function has a weight: examples are divided by p(1 - p), where p is a skill's accuracy.
    """

    NUM_WEIGHTS = 9

    def __init__(self, weights: Sequence[float] = (1.0, *[0.0] * (NUM_WEIGHTS - 1))) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.tensor(list(weights)))

    def forward(self, tables_BF: torch.Tensor) -> torch.Tensor:
        tables_BSF = tables_BF.view(*tables_BF.shape[:-1], -1, len(FEATURES))
        accuracy, last_change, change, fraction, left = tables_BSF.unbind(-1)
        learnable = (accuracy * (1 - accuracy) + 0.02).log() / SHARPNESS
        fraction = fraction * accuracy.shape[-1] / 4
        unknown = (accuracy < 0.06).to(accuracy.dtype)
        terms = (
            learnable,
            accuracy,
            accuracy**2,
            last_change,
            change,
            fraction,
            left * accuracy,
            left * learnable,
            unknown,
        )
        values_BS = torch.stack(terms, -1) @ self.weights
        # Only differences count: move the highest values between the bounds of an action, -1 and 1.
        high_B1 = values_BS.amax(-1, keepdim=True)
        low_B1 = values_BS.amin(-1, keepdim=True).maximum(high_B1 - 2)
        return (values_BS - (high_B1 + low_B1) / 2).clamp(-1, 1)


def is_set_space(observation_space: GymSpace, action_space: GymSpace) -> bool:
    """Whether an observation is a table with a row for each element of an action."""
    rows = action_space.n if isinstance(action_space, gymnasium.spaces.Discrete) else (action_space.shape or (0,))[0]
    shape = observation_space.shape
    return (
        isinstance(observation_space, gymnasium.spaces.Box)
        and shape is not None
        and len(shape) == 2
        and shape[0] == rows
    )


def set_policy(
    observation_space: GymSpace,
    action_space: GymSpace,
    width: int = 64,
    layers: int = 2,
    seeds: Seeds = Seeds(0),
    scale_actions: bool = True,
    plan: bool = False,
) -> ControlPolicy:
    """A policy whose actor and critic are a `SetNetwork`.

    Arguments:
        plan: use a `PlanNetwork` as the actor.

    Raises:
        EnvError: the observation is no table with a row for each element of an action; for a plan: with other features.
    """
    if not is_set_space(observation_space, action_space):
        raise EnvError(
            f"expected a Box [rows, features] and an action for each row; got {observation_space}, {action_space}"
        )
    assert observation_space.shape is not None
    features = observation_space.shape[1]
    if plan and features != len(FEATURES):
        raise EnvError(f"expected the {len(FEATURES)} features of palaestra/Lesson-v0; got {features}")
    with fork_torch_rng(seeds.derive("policy")):
        actor = PlanNetwork() if plan else SetNetwork(features, width, layers, 0.01, pooled=False)
        critic = SetNetwork(features, width, layers, 1.0, pooled=True)
    return ControlPolicy(observation_space, action_space, actor, critic, scale_actions=scale_actions)
