"""Gymformer's calls, with its arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from palaestra.core.errors import EnvError, ModelError, SettingsError
from palaestra.integrations.gymformer.networks import LMActorNetwork, LMCriticNetwork, MLPActorNetwork, MLPCriticNetwork
from palaestra.integrations.gymformer.train_agent import load_ppo_agent, train_agent
from palaestra.rl.grpo import GRPOConfig
from palaestra.rl.ppo import PPOConfig
from palaestra.rl.reinforce import REINFORCEConfig
from palaestra.rl.rloo import RLOOConfig


def cartpole(folder: Path, **more: Any) -> tuple[list[float], MLPActorNetwork]:
    actor, critic = MLPActorNetwork(4, 64, 2), MLPCriticNetwork(4, 64)
    given = {
        "ppo_config": PPOConfig(learning_rate=3e-3),
        "max_episodes": 120,
        "update_interval": 20,
        "save_interval": 40,
        **more,
    }
    return train_agent("CartPole-v1", actor, critic, save_path=folder, **given), actor  # type: ignore[arg-type]


def test_the_seeds_cartpole_learns_and_saves_what_can_be_loaded(tmp_path: Path) -> None:
    means, actor = cartpole(tmp_path)
    assert len(means) == 120
    returns = np.diff(np.array(means) * np.arange(1, 121), prepend=0.0)
    assert returns[-20:].mean() > 2 * returns[:20].mean()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["episode-120", "episode-40", "episode-80"]
    fresh, critic = MLPActorNetwork(4, 64, 2, seed=9), MLPCriticNetwork(4, 64, seed=9)
    about = load_ppo_agent(tmp_path / "episode-120", fresh, critic)
    assert (about["episodes"], about["config"]) == (120, "PPOConfig")
    assert all(torch.equal(a, b) for a, b in zip(actor.parameters(), fresh.parameters(), strict=True))


def test_the_same_seed_gives_the_same_returns(tmp_path: Path) -> None:
    short: dict[str, Any] = {"max_episodes": 20, "update_interval": 10, "save_interval": 0, "max_timesteps": 30}
    assert cartpole(tmp_path, **short)[0] == cartpole(tmp_path, **short)[0]
    assert cartpole(tmp_path, **short)[0] != cartpole(tmp_path, **short, seed=1)[0]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "config",
    [GRPOConfig(group_size=4), RLOOConfig(group_size=4), REINFORCEConfig(), REINFORCEConfig(baseline="critic")],
)
def test_other_algorithms_take_the_place_of_ppo(tmp_path: Path, config: Any) -> None:
    means, _ = cartpole(
        tmp_path, ppo_config=config, max_episodes=16, update_interval=8, save_interval=0, max_timesteps=20
    )
    assert len(means) == 16


@pytest.mark.parametrize("env", ["RLHFEnv-v0", "CoTEnv-v0"])
def test_language_models_train_in_the_seeds_environments(tmp_path: Path, env: str) -> None:
    actor, critic = LMActorNetwork("nano"), LMCriticNetwork("nano")
    before = [p.clone() for p in actor.parameters()]
    lines = []
    means = train_agent(
        env_name=env,
        actor=actor,
        critic=critic,
        ppo_config=PPOConfig(learning_rate=1e-4, n_epochs=2),
        max_episodes=6,
        max_timesteps=12,
        update_interval=3,
        save_interval=6,
        save_path=tmp_path,
        callback=lambda n, f: lines.append((n, f)),
    )
    assert len(means) == 6
    assert all(0 <= mean <= 1 for mean in means)
    assert [n for n, _ in lines] == [3, 6]
    if env == "RLHFEnv-v0":
        assert abs(lines[0][1]["reference_kl"]) < 1e-3
    assert any(not torch.equal(a, b) for a, b in zip(before, actor.parameters(), strict=True))
    load_ppo_agent(tmp_path / "episode-6", LMActorNetwork("nano"), LMCriticNetwork("nano"))


def test_the_networks_read_padding_on_either_side() -> None:
    actor, critic = LMActorNetwork("nano"), LMCriticNetwork("nano")
    pad, ids = actor.tokenizer.pad_token_id, [9, 20, 30, 41]
    with torch.no_grad():
        critic.head.weight.normal_(generator=torch.Generator().manual_seed(0))
        for network in (actor, critic):
            alone = network(torch.tensor([ids]))[0]
            left, right = (network(torch.tensor([row, [5] * 7]))[0] for row in ([pad] * 3 + ids, ids + [pad] * 3))
            assert torch.allclose(alone, left, atol=1e-4)
            assert torch.allclose(alone, right, atol=1e-4)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: train_agent("CartPole-v1", MLPActorNetwork(3, 8, 2)), EnvError, "the actor .*4 numbers .*CartPole-v1"),
        (lambda: train_agent("CartPole-v1", MLPActorNetwork(4, 8, 3)), EnvError, r"\(2, 3\) .*Discrete\(2\) .*\(2, 2\)"),
        (lambda: train_agent("CoTEnv-v0", MLPActorNetwork(4, 8, 2)), EnvError, "tokens, .*MLPActorNetwork"),
        (lambda: train_agent("CartPole-v1", LMActorNetwork()), EnvError, "LMActorNetwork .*CartPole-v1"),
        (lambda: train_agent("CartPole-v1", MLPActorNetwork(4, 8, 2), max_episodes=0), SettingsError, "max_episodes"),
        (lambda: load_ppo_agent("nowhere", MLPActorNetwork(4, 8, 2)), ModelError, "nowhere"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line(call: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_save_of_another_shape_names_both_sides(tmp_path: Path) -> None:
    cartpole(tmp_path, max_episodes=4, update_interval=4, save_interval=4, max_timesteps=10)
    with pytest.raises(ModelError, match=r"\[2, 64\].*\[2, 32\]"):
        load_ppo_agent(tmp_path / "episode-4", MLPActorNetwork(4, 32, 2))


def test_seeds_decide_the_networks() -> None:
    a, b, c = MLPActorNetwork(4, 8, 2), MLPActorNetwork(4, 8, 2), MLPActorNetwork(4, 8, 2, seed=1)
    assert torch.equal(a.network[0].weight, b.network[0].weight)
    assert not torch.equal(a.network[0].weight, c.network[0].weight)


def test_ppo_config_accepts_the_names_of_gymformer() -> None:
    seed: dict[str, Any] = {"lr_actor": 1e-4, "lr_critic": 2e-3, "gamma": 0.9, "update_epochs": 3, "eps_clip": 0.1,
                            "minibatch_size": 8, "pad_obs": True, "int_obs": False}  # fmt: skip
    ours = PPOConfig(learning_rate=1e-4, critic_learning_rate=2e-3, gamma=0.9, n_epochs=3, clip_range=0.1, batch_size=8)
    assert PPOConfig(**seed) == ours
    assert PPOConfig(K_epochs=3) == PPOConfig(n_epochs=3)  # type: ignore[call-arg]
    with pytest.raises(SettingsError, match=r"'clip_range'.* 2"):
        PPOConfig(eps_clip=2)  # type: ignore[call-arg]
