"""Classic control beside Stable-Baselines3 and CleanRL: the same steps in eight environments, five seeds.

Ours: `palaestra.train` with its presets, run folder included. Stable-Baselines3: PPO with rl-zoo's settings (rl_zoo3
2.9.2), or its defaults where rl-zoo has none. CleanRL: the scripts `ppo.py` and `ppo_continuous_action.py` of the package
`cleanrl` 1.2, unmodified, with their defaults; they are older than Gymnasium 1.0, whose calls are translated for them. All train
perceptrons on one thread, without a search for better settings. A score is the mean return of 20 greedy episodes after
training; `recent` is that of the last 100 training episodes.

    pip install stable-baselines3 minatar box2d pygame
    pip install --no-deps --ignore-requires-python cleanrl==1.2.0

Ratio: the median over the environments of our steps per second over those of the faster peer.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import runpy
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import gymnasium
import numpy as np
from _common import ROWS, Row, arguments, collect_rows, finish, median
from gymnasium.vector import AutoresetMode, SyncVectorEnv

EPISODES = 20


def make_flat(**options: Any) -> gymnasium.Env[Any, Any]:
    """The environment with a flat vector as its observation: one-hot for a number, as CleanRL's perceptrons need it."""
    name = options.pop("name")
    if name.startswith("MinAtar/") and name not in gymnasium.registry:
        importlib.import_module("minatar.gym").register_envs()
    env = gymnasium.make(name, disable_env_checker=True, **options)
    return gymnasium.wrappers.DtypeObservation(gymnasium.wrappers.FlattenObservation(env), np.float32)


FLAT: dict[str, dict[str, Any]] = {
    "FrozenLake-v1": {},
    "CliffWalking-v1": {"max_episode_steps": 200},
    "MinAtar/Breakout-v1": {"max_episode_steps": 1000},
}
for _name, _options in FLAT.items():
    gymnasium.register(f"Flat{_name.split('/')[-1]}", make_flat, kwargs={"name": _name, **_options})

STEPS = {
    "CartPole-v1": 30_720, "MountainCarContinuous-v0": 8_192, "FlatFrozenLake-v1": 20_480, "FlatCliffWalking-v1": 20_480,
    "Pendulum-v1": 28_672, "Acrobot-v1": 40_960, "FlatBreakout-v1": 40_960, "LunarLander-v3": 49_152,
}  # fmt: skip


def linear(start: float) -> Callable[[float], float]:
    return lambda progress_remaining: progress_remaining * start


ZOO: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        "n_envs": 8, "n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20, "ent_coef": 0.0,
        "learning_rate": linear(1e-3), "clip_range": linear(0.2),
    },
    "Acrobot-v1": {
        "normalize": True, "n_envs": 16, "n_steps": 256, "gae_lambda": 0.94, "gamma": 0.99, "n_epochs": 4, "ent_coef": 0.0
    },
    "MountainCarContinuous-v0": {
        "normalize": True, "n_envs": 1, "batch_size": 256, "n_steps": 8, "gamma": 0.9999, "learning_rate": 7.77e-05,
        "ent_coef": 0.00429, "clip_range": 0.1, "n_epochs": 10, "gae_lambda": 0.9, "max_grad_norm": 5, "vf_coef": 0.19,
        "use_sde": True, "policy_kwargs": {"log_std_init": -3.29, "ortho_init": False},
    },
    "Pendulum-v1": {
        "n_envs": 4, "n_steps": 1024, "gae_lambda": 0.95, "gamma": 0.9, "n_epochs": 10, "ent_coef": 0.0, "learning_rate": 1e-3,
        "clip_range": 0.2, "use_sde": True, "sde_sample_freq": 4,
    },
    "LunarLander-v3": {
        "n_envs": 16, "n_steps": 1024, "batch_size": 64, "gae_lambda": 0.98, "gamma": 0.999, "n_epochs": 4, "ent_coef": 0.01
    },
    # Those for Atari, with a perceptron.
    "FlatBreakout-v1": {
        "n_envs": 8, "n_steps": 128, "n_epochs": 4, "batch_size": 256, "learning_rate": linear(2.5e-4),
        "clip_range": linear(0.1), "vf_coef": 0.5, "ent_coef": 0.01,
    },
}  # fmt: skip


