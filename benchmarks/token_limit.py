"""Does an algorithm count the reward of a cut response once? A response that ends gets 1.0, one at the token limit 0.6.

PPO and GRPO train `nano` for some iterations, three seeds each. The best policy ends every response and has the return
1.0. If the limit were bootstrapped with the critic's value, a cut response would count its 0.6 and the value of a state
without a future, and PPO would learn to be cut. Ratio: the smallest mean return of the last five iterations.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any

from _common import arguments, finish
from gymnasium import register

from palaestra import TokenEnv, TokenVectorEnv, train
from palaestra.core.records import Problem, Split
from palaestra.tasks.base import make_task


class LimitVector(TokenVectorEnv):
    """Pays 1.0 for a response that ends and 0.6 for one that reaches the token limit."""

    def prompts(self) -> Sequence[Problem]:
        return make_task("math-skills").problems(Split.TRAIN, 6, 0)

    def reward(self, response: Any) -> float:
        return 0.6 if response.truncated else 1.0


class Limit(TokenEnv):
    vector_class = LimitVector


register("Limit-v0", Limit, vector_entry_point=LimitVector)


def main() -> None:
    options = arguments(__doc__ or "", threads=1, algorithms="ppo,grpo", seeds="how many seeds")
    rows = []
    for algorithm in (options.algorithms or "ppo,grpo").split(","):
        for seed in range(1 if options.quick else int(options.seeds or 3)):
            rows.append(train_once(algorithm, seed, 10 if options.quick else 60))
            print(rows[-1], flush=True)
    finish("token_limit", min(sum(row["return"][-5:]) / 5 for row in rows), rows=rows)


def train_once(algorithm: str, seed: int, iterations: int) -> dict[str, Any]:
    curve: dict[str, list[float]] = {"return": [], "cut": [], "value": []}

    def record(iteration: Any) -> None:
        for name, metric in (("return", "reward"), ("cut", "truncated"), ("value", "value_mean")):
            if metric in iteration.metrics:
                curve[name].append(round(iteration.metrics[metric], 3))

    with tempfile.TemporaryDirectory() as folder:
        train(
            env="Limit-v0",
            algorithm=algorithm,
            model="nano",
            seed=seed,
            max_tokens=17,
            iterations=iterations,
            episodes=64,
            num_envs=64,
            evaluation=0,
            keep_trajectories=0,
            progress=False,
            callbacks=[record],
            out=f"{folder}/run",
        )
    return {"algorithm": algorithm, "seed": seed, **curve}


if __name__ == "__main__":
    main()
