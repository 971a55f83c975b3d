"""GRPO and its variants."""

from __future__ import annotations

import pytest
import torch
from corridor_env import make_corridors
from gymnasium.vector import AutoresetMode

from palaestra.rl.collection import ControlCollector
from palaestra.rl.grpo import GRPO, GRPOConfig
from palaestra.rl.policies.control import mlp_policy


def test_dr_grpo_divides_by_a_constant_of_the_run() -> None:
    norms = []
    for limit in (10, 20):
        env = make_corridors(4, AutoresetMode.SAME_STEP)
        policy = mlp_policy(env.single_observation_space, env.single_action_space)
        rollout = ControlCollector(env, policy).collect_episodes(2, 7, torch.Generator().manual_seed(0), limit)
        rollout.rewards_BT[:, 0] += torch.tensor([1.0, 0.0, 2.0, 0.0])
        assert (rollout.get_episodes().limit, rollout.mask_BT.shape[1]) == (limit, 5)
        config = GRPOConfig(variant="dr_grpo", group_size=2, max_grad_norm=0.0)
        norms.append(GRPO(policy, config).update(rollout, 0)["grad_norm"])
    assert norms[0] == pytest.approx(2 * norms[1], rel=1e-4)
