"""Rewards that are scaled by the spread of the returns."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.wrappers.vector import NormalizeReward

from palaestra.rl.control_loop import RewardScale


def start_moments() -> torch.Tensor:
    return torch.tensor([1e-4, 0.0, 1.0], dtype=torch.float64)


def test_scaled_rewards_are_those_of_gymnasium() -> None:
    plain, scaled = (gymnasium.make_vec("Pendulum-v1", num_envs=3) for _ in range(2))
    reference: Any = NormalizeReward(scaled, gamma=0.97)
    for env in (plain, reference):
        env.reset(seed=0)
        env.action_space.seed(0)
    actions = [plain.action_space.sample() for _ in range(60)]
    rewards = np.stack([plain.step(action)[1] for action in actions], 1)
    expected = np.stack([reference.step(action)[1] for action in actions], 1)
    scale = RewardScale(start_moments(), 0.97, 3)
    every, never = np.ones_like(rewards, dtype=bool), np.zeros_like(rewards, dtype=bool)
    # Two rollouts continue each other.
    parts = [
        scale.scale(*(torch.from_numpy(table[:, part]) for table in (rewards, every, never)))
        for part in (slice(0, 25), slice(25, 60))
    ]
    assert np.allclose(torch.cat(parts, 1).numpy(), expected, atol=1e-4)


def test_returns_begin_anew_after_an_episode() -> None:
    scale = RewardScale(start_moments(), 1.0, 1)
    rewards, mask = torch.ones(1, 4), torch.tensor([[True, True, False, True]])
    scale.scale(rewards, mask, torch.tensor([[False, True, False, False]]))
    # The discounted returns are 1, 2 and, after the end and a step that only resets, 1.
    assert scale.returns_B.tolist() == [1.0]
    count, mean, variance = scale.moments.tolist()
    assert count == pytest.approx(3, abs=1e-3)
    assert mean == pytest.approx(4 / 3, abs=1e-3)
    assert variance == pytest.approx(np.var([1, 2, 1]), abs=1e-3)
