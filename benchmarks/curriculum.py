"""Does a curriculum teach more with the same number of episodes? GRPO trains `nano` on math-skills.

The problems are a mixture of skills that `nano` solves always, sometimes and never. Each curriculum gets the same seeds,
initial weights, problems and episodes as `uniform`. Ratio: the smallest gain of a curriculum over that of `uniform`.
"""

from __future__ import annotations

import statistics
import tempfile

from _common import ROWS, Row, arguments, collect_rows, finish

from palaestra import train
from palaestra.core.statistics import mean_interval
from palaestra.rl.curriculum import CURRICULA, UNIFORM


def main() -> None:
    options = arguments(
        __doc__ or "", threads=1, curricula="names, separated by commas", seeds="number of seeds", **ROWS
    )
    names = (UNIFORM, *(options.curricula.split(",") if options.curricula else CURRICULA.names()))
    seeds, iterations = (range(1), 5) if options.quick else (range(int(options.seeds or 5)), 40)
    cells = [{"curriculum": name, "seed": seed, "iterations": iterations} for seed in seeds for name in names]
    all_rows = collect_rows(train_once, cells, options)
    rows = {name: {row["seed"]: row for row in all_rows if row["curriculum"] == name} for name in names}
    means = {name: statistics.mean(row["gain"] for row in part.values()) for name, part in rows.items() if part}
    for name in [name for name in names[1:] if name in means]:
        pairs = [(row, rows[UNIFORM][seed]) for seed, row in rows[name].items() if seed in rows[UNIFORM]]
        difference = mean_interval([own["gain"] - other["gain"] for own, other in pairs])
        print(
            f"{name} - uniform: {difference.value:+.1f} [{difference.low:+.1f}, {difference.high:+.1f}] points",
            flush=True,
        )
    finish("curriculum", min(gain for name, gain in means.items() if name != UNIFORM) / means[UNIFORM], rows=all_rows)


def train_once(curriculum: str, seed: int, iterations: int) -> Row:
    idle: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        result = train(
            env="palaestra/CoT-v0",
            env_kwargs={"problems": 50},
            task="math-skills",
            curriculum=curriculum,
            seed=seed,
            iterations=iterations,
            episodes=128,
            num_envs=128,
            evaluation=25,
            keep_trajectories=0,
            progress=False,
            callbacks=[lambda iteration: idle.append(iteration.metrics["frac_reward_zero_std"])],
            out=f"{folder}/run",
        )
    return {
        "gain": result.gain,
        "low": result.gain_interval[0],
        "high": result.gain_interval[1],
        "frac_reward_zero_std": round(statistics.mean(idle), 3),
    }


if __name__ == "__main__":
    main()