def main() -> None:
    options = arguments(__doc__ or "", threads=1, only="one of the environments", **ROWS)
    names = [options.only] if options.only else list(STEPS)[:2] if options.quick else list(STEPS)
    seeds = range(1 if options.quick else 5)
    cells = [
        {"env": env, "seed": seed, "system": system}
        for seed in seeds
        for env in names
        for system in ("ours", "sb3", "cleanrl")
    ]
    rows = collect_rows(train_and_score, cells, options)
    table = {env: summarize([row for row in rows if row["env"] == env]) for env in names}
    for env, entry in table.items():
        print(env, entry, flush=True)
    ratios = [
        entry["ours"]["steps_per_second"] / max(entry[peer]["steps_per_second"] for peer in ("sb3", "cleanrl"))
        for entry in table.values()
        if {"ours", "sb3", "cleanrl"} <= entry.keys()
    ]
    finish("control_vs_peers", median(ratios) if ratios else 0.0, environments=table)


def train_and_score(env: str, seed: int, system: str) -> Row:
    """Train one system. Returns its scores and speed."""
    train = {"ours": train_ours, "sb3": train_sb3, "cleanrl": train_cleanrl}[system]
    row = train(env, STEPS[env], seed)  # Its seconds are processor time: other processes do not count.
    return {**row, "steps_per_second": round(row["steps"] / row["training_seconds"])}


def summarize(rows: list[Row]) -> Row:
    """Means and 95 % intervals over seeds, and the paired differences to ours."""
    from palaestra.core.statistics import mean_interval

    def describe(values: list[float | None]) -> list[float] | None:
        known = [value for value in values if value is not None]
        if not known:
            return None
        mean = mean_interval(known)
        return [round(mean.value, 1), round(mean.low, 1), round(mean.high, 1)]

    entry: Row = {}
    scores = {(row["system"], row["seed"]): row["score"] for row in rows}
    for system in ("ours", "sb3", "cleanrl"):
        own = [row for row in rows if row["system"] == system]
        if own:
            entry[system] = {
                "seeds": len(own), "score": describe([row["score"] for row in own]),
                "recent": describe([row["recent"] for row in own]),
                "steps_per_second": median([row["steps_per_second"] for row in own]),
            }  # fmt: skip
        paired = [scores["ours", row["seed"]] - row["score"] for row in own if ("ours", row["seed"]) in scores]
        if system != "ours" and paired:
            entry[system]["ours_minus_it"] = describe(paired)
    return entry


def train_ours(env: str, steps: int, seed: int) -> Row:
    from palaestra import load_policy, train
    from palaestra.recipes.train.presets import make_settings

    settings = make_settings({"env": env})
    per_iteration = (settings.num_envs or 1) * (settings.n_steps or 1)
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/run"
        start = time.process_time()
        summary = train(
            env=env, seed=seed, iterations=max(1, round(steps / per_iteration)), evaluation=0, threads=1, out=out
        ).summary
        seconds = time.process_time() - start
        score = evaluate(env, load_policy(out).predict)
    return {
        "steps": summary["actions"],
        "training_seconds": round(seconds, 2),
        "score": score,
        "recent": summary["recent_return"],
    }


def train_sb3(env: str, steps: int, seed: int) -> Row:
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    settings = dict(ZOO.get(env, {"n_envs": 8, "n_steps": 256}))
    normalize, count = settings.pop("normalize", False), settings.pop("n_envs")
    envs: Any = make_vec_env(env, n_envs=count, seed=seed)
    envs = VecNormalize(envs, gamma=settings["gamma"]) if normalize else envs
    start = time.process_time()
    model = PPO("MlpPolicy", envs, seed=seed, device="cpu", **settings)
    model.learn(steps)
    seconds = time.process_time() - start

    def act(observations: np.ndarray) -> np.ndarray:
        seen = envs.normalize_obs(observations) if normalize else observations
        return np.asarray(model.predict(seen, deterministic=True)[0])

    recent = find_recent([episode["r"] for episode in model.ep_info_buffer or ()])
    return {
        "steps": model.num_timesteps,
        "training_seconds": round(seconds, 2),
        "score": evaluate(env, act),
        "recent": recent,
    }


