"""Does one slow response per iteration cost throughput, and does the simulation predict real workers?

The real driver, scheduler and worker processes (`RolloutWorkers` on `processes:N`) play groups that sleep, and the learner
sleeps, too: sleeping processes need no cores. The first part measures responses per second with and without one slow
response per iteration, for a learner that is slower than the workers and for one that is faster. With a faster one the
slow response costs at least its share of the workers' time. The second part, `--validate yes`, measures 2, 4 and 8 workers whose groups
take log-normal times, and compares `simulate_cluster.simulate` with the same times. With `--overdue yes` a response takes longer than all updates of
the staleness together, now and then: the learner waits for it, or it is cut, or newer weights continue it.

    python benchmarks/pipeline.py
    python benchmarks/pipeline.py --validate yes
    python benchmarks/pipeline.py --overdue yes
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from _common import arguments, finish

from palaestra.executors.base import Resources, open_executor
from palaestra.rl.interruptions import Interruptions
from palaestra.rl.loop import LoopConfig
from palaestra.rl.rollout_workers import RolloutWorkers
from palaestra.rl.rollouts import Rollout, TokenInputs, make_episode_rollout
from palaestra.rl.scheduler import Overdue

GROUP = 2
SLOW = 1.0
"""Seconds of the slow response: a whole iteration, five times a usual group."""
LONG, LONG_EVERY = 4.0, 6
"""Seconds of a response that is overdue at a staleness of 2, and the iterations from one to the next."""
STEP = 0.05
"""Seconds of a sampling step."""


@dataclass(frozen=True)
class Load:
    """What workers and the learner do: sleep.

    Arguments:
        workers: worker processes.
        groups: groups of two episodes per update.
        group_seconds: mean seconds of a group; a worker plays one after the other.
        sigma: of their log-normal distribution; 0: all take the mean. Every iteration has the same seconds.
        slow: more seconds of the first group of an iteration.
        slow_every: iterations from one with a slow group to the next.
        learn: seconds of an update.
    """

    workers: int = 8
    groups: int = 32
    group_seconds: float = 0.2
    sigma: float = 0.0
    slow: float = 0.0
    slow_every: int = 1
    learn: float = 1.0
    staleness: int = 2

    def draw_seconds(self, iteration: int = 0) -> np.ndarray:
        """The seconds of the groups of an iteration."""
        drawn = np.random.default_rng(1).lognormal(0.0, self.sigma, self.groups)
        seconds: np.ndarray = drawn * self.group_seconds / drawn.mean()
        seconds[0] += self.slow * (iteration % self.slow_every == 0)
        return seconds

    @property
    def part_groups(self) -> int:
        from palaestra.rl.scheduler import choose_part_size

        return choose_part_size(self.groups, self.groups, self.workers, self.staleness)

    @property
    def parts_per_batch(self) -> int:
        return self.groups // self.part_groups


class SleepingActor:
    """A worker whose model is one matrix. The prompt of a group is the number of microseconds that it sleeps."""

    def __init__(self, tokens: int = 256) -> None:
        self.tokens, self.policy, self.version = tokens, torch.nn.Linear(256, 256), None

    def collect(
        self, first: int, episodes: int, version: int, prompts: Sequence[int], interruptions: Interruptions | None
    ) -> Rollout:
        rollout, end = make_rollout(first, episodes, self.tokens), time.monotonic() + sum(prompts) / 1e6
        while (left := end - time.monotonic()) > 0 and not (interruptions and interruptions.is_cut):
            time.sleep(left if interruptions is None else min(left, STEP))
            if interruptions is not None:
                interruptions.check()
        if interruptions is not None:
            interruptions.mark(rollout, [[(0, version)]] * episodes)
        return rollout


def make_rollout(first: int, episodes: int, tokens: int) -> Rollout:
    """A rollout with as much content as a real one. Its records are the process that made it."""
    values = [0.0] * tokens
    ids = [tuple(range(1000 * k, 1000 * k + tokens)) for k in range(episodes)]
    return make_episode_rollout(
        TokenInputs([own[:64] for own in ids], ids),
        logprobs=[values] * episodes,
        entropies=[values] * episodes,
        rewards=[values] * episodes,
        returns=[0.0] * episodes,
        truncated=[False] * episodes,
        failures=[""] * episodes,
        groups=[(first + k) // GROUP for k in range(episodes)],
        records=[os.getpid()] * episodes,
    )


@dataclass(frozen=True)
class Measured:
    """Responses per second, and CPU seconds of the driver per update."""

    rate: float
    cpu_seconds: float


def measure_phases(
    loads: Sequence[Load],
    updates: int,
    make_actor: type[SleepingActor] | Any = SleepingActor,
    overdue: Overdue = "wait",
) -> list[Measured]:
    """Collect rollouts with the real workers, under one load after the other. They differ in times only.

    Each load runs for a few updates until it is steady, and then for `updates` measured ones.
    """
    load = loads[0]
    episodes = load.groups * GROUP
    values: dict[str, Any] = {field.name: None for field in fields(LoopConfig)}  # Workers read few of them.
    values |= {"iterations": 10**6, "num_envs": episodes, "episodes": episodes, "group_size": GROUP, "overdue": overdue}
    config = LoopConfig(**values | {"max_staleness": load.staleness})
    executor = open_executor(f"processes:{load.workers}")
    workers = RolloutWorkers(config, executor, Resources(), make_actor, lambda event: None)
    weights = {name: p.detach().clone() for name, p in SleepingActor().policy.named_parameters()}
    prompts: dict[int, list[int]] = {}
    pids: set[int] = set()
    iteration = 0

    def update(load: Load) -> None:
        nonlocal iteration
        iteration += 1
        for number in range(iteration, iteration + load.staleness + 1):
            prompts.setdefault(number, [round(seconds * 1e6) for seconds in load.draw_seconds(number)])
        pids.update(workers.collect(iteration, weights, prompts).get_episodes().records)
        time.sleep(load.learn)

    measured = []
    try:
        while len(pids) < load.workers:  # Processes start slowly.
            update(load)
        for load in loads:
            for _ in range(3 + 2 * load.staleness):
                update(load)
            start, cpu = time.perf_counter(), time.process_time()
            for _ in range(updates):
                update(load)
            seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
            measured.append(Measured(updates * episodes / seconds, cpu / updates))
    finally:
        workers.close()
    return measured


class SleepingWork:
    """The same sleeps for the simulation. `part` is what the driver does for each part, in seconds."""

    def __init__(self, sleeps: Load, part: float) -> None:
        self.sleeps, self.part, self.seconds = sleeps, part, sleeps.draw_seconds()

    def play(self, part: Any) -> float:
        first = part.number * self.sleeps.part_groups % self.sleeps.groups
        return float(self.seconds[first : first + self.sleeps.part_groups].sum())

    def load(self) -> float:
        return 0.0

    def dispatch(self) -> float:
        return self.part / 2

    def receive(self) -> float:
        return self.part / 2

    def share(self) -> float:
        return 0.0

    def join(self, batch: Any) -> float:
        return 0.0

    def learn(self, batch: Any) -> float:
        return self.sleeps.learn


def predict(load: Load, part: float = 0.003, updates: int = 24) -> float:
    """The simulated responses per second."""
    from simulate_cluster import simulate

    totals = simulate(SleepingWork(load, part), load.workers, load.parts_per_batch, updates, load.staleness)
    return totals.updates_per_second * load.groups * GROUP


def validate(updates: int) -> None:
    """Measured against simulated responses per second.

    The costs of the driver depend on what else the machine does, so they are measured in the same run, by updates that do
    not sleep.
    """
    errors = []
    for workers, staleness in ((4, 0), (2, 2), (4, 2), (8, 2)):
        # Balanced, bound by the rollouts, and bound by the learner.
        base = Load(workers, groups=24, group_seconds=workers / 24, sigma=0.8, learn=1.0, staleness=staleness)
        loads = [base, replace(base, learn=0.3), replace(base, learn=1.5)]
        idle, *rows = measure_phases([replace(base, group_seconds=0.0, learn=0.0), *loads], updates)
        part = base.groups * GROUP / idle.rate / base.parts_per_batch
        for load, measured in zip(loads, rows, strict=True):
            predicted = predict(load, part)
            errors.append(predicted / measured.rate - 1)
            print(
                f"{workers} workers, staleness {staleness}, an update of {load.learn} s, {1000 * part:.0f} ms of the driver per "
                f"part: measured {measured.rate:.1f}, simulated {predicted:.1f} responses/s ({errors[-1]:+.1%})",
                flush=True,
            )
    finish("pipeline_validation", 1 + max(errors, key=abs), errors=[round(error, 4) for error in errors])


def compare_overdue(updates: int) -> None:
    """Responses per second with a long response now and then, by what happens to it, and without one."""
    load = Load(learn=0.2)
    long = replace(load, slow=LONG, slow_every=LONG_EVERY)
    rates: dict[str, float] = {}
    choices: tuple[Overdue, ...] = ("wait", "drop", "cut", "continue")
    for overdue in choices:
        usual, rate = (measured.rate for measured in measure_phases([load, long], updates, overdue=overdue))
        rates[overdue] = rate / usual
        print(f"{overdue}: {usual:.1f} responses/s, {rate:.1f} with a long response: {rates[overdue]:.3f}", flush=True)
    finish("pipeline_overdue", rates["continue"], **{name: round(rate, 3) for name, rate in rates.items()})


def main() -> None:
    options = arguments(
        __doc__ or "",
        validate="'yes': compare the simulation with measured runs",
        overdue="'yes': compare what happens to overdue responses",
    )
    updates = 6 if options.quick else 10
    if options.overdue:
        compare_overdue(LONG_EVERY * (1 if options.quick else 3))
        return
    if options.validate:
        validate(updates)
        return
    fast = Load(learn=0.2)
    loads = [Load(), Load(slow=SLOW), fast, replace(fast, slow=SLOW)]
    rates = [measured.rate for measured in measure_phases(loads, updates)]
    ratios = {"slow learner": rates[1] / rates[0], "fast learner": rates[3] / rates[2]}
    for name, (usual, slow) in zip(ratios, (rates[:2], rates[2:]), strict=True):
        print(f"{name}: {usual:.1f} responses/s, {slow:.1f} with one slow response per iteration: {slow / usual:.3f}")
    finish("pipeline", ratios["slow learner"], **{name: round(ratio, 3) for name, ratio in ratios.items()})


if __name__ == "__main__":
    main()
