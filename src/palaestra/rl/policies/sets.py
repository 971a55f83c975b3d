"""A policy for observations that are a set: a table with a row of features for each member, and an action for each.

The same small network reads every row together with the mean of all rows. So it does not depend on the order of the rows or
on their number: a policy that is trained with 18 skills can plan for 5.
"""

from __future__ import annotations

import gymnasium
import torch
from torch import nn

from palaestra.core.errors import EnvError
from palaestra.core.seeding import Seeds
from palaestra.envs.base import GymSpace
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
) -> ControlPolicy:
    """A policy whose actor and critic are a `SetNetwork`.

    Raises:
        EnvError: the observation is no table with a row for each element of an action.
    """
    if not is_set_space(observation_space, action_space):
        raise EnvError(
            f"expected a Box [rows, features] and an action for each row; got {observation_space}, {action_space}"
        )
    assert observation_space.shape is not None
    features = observation_space.shape[1]
    with fork_torch_rng(seeds.derive("policy")):
        actor = SetNetwork(features, width, layers, 0.01, pooled=False)
        critic = SetNetwork(features, width, layers, 1.0, pooled=True)
    return ControlPolicy(observation_space, action_space, actor, critic, scale_actions=scale_actions)
