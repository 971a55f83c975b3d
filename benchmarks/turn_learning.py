"""Does a language model learn over several turns here? GRPO on `palaestra/Guess-v0` with `nano`, three seeds.

A number from 1 to 8, three guesses, "Higher." or "Lower." after each. `nano` comes as it is, with no warm-up: it was
never trained on a second turn, and finds a number now and then. Who does not listen finds at most 3 of 8 (0.375), who
halves the range 7 of 8. Measured on the same held-out episodes with the same random numbers before and after; gains of
the mean reward with paired 95 % intervals; at most five minutes a seed on two cores. Ratio: the smallest lower end of an
interval over 0.1 of reward (above 0 it excludes 0).
"""

from __future__ import annotations

import tempfile
import time
from typing import Any

from _common import arguments, finish

SETTINGS: dict[str, Any] = {
    "iterations": 24, "episodes": 128, "num_envs": 128, "max_tokens": 12, "learning_rate": 3e-4,
    "ent_coef": 0.002, "evaluation": 256,
}  # fmt: skip


def main() -> None:
    from palaestra.core.statistics import mean_interval

    options = arguments(__doc__ or "", seeds="how many seeds", algorithm="grpo unless told otherwise")
    seeds = range(1 if options.quick else int(options.seeds or 3))
    rows = []
    for seed in seeds:
        rows.append(run_seed(options.algorithm or "grpo", seed, options.quick, options.threads))
        print(rows[-1], flush=True)
    over_seeds = mean_interval([row["gain"] for row in rows])
    finish(
        "turn_learning",
        min(row["gain_low"] for row in rows) / 0.1,
        threads=options.threads,
        rows=rows,
        gain_over_seeds=[round(value, 3) for value in (over_seeds.value, over_seeds.low, over_seeds.high)],
    )


def run_seed(algorithm: str, seed: int, quick: bool, threads: int) -> dict[str, Any]:
    from palaestra import train

    settings = {**SETTINGS, "threads": threads, **({"iterations": 8, "evaluation": 128} if quick else {})}
    with tempfile.TemporaryDirectory() as folder:
        start, working = time.perf_counter(), time.process_time()
        summary = train(
            env="palaestra/Guess-v0", algorithm=algorithm, model="nano", seed=seed, out=f"{folder}/run", **settings
        ).summary
    return {
        "seed": seed,
        "before": round(summary["before"], 3),
        "after": round(summary["after"], 3),
        **{name: round(summary[name], 3) for name in ("gain", "gain_low", "gain_high")},
        "episodes": summary["gain_episodes"],
        "trained_on": summary["episodes"],
        "seconds": round(time.perf_counter() - start),
        "cpu_seconds": round(time.process_time() - working),
    }


if __name__ == "__main__":
    main()
