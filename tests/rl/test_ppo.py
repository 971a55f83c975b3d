"""PPO learns in a small environment; it, GRPO and RLOO stop their epochs at the target KL."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from corridor_env import Corridor, make_corridors
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from palaestra.core.seeding import Seeds
from palaestra.rl.algorithms import Algorithm
from palaestra.rl.collection import ControlCollector
from palaestra.rl.grpo import GRPO
from palaestra.rl.policies.control import mlp_policy
from palaestra.rl.ppo import PPO, PPOConfig
from palaestra.rl.rloo import RLOO


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


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [(PPO, {"batch_size": 16}), (GRPO, {"group_size": 2, "num_minibatches": 2}), (RLOO, {"group_size": 2})],
)
def test_target_kl_stops_the_epochs(kind: type[Algorithm], sizes: dict[str, int]) -> None:
    def count_epochs(target_kl: float | None) -> float:
        env = make_corridors(4, AutoresetMode.SAME_STEP)
        policy = mlp_policy(env.single_observation_space, env.single_action_space)
        rollout = ControlCollector(env, policy).collect_episodes(2, 7, torch.Generator().manual_seed(0), 10)
        rollout.rewards_BT[:, 0] += torch.tensor([1.0, 0.0, 2.0, 0.0])
        config = kind.Config(learning_rate=0.1, n_epochs=20, target_kl=target_kl, **sizes)
        return kind(policy, config).update(rollout, 0)["n_epochs"]

    assert count_epochs(None) == 20
    assert count_epochs(0.01) < 20
    assert count_epochs(1e9) == 20
