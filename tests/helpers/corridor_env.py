"""A corridor of a few steps with any action space, for rollouts of control policies."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

SPACES = {
    "discrete": gymnasium.spaces.Discrete(3, start=2),
    "multi_discrete": gymnasium.spaces.MultiDiscrete([2, 4]),
    "multi_binary": gymnasium.spaces.MultiBinary(3),
    "box": gymnasium.spaces.Box(-2, 2, (2,), np.float32),
}


class Corridor(gymnasium.Env[Any, Any]):
    """Counts its steps; the reward is the step, the episode ends after `length` steps, by truncation if `cut`."""

    def __init__(self, length: int = 5, cut: bool = False, space: gymnasium.Space[Any] = SPACES["discrete"]) -> None:
        self.observation_space = gymnasium.spaces.Box(-1000, 1000, (2,), np.float32)
        self.action_space, self.length, self.cut, self.at = space, length, cut, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at, self.start = 0, float(self.np_random.integers(100))
        return np.array([self.start, 0], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self.at += 1
        over = self.at >= self.length
        return np.array([self.start, self.at], np.float32), float(self.at), over and not self.cut, over and self.cut, {}


def make_corridors(count: int, mode: AutoresetMode, **arguments: Any) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: Corridor(**arguments) for _ in range(count)], autoreset_mode=mode)
