"""The update of RLOO follows the gradient of its published objective."""

from __future__ import annotations

import pytest
import torch
from corridor_env import make_corridors
from gymnasium.vector import AutoresetMode

from palaestra.rl.collection import ControlCollector
from palaestra.rl.policies.control import mlp_policy
from palaestra.rl.rloo import RLOO, RLOOConfig
from palaestra.rl.rollouts import select_sequences


def test_gradient_compares_each_return_with_the_others() -> None:
    env = make_corridors(6, AutoresetMode.SAME_STEP)
    policy = mlp_policy(env.single_observation_space, env.single_action_space)
    rollout = ControlCollector(env, policy).collect_episodes(3, 7, torch.Generator().manual_seed(0), 100)
    rollout.rewards_BT[:, 0] += torch.tensor([1.0, 0.0, 5.0, 2.0, 0.0, 4.0])

    advantages_B = torch.tensor([-1.5, -3.0, 4.5, 0.0, -3.0, 3.0])  # Each less the mean of the other two of its group.
    logprobs_B = policy.evaluate_actions(rollout, select_sequences(rollout, range(6)), values=False).logprobs.sum(-1)
    gradients = torch.autograd.grad(-(advantages_B * logprobs_B).mean(), list(policy.actor.parameters()))
    expected = float(torch.cat([gradient.flatten() for gradient in gradients]).norm())

    metrics = RLOO(policy, RLOOConfig(group_size=3, max_grad_norm=0.0)).update(rollout, 0)
    assert metrics["grad_norm"] == pytest.approx(expected, rel=1e-4)
