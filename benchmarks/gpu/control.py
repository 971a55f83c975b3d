"""PPO on CartPole-v1 and on images (MinAtar's Breakout, 10 x 10 x 4): seconds to the same score on a CPU or a GPU.

    python benchmarks/gpu/control.py --device cpu --seeds 3
    python benchmarks/gpu/control.py --device cuda --seeds 3

Each run is the loop of `palaestra.train` with its preset, without the run folder. It stops when the mean return of the last 100
episodes reaches the goal: 475 in CartPole, 5 in Breakout (random actions: 0.5). One torch thread. Breakout needs MinAtar, which is pure Python and logs
a warning without matplotlib: `pip install --no-deps --target FOLDER minatar`, and FOLDER in PYTHONPATH. The last line is a JSON
object with the median seconds of each task and, for each seed, the curve: seconds, steps, mean return of the last 100 episodes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from typing import Any

TASKS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {"goal": 475.0, "settings": {"policy": "mlp", "iterations": 500}},
    "MinAtar/Breakout-v1": {"goal": 5.0, "settings": {"policy": "cnn", "iterations": 500}},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument("--only", default="", help=f"one of {', '.join(TASKS)}")
    parser.add_argument("--goal", type=float, default=None, help="another goal, with --only")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch

    torch.set_num_threads(1)
    name = torch.cuda.get_device_name(options.device) if options.device.startswith("cuda") else platform.processor()
    print(f"{options.device} {name or platform.machine()}, torch {torch.__version__}", flush=True)
    if options.only != "CartPole-v1":
        from minatar.gym import register_envs

        register_envs()
    figures: dict[str, Any] = {}
    for env, task in TASKS.items():
        if options.only not in ("", env):
            continue
        goal = task["goal"] if options.goal is None else options.goal
        rows = [run(env, goal, options.device, seed, task["settings"]) for seed in range(options.seeds)]
        figures[env] = {
            "goal": goal, "solved": sum(row["solved"] for row in rows), "seeds": len(rows),
            "median_seconds": statistics.median(row["seconds"] for row in rows), "rows": rows,
        }  # fmt: skip
    print(json.dumps({"benchmark": "gpu/control", "device": options.device, "torch": torch.__version__, **figures}))


def run(env: str, goal: float, device: str, seed: int, values: dict[str, Any]) -> dict[str, Any]:
    """Train until the goal. The seconds are those of everything after the imports, and of the parts of all iterations."""
    from palaestra.core.records import ignore
    from palaestra.recipes.train.build import build_loop
    from palaestra.recipes.train.presets import fill_presets, make_settings

    start, iteration = time.perf_counter(), 0
    settings = fill_presets(make_settings({"env": env, "seed": seed, "device": device, **values}))
    loop, iterations = build_loop(settings, ignore), settings.iterations or 0
    parts = {"environment": 0.0, "model": 0.0, "update": 0.0}
    curve: list[tuple[float, int, float]] = []
    while loop.recent_return < goal and iteration < iterations:
        iteration += 1
        metrics, _ = loop.iterate(iteration, 1.0 - (iteration - 1) / iterations, ignore)
        for part in parts:
            parts[part] += metrics[f"seconds_{part}"]
        if iteration % 5 == 0:
            curve.append((round(time.perf_counter() - start, 2), loop.actions, round(loop.recent_return, 2)))
    seconds = time.perf_counter() - start
    row = {
        "env": env, "seed": seed, "seconds": round(seconds, 2), "steps": loop.actions,
        "steps_per_second": round(loop.actions / seconds), "last_100": round(loop.recent_return, 2),
        "solved": loop.recent_return >= goal, **{f"seconds_{part}": round(spent, 2) for part, spent in parts.items()},
    }  # fmt: skip
    print(row, flush=True)
    row["curve"] = curve
    return row


if __name__ == "__main__":
    main()
