"""Does a language model learn to reason here? GRPO and PPO on `palaestra/CoT-v0` with `nano`, three seeds each.

The eight skills of `math-skills` that `nano` knows a little of; held-out test problems, asked greedily before and
after; gains in points with paired 95 % intervals; at most five minutes each on two cores. Ratio: the smallest lower
end of an interval over the 15 points that are wanted of the gain itself (above 0 it excludes 0).
"""

from __future__ import annotations

import tempfile
import time
from typing import Any

from _common import arguments, finish

SKILLS = '["average", "change", "clock", "fractions", "groups", "percent", "geometry", "missing_number"]'
SETTINGS: dict[str, dict[str, Any]] = {"grpo": {"iterations": 44}, "ppo": {"iterations": 34}}


def main() -> None:
    options = arguments(__doc__ or "", algorithms="grpo,ppo", seeds="how many seeds")
    seeds = range(1 if options.quick else int(options.seeds or 3))
    rows = []
    for algorithm in (options.algorithms or "grpo,ppo").split(","):
        for seed in seeds:
            rows.append(run_seed(algorithm, seed, options.quick))
            print(rows[-1], flush=True)
    finish("token_learning", min(row["gain_low"] for row in rows) / 15, problems=rows[0]["problems"], rows=rows)


def run_seed(algorithm: str, seed: int, quick: bool) -> dict[str, Any]:
    from palaestra import train

    settings = {**SETTINGS[algorithm], **({"iterations": 8} if quick else {})}
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        summary = train(
            env="palaestra/CoT-v0",
            env_kwargs={"skills": SKILLS},
            algorithm=algorithm,
            model="nano",
            seed=seed,
            evaluation=37,
            out=f"{folder}/run",
            **settings,
        ).summary
    names = ("before", "after", "gain", "gain_low", "gain_high", "problems", "actions", "episodes")
    return {
        "algorithm": algorithm,
        "seed": seed,
        **{n: summary[n] for n in names},
        "seconds": round(time.perf_counter() - start),
    }


if __name__ == "__main__":
    main()
