"""The convolutional policy: layouts of images, its network, rollouts in 8 bits, every algorithm, Atari."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from palaestra.core.errors import EnvError
from palaestra.core.seeding import Seeds
from palaestra.rl.algorithms import make_algorithm
from palaestra.rl.collection import ControlCollector
from palaestra.rl.grpo import GRPOConfig
from palaestra.rl.policies.control import MAX_IMAGES
from palaestra.rl.policies.convolutional import ImageNetwork, cnn_policy, is_image_space
from palaestra.rl.ppo import PPOConfig
from palaestra.rl.reinforce import REINFORCEConfig
from palaestra.rl.rollouts import select_all

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CHOICE = gymnasium.spaces.Discrete(2)


class Spot(gymnasium.Env[Any, Any]):
    """A spot in the left or right half of an image; the action that names its half is rewarded. Four steps an episode."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 255, (8, 8, 1), np.uint8)
        self.action_space = CHOICE
        self._image = np.zeros((8, 8, 1), np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._draw(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward, self._steps = float(action == self._side), self._steps + 1
        return self._draw(), reward, self._steps == 4, False, {}

    def _draw(self) -> np.ndarray:
        row, column = self.np_random.integers(8, size=2)
        self._side = int(column >= 4)
        self._image[:] = 0  # The same array in every step, which Gymnasium allows.
        self._image[row, column] = 255
        return self._image


def make_spot_envs(count: int) -> SyncVectorEnv:
    return SyncVectorEnv([Spot] * count, autoreset_mode=AutoresetMode.SAME_STEP)


def make_box(*shape: int, dtype: Any = np.uint8) -> gymnasium.spaces.Box:
    return gymnasium.spaces.Box(0, 1 if dtype == np.bool_ else 255, shape, dtype)


def test_images_are_recognized_by_type_and_size() -> None:
    for space in (
        make_box(84, 84),
        make_box(64, 64, 3),
        make_box(4, 84, 84),
        make_box(4, 96, 96, 3),
        make_box(10, 10, 6, dtype=np.bool_),
    ):
        assert is_image_space(space), space
    features = (
        make_box(100),
        make_box(6, 84),
        make_box(2, 3, 4),
        make_box(1, 2, 3, 4, 5),
        gymnasium.spaces.Box(0.0, 1.0, (84, 84, 3)),
    )
    for other in (*features, gymnasium.spaces.MultiBinary((8, 8)), CHOICE):
        assert not is_image_space(other), other
    with pytest.raises(EnvError, match=r"7 x 7 pixels; got Box"):
        cnn_policy(make_box(6, 84), CHOICE)


def test_channels_are_found_in_every_layout() -> None:
    generator = np.random.default_rng(0)

    def read_image(space: gymnasium.spaces.Box, image: np.ndarray) -> np.ndarray:
        return ImageNetwork(space).to_channels_first(torch.from_numpy(image[None]))[0].numpy()

    grey = generator.integers(256, size=(9, 12), dtype=np.uint8)
    assert np.array_equal(read_image(make_box(9, 12), grey), grey[None] * np.float32(1 / 255))
    colour = generator.integers(256, size=(9, 12, 3), dtype=np.uint8)
    assert np.array_equal(read_image(make_box(9, 12, 3), colour), colour.transpose(2, 0, 1) * np.float32(1 / 255))
    stack = generator.integers(256, size=(4, 9, 12), dtype=np.uint8)
    assert np.array_equal(read_image(make_box(4, 9, 12), stack), stack * np.float32(1 / 255))
    frames = generator.integers(256, size=(2, 9, 12, 3), dtype=np.uint8)
    expected = np.concatenate([frame.transpose(2, 0, 1) for frame in frames]) * np.float32(1 / 255)
    assert np.array_equal(read_image(make_box(2, 9, 12, 3), frames), expected)
    planes = generator.integers(2, size=(10, 10, 12)).astype(bool)  # More channels than pixels in a row.
    assert np.array_equal(
        read_image(make_box(10, 10, 12, dtype=np.bool_), planes), planes.transpose(2, 0, 1).astype(np.float32)
    )


def test_large_images_use_the_network_of_stable_baselines3() -> None:
    from stable_baselines3.common.torch_layers import NatureCNN

    space = make_box(4, 84, 84)
    ours, theirs = ImageNetwork(space), NatureCNN(space)
    names = {"0": "cnn.0", "2": "cnn.2", "4": "cnn.4", "7": "linear.0"}
    state = {name.removeprefix("layers."): value for name, value in ours.state_dict().items()}
    theirs.load_state_dict({f"{names[name.split('.')[0]]}.{name.split('.')[1]}": v for name, v in state.items()})
    images = torch.randint(256, (3, 4, 84, 84), dtype=torch.uint8)
    with torch.no_grad():
        assert torch.allclose(ours(images), theirs(images.float() / 255), atol=1e-5)


@pytest.mark.parametrize("shape", [(7, 7), (10, 10, 4), (33, 8), (64, 64, 3), (200, 17, 3)])
def test_small_images_of_every_size_fit_the_small_network(shape: tuple[int, ...]) -> None:
    network = ImageNetwork(make_box(*shape))
    assert network(torch.zeros(2, *shape, dtype=torch.uint8)).shape == (2, 128)
    weights = network.layers[0].weight.flatten(1)  # type: ignore[union-attr]
    gram = weights @ weights.T if len(weights) <= weights.shape[1] else weights.T @ weights
    assert torch.allclose(gram, 2 * torch.eye(len(gram)), atol=1e-4)  # Orthogonal, with the gain of ReLU.


def test_ratio_is_one_and_rollouts_stay_in_8_bits() -> None:
    env = make_spot_envs(3)
    policy = cnn_policy(env.single_observation_space, env.single_action_space).to(DEVICE)
    collector = ControlCollector(env, policy)
    collector.start(0)
    rollout = collector.collect(11, torch.Generator().manual_seed(0))
    assert (rollout.inputs.observations_BTF.dtype, rollout.inputs.observations_BTF.shape) == (
        torch.uint8,
        (3, 11, 8, 8, 1),
    )
    assert {t.device.type for t in (rollout.inputs.observations_BTF, rollout.logprobs_BT, rollout.mask_BT)} == {DEVICE}
    # Every step has its own image, although the environment draws into one array.
    assert rollout.inputs.observations_BTF.flatten(2).count_nonzero(-1).unique().tolist() == [1]
    assert len(rollout.inputs.observations_BTF.flatten(2).argmax(-1).unique()) > 8
    for part in select_all(rollout, False, 7):
        now = policy.evaluate_actions(rollout, part)
        assert torch.allclose(now.logprobs, part.take(rollout.logprobs_BT), atol=1e-5)


def test_values_and_long_minibatches_are_computed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    env = make_spot_envs(4)
    policies = [cnn_policy(env.single_observation_space, env.single_action_space).to(DEVICE) for _ in range(2)]
    rollout = ControlCollector(env, policies[0]).collect_episodes(2, 0, torch.Generator().manual_seed(0), 10)
    assert len(set(rollout.returns_B[rollout.valid_B].tolist())) > 1
    values, norms = [], []
    for policy, max_images, size in zip(policies, (MAX_IMAGES, 5), (MAX_IMAGES // 4, 1), strict=True):
        monkeypatch.setattr("palaestra.rl.policies.control.MAX_IMAGES", max_images)
        assert policy.max_microbatch_size(rollout) == size
        values.append(torch.stack(policy.values_BT(rollout)))
        norms.append(make_algorithm(GRPOConfig(group_size=2), policy, Seeds(0)).update(rollout, 0)["grad_norm"])
    assert torch.allclose(values[0], values[1], atol=1e-6)
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)
    assert norms[0] > 0
    policy.microbatch_size = 3  # Set if a GPU has too little memory.
    assert policy.max_microbatch_size(rollout) == 3


@pytest.mark.parametrize(
    "config",
    [
        PPOConfig(learning_rate=1e-2, critic_learning_rate=1e-2, n_epochs=4, batch_size=64),
        GRPOConfig(learning_rate=1e-2, group_size=4, n_epochs=4, max_grad_norm=0.5),
        REINFORCEConfig(learning_rate=1e-2, critic_learning_rate=1e-2, baseline="critic", max_grad_norm=0.5),
    ],
    ids=["ppo", "grpo", "reinforce"],
)
def test_every_algorithm_learns_from_images(config: Any) -> None:
    env = make_spot_envs(32)
    policy = cnn_policy(env.single_observation_space, env.single_action_space, Seeds(1)).to(DEVICE)
    before = {name: p.detach().clone() for name, p in policy.named_parameters()}
    algorithm, collector = make_algorithm(config, policy, Seeds(1)), ControlCollector(env, policy)
    generator = torch.Generator().manual_seed(0)
    returns = []
    for iteration in range(25):
        rollout = collector.collect_episodes(config.group_size, iteration, generator, 10)
        returns.append(np.mean(rollout.stats.returns))
        algorithm.update(rollout, iteration)
    assert np.mean(returns[:2]) < 2.6
    assert np.mean(returns[-3:]) > 3.3
    changed = {name.split(".")[0] for name, p in policy.named_parameters() if not torch.equal(p, before[name])}
    assert changed == {"trunk", "actor", *([] if isinstance(config, GRPOConfig) else ["critic"])}


def test_an_evaluation_keeps_no_images() -> None:
    env = make_spot_envs(2)
    policy = cnn_policy(env.single_observation_space, env.single_action_space).to(DEVICE)
    rollout = ControlCollector(env, policy).collect_episodes(1, 0, torch.Generator(), 10, greedy=True)
    assert rollout.inputs is None
    assert len(rollout.returns_B[rollout.valid_B].tolist()) == 2


def train_and_resume(tmp_path: Path, **settings: Any) -> Any:
    """Train, stop and resume a run on the CPU; returns the summary of the run, whose weights are compared."""
    from palaestra import load_policy, resume, train, write_report

    class Stop(Exception):
        pass

    def stop(iteration: Any) -> None:
        if iteration.number == 2:
            raise Stop

    values = {"iterations": 3, "checkpoint_every": 1, "threads": 1, "device": "cpu", "progress": False, **settings}
    whole = train(out=tmp_path / "whole", **values)
    with pytest.raises(Stop):
        train(out=tmp_path / "run", callbacks=[stop], **values)
    resumed = resume(tmp_path / "run", progress=False, device="cpu")
    assert resumed.summary["weights_sha256"] == whole.summary["weights_sha256"]
    policy = load_policy(tmp_path / "run", device=DEVICE)
    assert policy.device.type == DEVICE
    assert all(torch.equal(p.cpu(), q) for p, q in zip(policy.parameters(), whole.policy.parameters(), strict=True))
    assert "cnn learns" in write_report(tmp_path / "run").read_text(encoding="utf-8")
    return whole.summary


def test_run_chooses_the_network_and_resumes_exactly(tmp_path: Path) -> None:
    gymnasium.register("Spot-v0", Spot)
    try:
        summary = train_and_resume(tmp_path, env="Spot-v0", num_envs=4, n_steps=8, evaluation=2)
        assert (summary["policy"], summary["after_episodes"]) == ("cnn", 2)
    finally:
        del gymnasium.registry["Spot-v0"]


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
def test_a_run_continues_on_another_device(tmp_path: Path) -> None:
    from palaestra import resume, train

    gymnasium.register("Spot-v0", Spot)
    try:
        values: dict[str, Any] = {"num_envs": 4, "n_steps": 8, "evaluation": 2, "iterations": 3, "checkpoint_every": 1}
        for first, second in (("cuda", "cpu"), ("cpu", "cuda")):
            folder = tmp_path / first
            with pytest.raises(KeyError):
                train(
                    env="Spot-v0", out=folder, device=first, callbacks=[lambda _: {}["stop"]], progress=False, **values
                )
            result = resume(folder, progress=False, device=second)
            assert (result.summary["iterations"], result.policy.device.type) == (3, second)
    finally:
        del gymnasium.registry["Spot-v0"]


def make_pong() -> gymnasium.Env[Any, Any]:
    from gymnasium import wrappers

    env = wrappers.GrayscaleObservation(gymnasium.make("ALE/Pong-v5", max_episode_steps=12))
    half = wrappers.TransformObservation(env, lambda frame: frame[::2, ::2], make_box(105, 80))
    return wrappers.FrameStackObservation(half, 4)


def test_atari_with_gymnasiums_wrappers(tmp_path: Path) -> None:
    before = set(gymnasium.registry)
    import ale_py  # Registers its environments.

    from palaestra import train

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    gymnasium.register("StackedPong-v0", make_pong)
    try:
        result = train(
            env="StackedPong-v0",
            num_envs=1,
            n_steps=16,
            batch_size=8,
            n_epochs=1,
            iterations=2,
            evaluation=1,
            threads=1,
            out=tmp_path / "run",
            progress=False,
        )
        assert (result.summary["policy"], result.summary["actions"]) == ("cnn", 32)
        assert (result.summary["after_episodes"], result.policy.device.type) == (1, DEVICE)
        assert result.policy.trunk.layers[0].weight.shape == (32, 4, 8, 8)
    finally:
        for name in [name for name in gymnasium.registry if name not in before]:
            del gymnasium.registry[name]


@pytest.mark.backends
def test_ppo_learns_minatar() -> None:
    folder = os.environ.get("PALAESTRA_MINATAR")
    if not folder:
        pytest.skip("PALAESTRA_MINATAR names no folder with MinAtar")
    from palaestra.core.records import ignore
    from palaestra.recipes.train.build import build_loop
    from palaestra.recipes.train.presets import fill_presets
    from palaestra.recipes.train.settings import TrainSettings

    sys.path.insert(0, folder)
    logging.disable(logging.WARNING)  # MinAtar misses matplotlib.
    try:
        from minatar.gym import register_envs

        register_envs()
    finally:
        logging.disable(logging.NOTSET)
        sys.path.remove(folder)
    loop = build_loop(fill_presets(TrainSettings(env="MinAtar/Breakout-v1", iterations=60)), ignore)
    assert loop.config.policy == "cnn"
    for iteration in range(1, 61):
        loop.iterate(iteration, 1.0 - iteration / 60, ignore)
    assert loop.recent_return > 3.0  # A random policy gets 0.5.
