"""A new algorithm is one class and one registration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from palaestra import train
from palaestra.core.errors import UnknownNameError
from palaestra.learn.algorithms import ALGORITHMS, Algorithm
from palaestra.learn.policies.networks import MLPActorNetwork
from palaestra.learn.rollouts import Rollout, everything
from palaestra.learn.updates import Optimizer, gradient_step
from palaestra.recipes.compat.train_agent import train_agent


@dataclass(frozen=True)
class CloningConfig:
    rate: float = 1e-2


class Cloning(Algorithm):
    """Makes likelier what was done, whatever it brought."""

    Config = CloningConfig

    def make_optimizer(self) -> Optimizer:
        return Optimizer(self.policy.parameter_groups(self.config.rate, self.config.rate)[:1], 1.0, 0.0)

    @classmethod
    def configured(cls, settings: Any, policy: Any, kl: float) -> CloningConfig:
        return CloningConfig(settings.learning_rate)

    def update(self, rollout: Rollout, iteration: int, progress_remaining: float = 1.0) -> dict[str, float]:
        whole = everything(rollout, self.policy.by_sequence, rollout.mask_BT.numel())[0]

        def loss(microbatch: Any) -> torch.Tensor:
            found: torch.Tensor = -self.policy.evaluate_actions(rollout, microbatch, values=False).logprobs.mean()
            return found

        return {"surprise": float(loss(whole).detach()), "norm": gradient_step(self.optimizer, whole, 10**6, loss)}


@pytest.fixture
def cloning() -> Any:
    ALGORITHMS.register("cloning", Cloning, "a test's own")
    yield
    del ALGORITHMS._entries["cloning"], ALGORITHMS._descriptions["cloning"]


def test_a_registered_algorithm_trains_by_name_and_by_its_settings(cloning: None, tmp_path: Path) -> None:
    seen: list[float] = []
    train(
        env="CartPole-v1", algorithm="cloning", iterations=4, slots=8, steps=32, evaluation=0, learning_rate=1e-2,
        out=tmp_path / "run", callbacks=[lambda it: seen.append(it.metrics["surprise"])],
    )  # fmt: skip
    assert seen[-1] < seen[0]
    actor = MLPActorNetwork(4, 8, 2)
    train_agent("CartPole-v1", actor, ppo_config=CloningConfig(), max_episodes=4, update_interval=2, save_interval=0)


def test_an_algorithm_that_nobody_registered_is_named_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="grpo"):
        train(env="CartPole-v1", algorithm="grp")
