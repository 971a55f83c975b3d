"""CartPole-v1 to a mean of 475 over the last 100 episodes: seconds and steps a second against Stable-Baselines3.

Theirs: PPO with the settings of rl-zoo (8 environments, 32 steps, 20 epochs, linear schedules). Ours:
`palaestra.train` with its preset, as a user would call it, run folder, store and checkpoints included. Five seeds
in turn, one torch thread. The ratio is the smallest of the five in seconds; steps a second while learning beside it.
"""

from __future__ import annotations

import tempfile
import time
from typing import Any

import numpy as np
from _common import arguments, finish, median

GOAL = 475.0


def main() -> None:
    options = arguments(__doc__ or "", threads=1)
    seeds = range(2 if options.quick else 5)
    rows: list[dict[str, Any]] = []
    for seed in seeds:
        row = {"seed": seed, "palaestra": ours(seed), "sb3": theirs(seed)}
        row["ratio"] = round(row["sb3"]["seconds"] / row["palaestra"]["seconds"], 2)
        row["speed_ratio"] = round(row["palaestra"]["steps_per_second"] / row["sb3"]["steps_per_second"], 2)
        rows.append(row)
        print(row, flush=True)
    finish(
        "cartpole_vs_sb3",
        min(row["ratio"] for row in rows),
        goal=GOAL,
        seeds=len(rows),
        solved={name: sum(row[name]["solved"] for row in rows) for name in ("palaestra", "sb3")},
        median_ratio=median([row["ratio"] for row in rows]),
        smallest_speed_ratio=min(row["speed_ratio"] for row in rows),
        rows=rows,
    )


def ours(seed: int) -> dict[str, Any]:
    from palaestra import train

    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        summary = train(
            env="CartPole-v1", seed=seed, stop_at=GOAL, evaluation=0, iterations=500, threads=1, out=f"{folder}/run"
        ).summary
        seconds = time.perf_counter() - start
    return _row(seconds, summary["decisions"], summary["recent_return"])


def theirs(seed: int) -> dict[str, Any]:
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    class Solved(BaseCallback):
        mean = 0.0

        def _on_rollout_end(self) -> None:
            buffer = self.model.ep_info_buffer
            self.mean = float(np.mean([episode["r"] for episode in buffer])) if buffer and len(buffer) >= 100 else 0.0

        def _on_step(self) -> bool:
            return self.mean < GOAL

    env = make_vec_env("CartPole-v1", n_envs=8, seed=seed)
    start = time.perf_counter()
    model = PPO(
        "MlpPolicy",
        env,
        n_steps=32,
        batch_size=256,
        gae_lambda=0.8,
        gamma=0.98,
        n_epochs=20,
        ent_coef=0.0,
        learning_rate=lambda left: left * 1e-3,
        clip_range=lambda left: left * 0.2,
        seed=seed,
        device="cpu",
    )
    callback = Solved()
    model.learn(100_000, callback=callback)
    return _row(time.perf_counter() - start, model.num_timesteps, callback.mean)


def _row(seconds: float, steps: int, mean: float | None) -> dict[str, Any]:
    return {
        "seconds": round(seconds, 2), "steps": steps, "steps_per_second": round(steps / seconds),
        "last_100": round(mean or 0.0, 1), "solved": (mean or 0.0) >= GOAL,
    }  # fmt: skip


if __name__ == "__main__":
    main()
