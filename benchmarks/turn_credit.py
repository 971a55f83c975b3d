"""Credit per episode or per turn, and three ways to average the loss: GRPO with `nano` in three turn environments.

`signs`: eight turns, each shows one of four signs and pays 1 for the right answer; no action changes what follows. `lake`:
`text:FrozenLake-v1` on a map of 3 x 3, without slipping, at most eight turns; each step costs 0.1, the goal pays 1, a hole
takes 0.5. A warm-up on random actions teaches `nano` what an action looks like. `guess`: `palaestra/Guess-v0`, a number from
1 to 8, three guesses, no warm-up; only finding the number is paid.

Every setting gets the same seeds, initial weights, start states and number of episodes, and is measured on the same
held-out episodes. `mean` is the training reward averaged over the iterations (the speed of learning), `after` the
held-out reward at the end. Differences are paired by seed, with 95 % intervals; the base has credit per episode and the loss
averaged per sequence, as GRPO was published. Ratio: `mean` with credit per turn over that of the base, in the first environment.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import gymnasium
from _common import ROWS, Row, arguments, collect_rows, finish

SHORT = {"episodes": 64, "num_envs": 64, "max_tokens": 4}
TEXT = {"actions": ["1", "2", "3", "4"], "invalid_penalty": 0.2, "max_turns": 8}
LAKE = {"desc": ["SFF", "FHF", "FFG"], "is_slippery": False, "reward_schedule": [1.0, -0.5, -0.1]}
ENVS: dict[str, dict[str, Any]] = {
    "signs": {"env": "palaestra/Text-v0", "env_kwargs": {"env_id": "turn_credit:Signs", **TEXT}, **SHORT, "iterations": 24, "learning_rate": 5e-4},
    "lake": {"env": "palaestra/Text-v0", "env_kwargs": {"env_id": "FrozenLake-v1", "env_kwargs": LAKE, **TEXT}, **SHORT, "iterations": 12, "learning_rate": 3e-4},
    "guess": {
        "env": "palaestra/Guess-v0", "iterations": 24, "episodes": 128, "num_envs": 128, "max_tokens": 12, "learning_rate": 3e-4,
        "ent_coef": 0.002,
    },
}  # fmt: skip
WARM = "PALAESTRA_BENCHMARK_WARM"
"""The environment variable with the folder of the model after the warm-up."""
AGGREGATIONS = {"signs": ("sequence",), "lake": ("sequence", "token"), "guess": ("sequence", "turn", "token")}
"""Where they differ: all turns of `signs` and `lake` have two tokens, and all episodes of `signs` eight turns."""


class Signs(gymnasium.Env[int, int]):
    """Shows one of four signs in each of eight steps. The right action is the sign's number plus one, modulo four."""

    observation_space, action_space = gymnasium.spaces.Discrete(4), gymnasium.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.signs = self.np_random.integers(4, size=9).tolist()
        self.at = 0
        return self.signs[0], {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        reward = float(action == (self.signs[self.at] + 1) % 4)
        self.at += 1
        return self.signs[self.at], reward, self.at == 8, False, {}


def main() -> None:
    from palaestra.core.statistics import mean_interval

    options = arguments(
        __doc__ or "",
        threads=1,
        seeds="number of seeds (5)",
        envs="names, separated by commas (all)",
        algorithms="grpo, rloo, ppo or reinforce, separated by commas (grpo)",
        **ROWS,
    )
    envs = options.envs.split(",") if options.envs else list(ENVS)
    algorithms = options.algorithms.split(",") if options.algorithms else ["grpo"]
    cells = [
        {
            "env": env,
            "algorithm": algorithm,
            "credit": credit,
            "aggregation": aggregation,
            "seed": seed,
            "quick": options.quick,
        }
        for seed in range(1 if options.quick else int(options.seeds or 5))
        for env, algorithm in product(envs, algorithms)
        for credit, aggregation in list_settings(env, algorithm)
    ]
    with tempfile.TemporaryDirectory() as folder:
        os.environ[WARM] = folder
        warm_up(Path(folder))
        rows = collect_rows(train_once, cells, options)
    for env, algorithm in product(envs, algorithms):
        base = list_settings(env, algorithm)[0]
        start = {row["seed"]: row for row in rows if _matches(row, env, algorithm, base)}
        for setting in list_settings(env, algorithm):
            own = {row["seed"]: row for row in rows if _matches(row, env, algorithm, setting) and row["seed"] in start}
            line: dict[str, Any] = {"env": env, "algorithm": algorithm, "setting": " ".join(setting), "seeds": len(own)}
            for name in ("mean", "after") if own else ():
                line[name] = round(statistics.mean(row[name] for row in own.values()), 3)
                difference = mean_interval([row[name] - start[seed][name] for seed, row in own.items()])
                line[f"{name} - base"] = [round(v, 3) for v in (difference.value, difference.low, difference.high)]
            print(line, flush=True)
    first, credit = envs[0], list_settings(envs[0], algorithms[0])[0][0]
    means = [
        statistics.mean(row["mean"] for row in rows if (row["env"], row["credit"]) == (first, c))
        for c in ("turn", credit)
    ]
    finish("turn_credit", means[0] / means[1], rows=rows)


def list_settings(env: str, algorithm: str) -> list[tuple[str, str]]:
    """The pairs of credit and aggregation to compare; the base is first. Only GRPO has a choice of aggregations."""
    credits = ("episode", "turn") if algorithm in ("grpo", "rloo") else ("token", "turn")
    return list(product(credits, AGGREGATIONS[env] if algorithm == "grpo" else ("",)))


def _matches(row: Row, env: str, algorithm: str, setting: tuple[str, str]) -> bool:
    return (row["env"], row["algorithm"], row["credit"], row["aggregation"]) == (env, algorithm, *setting)


def train_once(env: str, algorithm: str, credit: str, aggregation: str, seed: int, quick: bool) -> Row:
    from palaestra import train

    settings = {
        **ENVS[env],
        "evaluation": 256, "keep_trajectories": 0, "progress": False, "device": "cpu",
        **({"iterations": 3, "evaluation": 64} if quick else {}),
    }  # fmt: skip
    if algorithm != "grpo":
        settings.pop("ent_coef", None)
    if aggregation:
        settings["loss_aggregation"] = aggregation
    rewards: list[float] = []
    turns: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        summary = train(
            **settings,
            algorithm=algorithm,
            credit=credit,
            model="nano" if env == "guess" else os.environ[WARM],
            seed=seed,
            callbacks=[
                lambda iteration: rewards.append(iteration.metrics["reward"]),
                lambda iteration: turns.append(iteration.metrics["turns"]),
            ],
            out=f"{folder}/run",
        ).summary
    return {
        "mean": round(statistics.mean(rewards), 4),
        **{name: round(summary[name], 4) for name in ("before", "after", "gain", "gain_low", "gain_high")},
        "turns": [round(turns[0], 2), round(turns[-1], 2)],
        "rewards": [round(reward, 3) for reward in rewards],
    }


def warm_up(folder: Path) -> None:
    """Teach `nano` what a move looks like, from random ones, and save it."""
    from palaestra.core.seeding import Seeds
    from palaestra.envs.turn.foreign import random_action_examples
    from palaestra.envs.turn.text import TextEnv
    from palaestra.models import registry as models
    from palaestra.students.supervised import Supervision, fine_tune

    model = models.load("nano", device="cpu")
    env = TextEnv("FrozenLake-v1", env_kwargs=LAKE, **TEXT)
    examples = random_action_examples(env, list(env.action_names), 128, seed=0)
    fine_tune(model.weights, model.tokenizer, examples, Supervision(learning_rate=1e-3), Seeds(0))
    model.weights.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main()
