"""PPO learns in a small environment, and stops its epochs at the target KL."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from corridor_env import Corridor, make_corridors
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from palaestra.core.seeding import Seeds
from palaestra.rl.collection import ControlCollector
from palaestra.rl.policies.control import mlp_policy
from palaestra.rl.ppo import PPO, PPOConfig


def test_ppo_learns_to_prefer_the_rewarded_action() -> None:
    class Bandit(Corridor):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            state, _, terminated, truncated, info = super().step(action)
            return state, float(action == 3), terminated, truncated, info

    env = SyncVectorEnv([Bandit for _ in range(8)], autoreset_mode=AutoresetMode.SAME_STEP)
    policy = mlp_policy(env.single_observation_space, env.single_action_space, seeds=Seeds(1), normalise=True)
    algorithm = PPO(
        policy, PPOConfig(learning_rate=1e-2, critic_learning_rate=1e-2, n_epochs=4, batch_size=64), Seeds(1)
    )
    collector = ControlCollector(env, policy)
    collector.start(0)
    generator = torch.Generator().manual_seed(0)
    policy.train()
    returns = []
    for iteration in range(12):
        rollout = collector.collect(20, generator)
        returns += rollout.stats.returns
        metrics = algorithm.update(rollout, iteration)
    assert np.mean(returns[:20]) < 2.5
    assert np.mean(returns[-20:]) > 4.0
    assert {"approx_kl", "clip_fraction", "explained_variance", "grad_norm"} <= set(metrics)


def test_target_kl_stops_the_epochs() -> None:
    env = make_corridors(4, AutoresetMode.SAME_STEP)
    policy = mlp_policy(env.single_observation_space, env.single_action_space)
    collector = ControlCollector(env, policy)
    collector.start(0)
    rollout = collector.collect(20, torch.Generator().manual_seed(0))
    config = PPOConfig(learning_rate=0.1, n_epochs=20, batch_size=16, target_kl=0.01)
    assert PPO(policy, config).update(rollout, 0)["n_epochs"] < 20
