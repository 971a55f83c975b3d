"""Observations with several parts: features, images beside vectors, stored spaces, learning from both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from small_training import Stop, same, stop_after

from palaestra import load_policy
from palaestra.core.spaces import space_from_data, space_to_data
from palaestra.recipes.train.recipe import resume, train
from palaestra.rl.policies.control import count_features, mlp_policy, to_features
from palaestra.rl.policies.convolutional import cnn_policy
from palaestra.runs.run import Run

MIXED = spaces.Dict(
    {
        "image": spaces.Box(0, 255, (8, 8, 3), np.uint8),
        "state": spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.MultiDiscrete([2, 3])]),
        "flag": spaces.Discrete(4, start=1),
    }
)


class MatchEnv(gymnasium.Env[Any, Any]):
    """One step: the bright side of the image is right if the flag is 1, and the other side if it is 0."""

    observation_space = spaces.Dict({"image": spaces.Box(0, 255, (8, 8), np.uint8), "flag": spaces.MultiBinary(1)})
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.side, self.flag = self.np_random.integers(0, 2, size=2).tolist()
        image = np.zeros((8, 8), np.uint8)
        image[:, 4 * self.side : 4 * self.side + 4] = 255
        self.seen = {"image": image, "flag": np.array([self.flag], dtype=np.int8)}
        return self.seen, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.seen, float((action == self.side) == bool(self.flag)), True, False, {}


SMALL: dict[str, Any] = {
    "env": MatchEnv, "num_envs": 16, "n_steps": 32, "iterations": 10, "evaluation": 32, "learning_rate": 2e-3, "n_epochs": 4,
    "critic_learning_rate": 2e-3, "batch_size": 128, "threads": 1, "device": "cpu", "checkpoint_every": 4, "seed": 1,
}  # fmt: skip


def test_features_are_those_of_gymnasium() -> None:
    plain = spaces.Dict({name: part for name, part in MIXED.items() if name != "image"})
    plain.seed(0)
    samples = [plain.sample() for _ in range(3)]
    batch = gymnasium.vector.utils.concatenate(plain, samples, gymnasium.vector.utils.create_empty_array(plain, 3))
    expected = np.stack([spaces.flatten(plain, sample) for sample in samples])
    assert np.allclose(to_features(plain, batch).numpy(), expected)
    assert count_features(plain) == expected.shape[1]


def test_a_space_with_parts_is_plain_data() -> None:
    assert space_from_data(space_to_data(MIXED)) == MIXED


@pytest.mark.parametrize("make", [mlp_policy, cnn_policy])
def test_the_last_observation_is_read_like_a_batch(make: Any) -> None:
    policy = make(MIXED, spaces.Discrete(2))
    batch = batch_space(MIXED, 1)
    batch.seed(0)
    observations = batch.sample()
    single = {"image": observations["image"][0], "flag": observations["flag"][0],
              "state": tuple(part[0] for part in observations["state"])}  # fmt: skip
    inputs = policy.encode_observation(observations, np.ones(1, dtype=bool), None)
    final = policy.encode_final_observation(single, 0, torch.zeros(1, 1))
    assert torch.equal(final.flatten(), inputs.flatten())
    assert policy.act_greedily(inputs).shape == (1, 1)


def test_image_and_vector_are_learned_together(tmp_path: Path) -> None:
    result = train(out=tmp_path / "run", **SMALL)
    assert result.summary["policy"] == "cnn"
    assert result.summary["before"] < 0.8
    assert result.summary["after"] == 1.0
    policy: Any = load_policy(result.folder)
    env = gymnasium.vector.SyncVectorEnv([MatchEnv] * 8)
    observations, _ = env.reset(seed=5)
    inputs = policy.encode_observation(observations, np.ones(8, dtype=bool), None)
    actions = policy.head.to_environment(policy.act_greedily(inputs))
    assert env.step(actions)[1].tolist() == [1.0] * 8


@pytest.mark.backends
def test_a_run_with_parts_resumes_exactly(tmp_path: Path) -> None:
    settings = SMALL | {"iterations": 3, "checkpoint_every": 1, "normalize_rewards": True}
    whole = train(out=tmp_path / "whole", **settings)
    with pytest.raises(Stop):
        train(out=tmp_path / "run", callbacks=[stop_after(2)], **settings)
    with Run.open(tmp_path / "run") as run:
        assert same(resume(run).summary, whole.summary)
