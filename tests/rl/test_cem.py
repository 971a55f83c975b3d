"""The cross-entropy method: candidates act with their own weights, and the mean moves towards the best of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from corridor_env import make_corridors
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from small_training import Stop, stop_after
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import palaestra
from palaestra.core.errors import EnvError, SettingsError
from palaestra.core.seeding import Seeds
from palaestra.rl.cem import CEM, CEMConfig
from palaestra.rl.collection import ControlCollector
from palaestra.rl.policies.control import ControlPolicy, mlp_policy
from palaestra.rl.policies.sets import PlanNetwork, set_policy


def make_policy() -> ControlPolicy:
    return mlp_policy(spaces.Box(-1.0, 1.0, (3,)), spaces.Box(-1.0, 1.0, (2,)), [4])


def test_each_candidate_acts_with_its_own_weights() -> None:
    policy = make_policy()
    algorithm = CEM(policy, CEMConfig(group_size=5))
    inputs_NF = torch.randn(10, 3)
    actions_NA, _ = policy.act(inputs_NF, torch.Generator())
    mean_D = algorithm.optimizer.mean_D
    for slot in range(10):
        vector_to_parameters(algorithm.optimizer.candidates_KD[slot % 5], policy.actor.parameters())
        assert torch.allclose(actions_NA[slot], policy.actor(inputs_NF[slot]), atol=1e-3)
    vector_to_parameters(mean_D, policy.actor.parameters())
    # An evaluation plays the mean, which is also the first candidate.
    assert torch.allclose(policy.act_greedily(inputs_NF)[0], actions_NA[0], atol=1e-3)


def test_mean_and_deviation_are_those_of_the_best() -> None:
    env = make_corridors(8, AutoresetMode.SAME_STEP)
    policy = mlp_policy(env.single_observation_space, env.single_action_space, [2])
    config = CEMConfig(group_size=4, elite=0.5, learning_rate=1.0, deviation_rate=1.0, min_deviation=0.0)
    algorithm = CEM(policy, config)
    candidates_KD = algorithm.optimizer.candidates_KD
    rollout = ControlCollector(env, policy).collect_episodes(4, 7, torch.Generator().manual_seed(0), 50)
    rollout.rewards_BT[:] = 0.0
    # The second state pays 100 more to all. Candidate 3 failed in the first: that must not cost it 100.
    rollout.rewards_BT[:, 0] = torch.tensor([0.0, 3.0, 1.0, 0.0, 100.0, 103.0, 101.0, 106.0])
    rollout.get_episodes().valid_B[3] = False
    algorithm.update(rollout, 1)
    best_ED = candidates_KD[[1, 3]]
    assert torch.allclose(parameters_to_vector(policy.actor.parameters()), best_ED.mean(0), atol=1e-6)
    assert torch.allclose(algorithm.optimizer.deviation_D, best_ED.std(0), atol=1e-6)


def test_equal_returns_change_nothing() -> None:
    env = make_corridors(4, AutoresetMode.SAME_STEP)
    policy = mlp_policy(env.single_observation_space, env.single_action_space, [2])
    algorithm = CEM(policy, CEMConfig(group_size=4))
    before = algorithm.optimizer.mean_D
    rollout = ControlCollector(env, policy).collect_episodes(4, 7, torch.Generator().manual_seed(0), 50)
    rollout.rewards_BT[:] = 0.0
    assert algorithm.update(rollout, 1)["frac_reward_zero_std"] == 1.0
    assert torch.equal(algorithm.optimizer.mean_D, before)


class Aim(gymnasium.Env[np.ndarray, np.ndarray]):
    """One step: the best action is half of the first number that is seen."""

    observation_space, action_space = spaces.Box(-1.0, 1.0, (2,)), spaces.Box(-1.0, 1.0, (1,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.seen = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self.seen, {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return self.seen, -abs(float(action[0]) - float(self.seen[0]) / 2), True, False, {}


def test_actions_are_learned_without_gradients(tmp_path: Path) -> None:
    run = palaestra.train(
        env=Aim, algorithm="cem", num_envs=128, width=4, layers=1, evaluation=64, iterations=20, out=tmp_path / "run",
        progress=False,
    )  # fmt: skip
    assert run.summary["before"] < -0.2
    assert run.summary["after"] > -0.08


def test_a_resumed_run_reaches_the_same_weights(tmp_path: Path) -> None:
    settings = {
        "env": "CartPole-v1",
        "algorithm": "cem",
        "num_envs": 8,
        "group_size": 4,
        "width": 4,
        "layers": 1,
        "evaluation": 0,
    }
    settings |= {"iterations": 3, "checkpoint_every": 1}
    palaestra.train(**settings, out=tmp_path / "whole", progress=False)
    with pytest.raises(Stop):
        palaestra.train(**settings, out=tmp_path / "half", callbacks=[stop_after(2)], progress=False)
    palaestra.resume(tmp_path / "half", progress=False)
    weights = [palaestra.load_policy(tmp_path / name).actor.state_dict() for name in ("whole", "half")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_language_models_are_refused() -> None:
    with pytest.raises(SettingsError, match="classic"):
        CEM(torch.nn.Linear(1, 1))


def test_a_plan_starts_as_learnability_and_ignores_the_order() -> None:
    accuracy_S = np.array([0.1, 0.3, 0.5, 0.9], dtype=np.float32)
    table_SF = np.zeros((4, 5), dtype=np.float32)
    table_SF[:, 0], table_SF[:, 3], table_SF[:, 4] = accuracy_S, 0.25, 1.0
    network = PlanNetwork()
    values_S = network(torch.from_numpy(table_SF).flatten()).detach().numpy()
    shares_S = np.exp(2 * values_S) / np.exp(2 * values_S).sum()
    expected_S = accuracy_S * (1 - accuracy_S) + 0.02
    assert shares_S == pytest.approx(expected_S / expected_S.sum(), rel=1e-4)
    moved = network(torch.from_numpy(table_SF[::-1].copy()).flatten()).detach().numpy()
    assert moved == pytest.approx(values_S[::-1], abs=1e-6)


def test_a_plan_is_refused_for_other_tables() -> None:
    box = gymnasium.spaces.Box(-1.0, 1.0, (3, 2))
    with pytest.raises(EnvError, match="Lesson-v0"):
        set_policy(box, gymnasium.spaces.Box(-1.0, 1.0, (3,)), plan=True, seeds=Seeds(0))
