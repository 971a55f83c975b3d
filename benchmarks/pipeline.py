"""Does one slow response per iteration cost throughput, and does the simulation predict real workers?

The real driver, scheduler and worker processes (`RolloutWorkers` on `processes:N`) play groups that sleep, and the learner
sleeps, too: sleeping processes need no cores. The first part measures responses per second with and without one slow
response per iteration, for a learner that is slower than the workers and for one that is faster. With a faster one the
slow response costs at least its share of the workers' time. The second part, `--validate`, measures 2, 4 and 8 workers whose groups take log-normal times, and
compares `simulate_cluster.simulate` with the same times.

    python benchmarks/pipeline.py
    python benchmarks/pipeline.py --validate
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _common import arguments, finish

from palaestra.executors.base import Resources, open_executor
from palaestra.rl.loop import LoopConfig
from palaestra.rl.rollout_workers import RolloutWorkers
from palaestra.rl.rollouts import Rollout, TokenInputs, make_episode_rollout

GROUP = 2
SLOW = 1.0
"""Seconds of the slow response: a whole iteration, five times a usual group."""


@dataclass(frozen=True)
class Load:
    """What workers and the learner do: sleep.

    Arguments:
        workers: worker processes.
        groups: groups of two episodes per update.
        group_seconds: mean seconds of a group; a worker plays one after the other.
        sigma: of their log-normal distribution; 0: all take the mean.
        slow: more seconds of the first group of each iteration.
        learn: seconds of an update.
        tokens: of a response.
    """

    workers: int = 8
    groups: int = 32
    updates: int = 12
    group_seconds: float = 0.2
    sigma: float = 0.0
    slow: float = 0.0
    learn: float = 1.0
    staleness: int = 2
    tokens: int = 256

    def get_seconds(self, first: int, groups: int) -> float:
        """The seconds of some groups."""
        return sum(self._draw(group) + (0 if group % self.groups else self.slow) for group in range(first, first + groups))

    def _draw(self, group: int) -> float:
        generator = np.random.default_rng((1, group))
        return self.group_seconds * float(generator.lognormal(-(self.sigma**2) / 2, self.sigma))

    @property
    def part_groups(self) -> int:
        from palaestra.rl.scheduler import choose_part_size

        return choose_part_size(self.groups, self.groups, self.workers, self.staleness)

    @property
    def parts_per_batch(self) -> int:
        return self.groups // self.part_groups

    def make_rollout(self, first: int, episodes: int) -> Rollout:
        """A rollout with as much content as a real one."""
        ids, values = tuple(range(self.tokens)), [0.0] * self.tokens
        return make_episode_rollout(
            TokenInputs([ids[:64]] * episodes, [ids] * episodes),
            logprobs=[values] * episodes,
            entropies=[values] * episodes,
            rewards=[values] * episodes,
            returns=[0.0] * episodes,
            truncated=[False] * episodes,
            failures=[""] * episodes,
            groups=[(first + k) // GROUP for k in range(episodes)],
            records=[None] * episodes,
        )


class SleepingActor:
    """A worker whose model is one matrix and whose episodes sleep."""

    def __init__(self, load: Load) -> None:
        self.load, self.policy, self.version = load, torch.nn.Linear(256, 256), None

    def collect(self, first: int, episodes: int, version: int, prompts: Any) -> Rollout:
        time.sleep(self.load.get_seconds(first // GROUP, episodes // GROUP))
        return self.load.make_rollout(first, episodes)


@dataclass(frozen=True)
class Measured:
    """Responses per second after the first half of the updates, and CPU seconds of the driver."""

    rate: float
    cpu_seconds: float


def collect_all(load: Load) -> Measured:
    """Collect all rollouts of a run with the real workers."""
    episodes = load.groups * GROUP
    values: dict[str, Any] = {field.name: None for field in fields(LoopConfig)}  # Workers read few of them.
    values |= {"iterations": load.updates, "num_envs": episodes, "episodes": episodes, "group_size": GROUP}
    config = LoopConfig(**values | {"max_staleness": load.staleness})
    executor = open_executor(f"processes:{load.workers}")
    workers = RolloutWorkers(config, executor, Resources(), partial(SleepingActor, load), print)
    weights = dict(SleepingActor(load).policy.named_parameters())
    weights = {name: tensor.detach().clone() for name, tensor in weights.items()}
    try:
        half, cpu = 0.0, 0.0
        for iteration in range(1, load.updates + 1):
            workers.collect(iteration, weights, {})
            time.sleep(load.learn)
            if iteration == 1:
                cpu = time.process_time()  # All workers have started.
            if iteration == load.updates // 2:
                half = time.perf_counter()
        seconds, cpu = time.perf_counter() - half, time.process_time() - cpu
    finally:
        workers.close()
    return Measured((load.updates - load.updates // 2) * episodes / seconds, cpu * load.updates / (load.updates - 1))


class SleepingWork:
    """The same sleeps for the simulation, with the measured costs of the driver."""

    def __init__(self, load: Load, driver: dict[str, float]) -> None:
        self.load_, self.driver = load, driver
        self.tokens = load.part_groups * GROUP * load.tokens

    def play(self, part: Any) -> float:
        return self.load_.get_seconds(part.number * self.load_.part_groups, self.load_.part_groups)

    def load(self) -> float:
        return 0.0

    def dispatch(self) -> float:
        return self.driver["part_seconds"] / 2

    def receive(self) -> float:
        return self.driver["part_seconds"] / 2 + self.driver["receive_seconds_per_token"] * self.tokens

    def share(self) -> float:
        return 0.0

    def join(self, batch: Any) -> float:
        return self.driver["join_seconds_per_token"] * self.tokens * self.load_.parts_per_batch

    def learn(self, batch: Any) -> float:
        return self.load_.learn


def predict(load: Load) -> float:
    """The simulated responses per second."""
    from simulate_cluster import TIMES, simulate

    work = SleepingWork(load, json.loads(Path(TIMES).read_text())["driver"])
    totals = simulate(work, load.workers, load.parts_per_batch, load.updates, load.staleness)
    return totals.updates_per_second * load.groups * GROUP


def validate(updates: int) -> None:
    """Measured against simulated responses per second."""
    errors = []
    for workers in (2, 4, 8):
        for staleness in (0, 2):
            load = Load(
                workers, groups=24, updates=updates, group_seconds=workers / 24, sigma=0.8, learn=0.8, staleness=staleness
            )
            measured, predicted = collect_all(load).rate, predict(load)
            errors.append(predicted / measured - 1)
            print(f"{workers} workers, staleness {staleness}: measured {measured:.1f}, simulated {predicted:.1f} responses/s ({errors[-1]:+.1%})")
    finish("pipeline_validation", 1 + max(errors, key=abs), errors=[round(error, 4) for error in errors])


def main() -> None:
    options = arguments(__doc__ or "", validate="'yes': compare the simulation with measured runs")
    updates = 6 if options.quick else 12
    if options.validate:
        return validate(updates)
    ratios = {}
    cases = {"learner": Load(updates=updates), "rollouts": Load(updates=updates, learn=0.2)}
    for name, load in cases.items():
        usual, slow = (collect_all(load_).rate for load_ in (load, replace(load, slow=SLOW)))
        ratios[name] = round(slow / usual, 3)
        print(f"bound by the {name}: {usual:.1f} responses/s, {slow:.1f} with one slow response per iteration: {slow / usual:.3f}")
    finish("pipeline", ratios["learner"], **ratios)


if __name__ == "__main__":
    main()
