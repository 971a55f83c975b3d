"""Does the model behind an agent learn? GRPO with `nano`, called by `examples/agents/guess.py` through the gateway.

The agent is a program with the `openai` client that knows nothing of Palaestra. It plays `palaestra/Guess-v0`: a number
from 1 to 8, three guesses, "Higher." or "Lower." after each. The same held-out episodes are played before and after, with
the same random numbers; gains of the mean reward have paired 95 % intervals. A token drifts if its log-prob in the training
pass differs by more than 0.001 from the recorded one. Ratio: the smallest lower end of an interval over 0.1 of reward
(above 0 it excludes 0).
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _common import arguments, finish

AGENT = f"{sys.executable} {Path(__file__).parents[1] / 'examples' / 'agents' / 'guess.py'}"
SETTINGS: dict[str, Any] = {
    "env": "palaestra/Guess-v0", "model": "nano", "agent": AGENT, "agent_start": "fork", "iterations": 16,
    "episodes": 128, "num_envs": 16, "max_tokens": 12, "learning_rate": 3e-4, "ent_coef": 0.002, "evaluation": 256,
}  # fmt: skip
DRIFT = 1e-3


def main() -> None:
    from palaestra.core.statistics import mean_interval

    options = arguments(__doc__ or "", seeds="how many seeds", first="the first seed")
    first = int(options.first or 0)
    rows = []
    for seed in range(first, first + (1 if options.quick else int(options.seeds or 3))):
        rows.append(train_agent(seed, options.quick, options.threads))
        print(rows[-1], flush=True)
    over_seeds = mean_interval([row["gain"] for row in rows])
    finish(
        "agent_learning",
        min(row["gain_low"] for row in rows) / 0.1,
        threads=options.threads,
        rows=rows,
        gain_over_seeds=[round(value, 3) for value in (over_seeds.value, over_seeds.low, over_seeds.high)],
    )


def train_agent(seed: int, quick: bool, threads: int) -> dict[str, Any]:
    from palaestra import train
    from palaestra.recipes.train.recipe import Iteration

    differences, tokens = [], 0

    def observe(iteration: Iteration) -> None:
        nonlocal tokens
        differences.append(iteration.metrics["sampling_logprob_difference_max"])
        tokens += int(iteration.metrics["actions"])

    settings = {**SETTINGS, "threads": threads, "seed": seed}
    settings |= {"iterations": 3, "episodes": 64, "evaluation": 64} if quick else {}
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        summary = train(out=f"{folder}/run", callbacks=[observe], **settings).summary
    return {
        "seed": seed,
        "before": round(summary["before"], 3),
        "after": round(summary["after"], 3),
        **{name: round(summary[name], 3) for name in ("gain", "gain_low", "gain_high")},
        "held_out": summary["gain_episodes"],
        "trained_on": summary["episodes"],
        "failures": summary["failures"],
        "tokens": tokens,
        "max_logprob_difference": max(differences),
        "iterations_with_drift": sum(difference > DRIFT for difference in differences),
        "seconds": round(time.perf_counter() - start),
    }


if __name__ == "__main__":
    main()
