"""The update of REINFORCE follows the policy gradient with each of its baselines."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from corridor_env import make_corridors
from gymnasium.vector import AutoresetMode

from palaestra.rl.collection import ControlCollector
from palaestra.rl.policies.control import mlp_policy
from palaestra.rl.reinforce import REINFORCE, REINFORCEConfig
from palaestra.rl.rollouts import select_sequences


@pytest.mark.parametrize("baseline", ["none", "batch"])
def test_gradient_weights_log_probs_by_discounted_returns(baseline: Literal["none", "batch"]) -> None:
    env = make_corridors(3, AutoresetMode.SAME_STEP)
    policy = mlp_policy(env.single_observation_space, env.single_action_space)
    rollout = ControlCollector(env, policy).collect_episodes(1, 7, torch.Generator().manual_seed(0), 100)
    rollout.rewards_BT[:, 2] += torch.tensor([1.0, 0.0, 5.0])

    rewards_BT, gamma = rollout.rewards_BT, 0.5
    returns_BT = torch.stack([sum(gamma ** (k - t) * rewards_BT[:, k] for k in range(t, 5)) for t in range(5)], 1)
    advantages_BT = returns_BT - (returns_BT.mean(0) if baseline == "batch" else 0.0)
    logprobs_BT = policy.evaluate_actions(rollout, select_sequences(rollout, range(3)), values=False).logprobs
    gradients = torch.autograd.grad(-(advantages_BT * logprobs_BT).mean(), list(policy.actor.parameters()))
    expected = float(torch.cat([gradient.flatten() for gradient in gradients]).norm())

    config = REINFORCEConfig(baseline=baseline, gamma=gamma, normalize_advantage=False, max_grad_norm=0.0)
    metrics = REINFORCE(policy, config).update(rollout, 0)
    assert metrics["grad_norm"] == pytest.approx(expected, rel=1e-4)
