"""A new algorithm is one class and one registration."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from palaestra import train
from palaestra.core.errors import SettingsError, UnknownNameError
from palaestra.core.settings import setting
from palaestra.integrations.gymformer.networks import MLPActorNetwork
from palaestra.integrations.gymformer.train_agent import train_agent
from palaestra.rl.algorithms import ALGORITHMS, Algorithm, AlgorithmConfig
from palaestra.rl.optimizers import Optimizer, training_mode
from palaestra.rl.rollouts import Rollout, select_all


@dataclass(frozen=True, kw_only=True)
class CloningConfig(AlgorithmConfig):
    sharpness: float = setting(1.0, "Factor of the log-probs.", above=0)


class Cloning(Algorithm):
    """Increases the probability of every action, whatever its reward."""

    Config = CloningConfig

    def make_optimizer(self) -> Optimizer:
        return Optimizer(self.policy.parameter_groups(self.config.learning_rate, self.config.learning_rate)[:1])

    def update(self, rollout: Rollout, iteration: int, progress_remaining: float = 1.0) -> dict[str, float]:
        with training_mode(self.policy):
            [batch] = select_all(rollout, self.policy.by_sequence)
            loss = -self.config.sharpness * self.policy.evaluate_actions(rollout, batch, values=False).logprobs.mean()
            loss.backward()
            grad_norm = self.optimizer.clip_grad_norm(self.config.max_grad_norm)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return {"surprise": float(loss.detach()), "grad_norm": grad_norm}


@pytest.fixture
def cloning() -> Any:
    ALGORITHMS.register("cloning", Cloning, "a test's own")
    yield
    del ALGORITHMS._entries["cloning"], ALGORITHMS._descriptions["cloning"]


def test_registered_algorithm_trains_by_name_and_settings(cloning: None, tmp_path: Path) -> None:
    seen: list[float] = []
    train(
        env="CartPole-v1",
        algorithm="cloning",
        iterations=4,
        num_envs=8,
        n_steps=32,
        evaluation=0,
        learning_rate=1e-2,
        sharpness=2.0,
        out=tmp_path / "run",
        callbacks=[lambda it: seen.append(it.metrics["surprise"])],
    )
    assert seen[-1] < seen[0]
    hyperparameters = json.loads((tmp_path / "run" / "settings.json").read_text())["settings"]["hyperparameters"]
    assert (hyperparameters["learning_rate"], hyperparameters["sharpness"]) == (1e-2, 2.0)
    with pytest.raises(SettingsError, match=r"'sharpness': .*above 0; got 0"):
        train(env="CartPole-v1", algorithm="cloning", sharpness=0.0)
    actor = MLPActorNetwork(4, 8, 2)
    train_agent("CartPole-v1", actor, ppo_config=CloningConfig(), max_episodes=4, update_interval=2, save_interval=0)


def test_unknown_algorithm_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownNameError, match="grpo"):
        train(env="CartPole-v1", algorithm="grp")


def test_a_hyperparameter_of_another_algorithm_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"'gae_lamda' .*'ppo'; .*'gae_lambda'"):
        train(env="CartPole-v1", gae_lamda=0.9)
    with pytest.raises(SettingsError, match=r"'group_size' .*grpo .*rloo; .*'ppo'"):
        train(env="CartPole-v1", group_size=4)