def train_cleanrl(env: str, steps: int, seed: int) -> Row:
    import torch

    space: Any = gymnasium.make(env).action_space
    continuous = isinstance(space, gymnasium.spaces.Box)
    script = "ppo_continuous_action" if continuous else "ppo"
    returns: list[float] = []
    start = time.process_time()
    with (
        translate_calls(returns, old=not continuous),
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
    ):
        argv = [script, "--env-id", env, "--total-timesteps", str(steps), "--seed", str(seed), "--cuda", "False"]
        with mock.patch.object(sys, "argv", argv), contextlib.redirect_stdout(io.StringIO()):
            result = runpy.run_module(f"cleanrl.{script}", run_name="__main__")
    seconds = time.process_time() - start
    agent = result["agent"]
    normalizer = find_normalizer(result["envs"].envs[0]) if continuous else None

    @torch.no_grad()
    def act(observations: np.ndarray) -> np.ndarray:
        if normalizer is None:
            return np.asarray(agent.actor(torch.from_numpy(observations)).argmax(-1))
        statistics = normalizer.obs_rms
        seen = (observations - statistics.mean) / np.sqrt(statistics.var + normalizer.epsilon)
        mean = agent.actor_mean(torch.from_numpy(np.clip(seen, -10, 10)).float())
        return np.asarray(np.clip(mean.numpy(), space.low, space.high))

    return {
        "steps": result["global_step"], "training_seconds": round(seconds, 2), "score": evaluate(env, act),
        "recent": find_recent(returns),
    }  # fmt: skip


def find_recent(returns: list[float]) -> float | None:
    """The mean return of the last 100 training episodes; none for fewer."""
    return round(float(np.mean(returns[-100:])), 2) if len(returns) >= 100 else None


def find_normalizer(env: Any) -> Any:
    while not isinstance(env, gymnasium.wrappers.NormalizeObservation):
        env = env.env
    return env


def evaluate(env: str, act: Callable[[np.ndarray], np.ndarray]) -> float:
    """The mean return of greedy episodes, whose seeds are the same for all."""
    envs = [gymnasium.make(env) for _ in range(EPISODES)]
    observations = [game.reset(seed=10_000 + index)[0] for index, game in enumerate(envs)]
    returns, playing = np.zeros(EPISODES), np.ones(EPISODES, dtype=bool)
    while playing.any():
        for index, action in enumerate(act(np.stack(observations))):
            if playing[index]:
                observations[index], reward, terminated, truncated, _ = envs[index].step(action)
                returns[index] += float(reward)
                playing[index] = not (terminated or truncated)
    return round(float(returns.mean()), 2)


@contextlib.contextmanager
def translate_calls(returns: list[float], old: bool) -> Iterator[None]:
    """Let CleanRL's scripts call this Gymnasium: `ppo.py` was written for gym 0.21, the other for Gymnasium 0.28.

    Environments restart in the step in which they end, as they did then.

    Arguments:
        returns: receives the returns of the training episodes.
        old: translate for gym 0.21.
    """

    class Envs(SyncVectorEnv):
        def __init__(self, makers: list[Callable[[], Any]]) -> None:
            super().__init__(makers, autoreset_mode=AutoresetMode.SAME_STEP)

        def reset(self, **options: Any) -> Any:
            observations, infos = super().reset(**options)
            return observations if old else (observations, infos)

        def step(self, actions: Any) -> Any:
            observations, rewards, terminated, truncated, infos = super().step(actions)
            ended = terminated | truncated
            if ended.any():
                returns.extend(infos["final_info"]["episode"]["r"][ended].tolist())
            done: tuple[Any, ...] = (ended, []) if old else (terminated, truncated, {})
            return (observations, rewards, *done)

    class Recorded(gymnasium.wrappers.RecordEpisodeStatistics):
        first_seed: int | None = None

        def seed(self, seed: int) -> None:
            self.first_seed = seed

        def reset(self, **options: Any) -> Any:
            seed, self.first_seed = self.first_seed, None
            return super().reset(**{"seed": seed, **options})

    class Observed(gymnasium.wrappers.TransformObservation):
        def __init__(self, env: Any, function: Callable[[Any], Any]) -> None:
            super().__init__(env, function, env.observation_space)

    gym: Any = types.ModuleType("gym")
    gym.make, gym.spaces = gymnasium.make, gymnasium.spaces
    gym.vector = types.SimpleNamespace(SyncVectorEnv=Envs)
    gym.wrappers = types.SimpleNamespace(RecordEpisodeStatistics=Recorded)
    with (
        mock.patch.dict(sys.modules, {"gym": gym} if old else {}),
        mock.patch.object(gymnasium.vector, "SyncVectorEnv", Envs),
        mock.patch.object(gymnasium.wrappers, "TransformObservation", Observed),
        mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": ""}),
    ):
        yield


if __name__ == "__main__":
    main()
