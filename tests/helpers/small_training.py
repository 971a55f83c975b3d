"""Settings of a small training, and a callback that stops it."""

from __future__ import annotations

from typing import Any

from palaestra.recipes.train.recipe import Iteration

CONTROL = {"env": "CartPole-v1", "iterations": 5, "num_envs": 4, "n_steps": 16, "batch_size": 32, "n_epochs": 2, "evaluation": 3, "checkpoint_every": 2, "threads": 1}  # fmt: skip


class Stop(Exception):
    pass


def stop_after(iteration: int) -> Any:
    def callback(done: Iteration) -> None:
        if done.number == iteration:
            raise Stop

    return callback


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return {k: v for k, v in a.items() if k != "seconds"} == {k: v for k, v in b.items() if k != "seconds"}
