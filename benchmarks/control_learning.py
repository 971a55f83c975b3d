"""Do the presets solve the classic environments? Five seeds each, and a memory task that a perceptron cannot solve.

CartPole-v1 (475 over the last 100 episodes), Acrobot-v1 (-100), Pendulum-v1 (better than -250 in a held-out
evaluation), and CartPole with its velocities hidden: the transformer over the history solves it, the perceptron
does not. Ratio: the smallest share of seeds in which a goal was reached.
"""

from __future__ import annotations

import tempfile
import time
from typing import Any

import gymnasium
import numpy as np
from _common import arguments, finish


class NoVelocities(gymnasium.ObservationWrapper[Any, Any, Any]):
    """CartPole in which only the positions are seen: how fast things move must be remembered."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        space = env.observation_space
        assert isinstance(space, gymnasium.spaces.Box)
        self.observation_space = gymnasium.spaces.Box(space.low[[0, 2]], space.high[[0, 2]], dtype=np.float32)

    def observation(self, observation: Any) -> Any:
        return observation[[0, 2]]


gymnasium.register(
    "MemoryCartPole-v0", lambda: NoVelocities(gymnasium.make("CartPole-v1").unwrapped), max_episode_steps=500
)

# The same for both, so that what they see is all that differs. Window: how many observations the transformer reads.
MEMORY: dict[str, Any] = {
    "num_envs": 32, "n_steps": 64, "iterations": 160, "gamma": 0.98, "gae_lambda": 0.9, "n_epochs": 6, "lr_schedule": "linear", "layers": 1,
    "window": 4,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "CartPole-v1": {"goal": 475.0, "by": "recent", "settings": {"iterations": 500}},
    "Acrobot-v1": {"goal": -100.0, "by": "recent", "settings": {}},
    "Pendulum-v1": {"goal": -250.0, "by": "test", "settings": {}},
    "MemoryCartPole-v0/transformer": {"goal": 475.0, "by": "recent", "settings": {"policy": "transformer", **MEMORY}},
    "MemoryCartPole-v0/mlp": {"goal": 475.0, "by": "recent", "settings": {"policy": "mlp", **MEMORY}},
}


def main() -> None:
    options = arguments(__doc__ or "", threads=1, only="one of the cases")
    seeds = range(1 if options.quick else 5)
    table: dict[str, Any] = {}
    for name, case in CASES.items():
        if options.only and options.only != name:
            continue
        rows = [run_seed(name.split("/")[0], case, seed) for seed in seeds]
        table[name] = {"solved": sum(row["solved"] for row in rows), "of": len(rows), "rows": rows}
        print(name, table[name], flush=True)
    wanted = [entry["solved"] / entry["of"] for name, entry in table.items() if not name.endswith("/mlp")]
    finish("control_learning", min(wanted, default=0.0), cases=table)


def run_seed(env: str, case: dict[str, Any], seed: int) -> dict[str, Any]:
    from palaestra import train

    recent = case["by"] == "recent"
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        summary = train(
            env=env,
            seed=seed,
            stop_at=case["goal"] if recent else None,
            evaluation=20,
            threads=1,
            out=f"{folder}/run",
            **case["settings"],
        ).summary
    value = summary["recent_return"] if recent else summary["after"]
    return {
        "seed": seed, "value": round(value, 1), "solved": value >= case["goal"], "actions": summary["actions"],
        "seconds": round(time.perf_counter() - start, 1), "held_out": round(summary["after"], 1),
        "held_out_interval": [round(summary["after_low"], 1), round(summary["after_high"], 1)],
    }  # fmt: skip


if __name__ == "__main__":
    main()
