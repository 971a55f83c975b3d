"""How many lesson steps an hour, how noisy is their reward, and which plans are good: the flat view of `palaestra/Lesson-v0`.

Students are taught side by side (`--num`) by fixed plans and by a trained policy (`--policy RUN`, by default that of the teacher
`learned`), with the same seeds for every plan; `--first` is the first of them. The noise of a comparison is the standard deviation of the difference between the plans `errors` and `uniform`, with
equal seeds and with exchanged seeds. The ratio is the steps an hour over those of `LessonEnv` with the same lesson (`--quick`
measures fewer).
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from _common import arguments, finish

from palaestra.core.statistics import mean_interval
from palaestra.envs.lesson import LessonEnv
from palaestra.envs.lesson.flat import SHARPNESS, FlatLessonVectorEnv
from palaestra.teachers.base import make_teacher
from palaestra.teachers.learned import load_actor

Plan = Callable[[np.ndarray], np.ndarray]
"""Actions `[K, S]` for observations `[K, S, F]`."""


def plan_by_weights(weights_KS: np.ndarray) -> np.ndarray:
    """The action whose lesson has these parts, as far as the bounds of actions allow it."""
    logs_KS = np.log(weights_KS + 1e-3) / SHARPNESS
    middle_K1 = (logs_KS.max(1, keepdims=True) + np.maximum(logs_KS.min(1), logs_KS.max(1) - 2)[:, None]) / 2
    return np.clip(logs_KS - middle_K1, -1, 1).astype(np.float32)


PLANS: dict[str, Plan] = {
    "uniform": lambda seen: np.zeros(seen.shape[:2], dtype=np.float32),
    "errors": lambda seen: plan_by_weights(1 - seen[..., 0]),
    "p(1-p)": lambda seen: plan_by_weights(seen[..., 0] * (1 - seen[..., 0]) + 0.02),
    "middle": lambda seen: plan_by_weights((seen[..., 0] * (1 - seen[..., 0]) + 0.05) * (1 - seen[..., 0])),
}


def play(env: FlatLessonVectorEnv, plan: Plan, seed: int) -> np.ndarray:
    """The return of an episode of every student."""
    observations, _ = env.reset(seed=seed)
    returns_K = np.zeros(env.num_envs)
    for _ in range(env.rounds):
        observations, rewards_K, *_ = env.step(plan(observations))
        returns_K += rewards_K
    return returns_K


def main() -> None:
    options = arguments(
        __doc__ or "",
        policy="a run of palaestra train",
        num="students",
        batches="batches of students",
        env="JSON options",
        first="the first seed",
    )
    count, batches = int(options.num or 8), int(options.batches or (1 if options.quick else 8))
    env = FlatLessonVectorEnv(count, **json.loads(options.env or "{}"))
    network, first = load_actor(options.policy), int(options.first or 1_000_000)

    def plan_learned(seen: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return network(torch.from_numpy(seen).flatten(1)).numpy()

    plans = {**PLANS, "learned": plan_learned}
    start, returns = time.perf_counter(), {}
    for name, plan in plans.items():
        returns[name] = np.concatenate([play(env, plan, first + batch * count) for batch in range(batches)])
    steps = len(plans) * batches * count * env.rounds
    rate = 3600 * steps / (time.perf_counter() - start)
    for name, values in returns.items():
        mean = mean_interval(100 * values)
        print(
            f"{name:10} {mean.value:6.2f} [{mean.low:.2f}, {mean.high:.2f}] points over {mean.count} students", end=""
        )
        for other in ("uniform", "p(1-p)"):
            lead = mean_interval(100 * (values - returns[other]))
            print(f"; minus {other} {lead.value:+.2f} [{lead.low:+.2f}, {lead.high:+.2f}]", end="")
        print(flush=True)
    differences = returns["errors"] - returns["uniform"]
    paired, exchanged = differences.std(ddof=1), (returns["errors"] - np.roll(returns["uniform"], 1)).std(ddof=1)
    print(f"noise of a comparison: {100 * paired:.2f} points with equal seeds, {100 * exchanged:.2f} with others")

    single = LessonEnv(rounds=1, budget=env.lesson_size, validation=16, test=1)
    state, _ = single.reset(seed=0)
    lesson = make_teacher("no_state", single.task).write(state, env.lesson_size, np.random.default_rng(0))
    seconds = []
    for _ in range(1 if options.quick else 3):
        single.reset(seed=0)
        start = time.perf_counter()
        single.step(lesson)
        seconds.append(time.perf_counter() - start)
    ratio = rate * statistics.median(seconds) / 3600
    finish(
        "lesson_steps",
        ratio,
        steps_per_hour=round(rate),
        students=count,
        paired_noise=float(paired),
        other_noise=float(exchanged),
    )


if __name__ == "__main__":
    main()
