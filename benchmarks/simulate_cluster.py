"""RL on a cluster, in simulation: rollouts, grading and learning on N GPUs. What is the bottleneck, and what to add next?

The queue is the one of the runs: `palaestra.rl.scheduler.RolloutScheduler` with simulated time. The rest is modeled as the
code does it: a worker plays one part at a time and grades its responses itself; rank 0 copies the weights to the host and
shares them through the driver; the driver receives and joins the rollouts. Service times were measured
(`service_times.py`, in `service_times.json`). Networks, memory, the efficiency of sharded training and the growth of
decoding steps with the context are assumed (`Cluster`, `Times`); docs/scaling.md names them. `pipeline.py` compares the
simulation with real workers.

    python benchmarks/simulate_cluster.py --model 7b --gpus 8 64 1024
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from palaestra.rl.scheduler import Batch, RolloutPart, RolloutScheduler, choose_part_size

TIMES = Path(__file__).with_name("service_times.json")
GB = 1e9


class Work(Protocol):
    """The seconds of everything that takes time."""

    def load(self) -> float:
        """A worker gets new weights."""
        ...

    def play(self, part: RolloutPart) -> float:
        """A worker plays and grades a part."""
        ...

    def dispatch(self) -> float:
        """The driver gives a part to a worker."""
        ...

    def receive(self) -> float:
        """The driver takes the result of a part."""
        ...

    def share(self) -> float:
        """Rank 0 copies its weights to the host and the driver shares them."""
        ...

    def join(self, batch: Batch[None]) -> float:
        """The driver joins the rollouts of a batch."""
        ...

    def learn(self, batch: Batch[None]) -> float:
        """The learner updates its weights."""
        ...


@dataclass
class Totals:
    """What happened in the simulated time: seconds of each kind of work."""

    updates: int = 0
    seconds: float = 0.0
    half: float = 0.0
    """The time of the update in the middle: the rate after it leaves out the start."""
    work: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("play", "load", *LEARNER, "driver"), 0.0))
    dropped: int = 0
    staleness: list[int] = field(default_factory=list)

    @property
    def updates_per_second(self) -> float:
        return (self.updates - self.updates // 2) / (self.seconds - self.half)


LEARNER = ("learn", "share", "join")
"""What the learner's thread does one after the other."""


def simulate(work: Work, workers: int, parts_per_batch: int, updates: int, max_staleness: int) -> Totals:
    """Run the scheduler with workers that pull, a learner, and a driver that serves one worker at a time."""
    totals, events, number, now = Totals(), list[tuple[float, int, Callable[[], None]]](), count(), 0.0
    scheduler: RolloutScheduler[None] = RolloutScheduler(parts_per_batch, updates, max_staleness, lambda: now)
    free, has = list(range(workers)), dict.fromkeys(range(workers), -1)
    driver_free, waits = 0.0, False

    def after(seconds: float, kind: str, action: Callable[[], None], start: float | None = None) -> float:
        end = (now if start is None else start) + seconds
        if kind:
            totals.work[kind] += seconds
        heapq.heappush(events, (end, next(number), action))
        return end

    def pull() -> None:
        nonlocal driver_free
        while free and (part := scheduler.next_part()) is not None:
            # A worker that has the weights of the part, if there is one.
            worker = next((w for w in free if has[w] == part.version), free[0])
            free.remove(worker)
            totals.work["driver"] += work.dispatch()
            driver_free = max(now, driver_free) + work.dispatch()
            loading = work.load() if has[worker] != part.version else 0.0
            has[worker], playing = part.version, work.play(part)
            totals.work["load"] += loading
            totals.work["play"] += playing
            after(loading + playing, "", lambda w=worker, p=part: answer(w, p), driver_free)  # type: ignore[misc]

    def answer(worker: int, part: RolloutPart) -> None:
        nonlocal driver_free
        driver_free = after(work.receive(), "driver", lambda: finish(worker, part), max(now, driver_free))

    def finish(worker: int, part: RolloutPart) -> None:
        scheduler.finish_part(part, None)
        free.append(worker)
        close()
        pull()

    def close() -> None:
        nonlocal waits
        if waits and (batch := scheduler.close_batch()) is not None:
            waits = False
            totals.dropped += batch.dropped
            totals.staleness += batch.staleness
            after(work.join(batch), "join", lambda: after(work.learn(batch), "learn", share))

    def share() -> None:
        totals.updates += 1
        totals.seconds = now
        if totals.updates == updates // 2:
            totals.half = now
        if totals.updates < updates:
            after(work.share(), "share", update)

    def update() -> None:
        nonlocal waits
        scheduler.update_version(totals.updates)
        waits = True
        close()
        pull()

    update()
    while totals.updates < updates:
        now, _, action = heapq.heappop(events)
        action()
    return totals


@dataclass(frozen=True)
class Cluster:
    """A cluster, and the work of one update.

    Arguments:
        rollout_gpus, learner_gpus: how the GPUs are divided. Each rollout GPU is a worker with one core for grading.
        slots: sequences that a GPU decodes at a time at most.
        responses, group_size: of one update.
        mean_tokens, sigma, max_tokens: of the log-normal length of a response.
        staleness: `max_staleness`.
        grading: the kind of verdict, a key of the measured gradings.
        node_gpus: GPUs of a node (assumed).
        network: bytes per second of a collective between nodes, of each GPU (assumed: 400 Gb/s).
        transfer: bytes per second of a copy of shared weights to a node (assumed: TCP).
        direct: the learners send their parts of the weights to all workers over the network, as `--weight-transfer nccl` does;
            otherwise rank 0 gathers them and the driver shares them (`executor`).
        sharding: the share of the single GPU's speed that is left with sharded weights (assumed).
        memory: bytes of a GPU.
        bandwidth: bytes per second of a GPU's memory when it reads the keys and values of attention (assumed: 60 % of 4.8 TB/s).
    """

    model: str = "7b"
    rollout_gpus: int = 4
    learner_gpus: int = 4
    slots: int = 256
    responses: int = 1024
    group_size: int = 8
    prompt_tokens: int = 256
    mean_tokens: float = 1024.0
    sigma: float = 0.6
    max_tokens: int = 4096
    staleness: int = 2
    grading: str = "code-skills"
    node_gpus: int = 8
    network: float = 50 * GB
    transfer: float = 2.5 * GB
    direct: bool = False
    sharding: float = 0.8
    memory: float = 141 * GB
    bandwidth: float = 0.6 * 4.8e12

    @cached_property
    def part_groups(self) -> int:
        """The groups of a part, as a run chooses them."""
        groups, slots = self.responses // self.group_size, self.slots // self.group_size
        return choose_part_size(groups, slots, self.rollout_gpus, self.staleness)

    @property
    def parts_per_batch(self) -> int:
        return self.responses // self.group_size // self.part_groups


@dataclass(frozen=True)
class Times:
    """Measured service times of one model, of the grader and of the driver.

    Arguments:
        decode: seconds of a decoding step by the number of sequences, at a context of `decode_context` tokens.
        cache_bytes: keys and values per token, from the shape of the model. Longer contexts are extrapolated with them.
        prefill, update: tokens per second, forward, and forward and backward.
        to_host: bytes per second between a GPU and its host.
        part: seconds of the driver for a part without its content; `token`: seconds per token to receive, `join` to join.
        pack: bytes per second of sharing a value on the driver's node.
    """

    parameters: float
    decode: tuple[tuple[int, float], ...]
    decode_context: int
    cache_bytes: float
    prefill: float
    update: float
    optimizer: float
    to_host: float
    grading: float
    part: float
    token: float
    join: float
    pack: float

    def step(self, sequences: int, context: float, bandwidth: float) -> float:
        """Seconds of one decoding step: interpolated between the numbers of sequences, extrapolated over the context."""
        counts, seconds = zip(*self.decode, strict=True)
        more = (context - self.decode_context) * sequences * self.cache_bytes / bandwidth
        return max(float(np.interp(sequences, counts, seconds)) + more, seconds[0])


def read_times(model: str, grading: str, path: Path = TIMES) -> Times:
    known = json.loads(path.read_text())
    figures, driver = known["NVIDIA H200"][model], known["driver"]
    return Times(
        parameters=figures["parameters"],
        decode=tuple(sorted((int(n), ms / 1e3) for n, ms in figures["decode_ms"].items())),
        decode_context=figures["decode_context"],
        cache_bytes=figures["cache_bytes_per_token"],
        prefill=figures["prefill_tokens_per_second"],
        update=figures["update_tokens_per_second"],
        optimizer=figures["optimizer_step_seconds"],
        to_host=figures["to_host_gb_per_second"] * GB,
        grading=known["grading"][grading],
        part=driver["part_seconds"],
        token=driver["receive_seconds_per_token"],
        join=driver["join_seconds_per_token"],
        pack=driver["share_gb_per_second"] * GB,
    )


class ClusterWork:
    """The seconds of the work on a cluster of GPUs."""

    def __init__(self, cluster: Cluster, times: Times, seed: int = 0) -> None:
        self.cluster, self.times, self.seed = cluster, times, seed
        self.part_tokens = cluster.part_groups * cluster.group_size * (cluster.mean_tokens + cluster.prompt_tokens)
        self.kinds = {"decoding": 0.0, "grading": 0.0}

    def draw_lengths(self, part: int) -> np.ndarray:
        """The sorted lengths of the responses of a part."""
        c, generator = self.cluster, np.random.default_rng((self.seed, part))
        location = math.log(c.mean_tokens) - c.sigma**2 / 2
        lengths = generator.lognormal(location, c.sigma, c.part_groups * c.group_size)
        return np.sort(np.clip(np.round(lengths), 1, c.max_tokens))

    def play(self, part: RolloutPart) -> float:
        c, times, lengths = self.cluster, self.times, self.draw_lengths(part.number)
        prefill, decoding = c.part_groups * c.prompt_tokens / times.prefill, 0.0
        before = 0.0
        for place, length in enumerate(lengths):  # All start together, and the batch shrinks as they end.
            if length > before:
                context = c.prompt_tokens + (before + length) / 2
                decoding += (length - before) * times.step(len(lengths) - place, context, c.bandwidth)
                before = length
        grading = len(lengths) * times.grading
        self.kinds["decoding"] += prefill + decoding
        self.kinds["grading"] += grading
        return prefill + decoding + grading

    def load(self) -> float:
        """A node gets the weights from the driver's node or from one that has them; then each GPU copies them."""
        nodes = math.ceil(self.cluster.rollout_gpus / self.cluster.node_gpus)
        size = 2 * self.times.parameters
        if self.cluster.direct:
            return size / self.cluster.network + size / self.times.to_host
        return math.ceil(math.log2(nodes)) * size / self.cluster.transfer + size / self.times.to_host

    def share(self) -> float:
        size = 2 * self.times.parameters
        if self.cluster.direct:  # A learner copies its part and goes on.
            return size / self.cluster.learner_gpus / self.times.to_host
        gathered = size / self.cluster.network if self.cluster.learner_gpus > self.cluster.node_gpus else 0.0
        return gathered + size / self.times.to_host + size / self.times.pack

    def dispatch(self) -> float:
        return self.times.part / 2

    def receive(self) -> float:
        return self.times.part / 2 + self.times.token * self.part_tokens

    def join(self, batch: Batch[None]) -> float:
        return self.times.join * self.part_tokens * len(batch.placements)

    def learn(self, batch: Batch[None]) -> float:
        """The log-probs of stale responses, one pass with gradients, and an optimizer step on the shards."""
        c, times = self.cluster, self.times
        tokens = sum(self.draw_lengths(part.number).sum() for part in batch.placements)
        tokens += c.responses * c.prompt_tokens
        speed = c.learner_gpus * (c.sharding if c.learner_gpus > 1 else 1.0)
        correction = tokens / (times.prefill * speed) if any(batch.staleness) else 0.0
        # Beyond one node the gradients cross the network twice.
        gradients = 2 * times.parameters * 2 / c.network if c.learner_gpus > c.node_gpus else 0.0
        return correction + tokens / (times.update * speed) + times.optimizer / c.learner_gpus + gradients


def learner_memory(cluster: Cluster, times: Times) -> float:
    """Bytes per learner GPU: weights and gradients in 2 bytes, AdamW's states and a copy of the weights in 4 (assumed 16
    bytes per parameter), sharded, and 20 GB for activations (assumed)."""
    return 16 * times.parameters / cluster.learner_gpus + 20 * GB


@dataclass(frozen=True)
class Figures:
    """The result of a simulated cluster."""

    cluster: Cluster
    responses_per_second: float
    busy: dict[str, float]
    """The share of the time that a rollout GPU, the learner's thread and the driver work."""
    bottleneck: str
    staleness: float


def measure(cluster: Cluster, times: Times, updates: int) -> Figures:
    work = ClusterWork(cluster, times)
    totals = simulate(work, cluster.rollout_gpus, cluster.parts_per_batch, updates, cluster.staleness)
    rollout = (totals.work["play"] + totals.work["load"]) / cluster.rollout_gpus
    learner = sum(totals.work[kind] for kind in LEARNER)
    sides = {"rollout": rollout, "learner": learner, "driver": totals.work["driver"]}
    parts = {
        "rollout": {**work.kinds, "loading weights": totals.work["load"]},
        "learner": {"learning": totals.work["learn"], "sharing weights": totals.work["share"], "joining rollouts": totals.work["join"]},
        "driver": {"receiving rollouts": totals.work["driver"]},
    }  # fmt: skip
    side = max(sides, key=lambda name: sides[name])
    largest = max(parts[side], key=lambda name: parts[side][name])
    busy = {name: seconds / totals.seconds for name, seconds in sides.items()}
    rate = totals.updates_per_second * cluster.responses
    return Figures(cluster, rate, busy, f"{side}: {largest}", float(np.mean(totals.staleness)))


def find_best_split(cluster: Cluster, times: Times, gpus: int, updates: int) -> Figures | None:
    """The division of the GPUs with the most responses per second; `None` if the learner's state fits none."""
    best: Figures | None = None
    for learners in sorted({max(1, round(gpus * share / 16)) for share in range(1, 16)}):
        split = replace(cluster, learner_gpus=learners, rollout_gpus=gpus - learners)
        if split.rollout_gpus < 1 or learner_memory(split, times) > cluster.memory:
            continue
        figures = measure(split, times, updates)
        if best is None or figures.responses_per_second > best.responses_per_second:
            best = figures
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="7b", help="a model of service_times.json")
    parser.add_argument("--gpus", type=int, nargs="+", default=[8, 64, 1024], help="numbers of GPUs")
    parser.add_argument("--staleness", type=int, default=2)
    parser.add_argument("--grading", default="code-skills", help="math-skills or code-skills")
    parser.add_argument("--responses", type=int, default=1024, help="responses of one update")
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--weight-transfer", default="executor", choices=["executor", "nccl"])
    parser.add_argument("--updates", type=int, default=12)
    parser.add_argument("--quick", action="store_true", help="fewer updates")
    options = parser.parse_args()
    updates = 6 if options.quick else options.updates
    times = read_times(options.model, options.grading)
    cluster = Cluster(
        options.model,
        responses=options.responses,
        group_size=options.group_size,
        staleness=options.staleness,
        grading=options.grading,
        direct=options.weight_transfer == "nccl",
    )
    rows: list[dict[str, Any]] = []
    last: Figures | None = None
    print(f"{'GPUs':>5} {'rollout':>8} {'learner':>8} {'part':>5} {'responses/s':>12} {'per GPU':>8}  busy; bottleneck")
    for gpus in options.gpus:
        best = find_best_split(cluster, times, gpus, updates)
        if best is None:
            print(f"{gpus:>5} the learner's state does not fit: {16 * times.parameters / GB:.0f} GB in all")
            continue
        last, split, rate = best, best.cluster, best.responses_per_second
        busy = ", ".join(f"{name} {share:.0%}" for name, share in best.busy.items())
        print(
            f"{gpus:>5} {split.rollout_gpus:>8} {split.learner_gpus:>8} {split.part_groups:>5} {rate:>12.1f} "
            f"{rate / gpus:>8.2f}  {busy}; {best.bottleneck}; staleness {best.staleness:.1f}"
        )
        rows.append(
            {
                "gpus": gpus,
                "rollout": split.rollout_gpus,
                "learner": split.learner_gpus,
                "responses_per_second": round(rate, 2),
                "bottleneck": best.bottleneck,
                "staleness": round(best.staleness, 2),
                "busy": {name: round(share, 3) for name, share in best.busy.items()},
            }
        )
    assert last is not None, "the model fits none of the clusters"
    base, rate = last.cluster, last.responses_per_second
    added = {
        "8 rollout GPUs": replace(base, rollout_gpus=base.rollout_gpus + 8),
        "8 learner GPUs": replace(base, learner_gpus=base.learner_gpus + 8),
        "staleness + 1": replace(base, staleness=base.staleness + 1),
        "twice the responses per update": replace(base, responses=2 * base.responses),
        "the other weight transfer": replace(base, direct=not base.direct),
    }
    gains = {name: round(measure(more, times, updates).responses_per_second / rate, 3) for name, more in added.items()}
    for name, gain in sorted(gains.items(), key=lambda pair: -pair[1]):
        print(f"with {name}: {gain:.2f} times the responses per second")
    work = ClusterWork(base, times)
    print(
        f"memory of a learner GPU: {learner_memory(base, times) / GB:.0f} GB; sharing new weights takes {work.share():.2f} s, "
        f"loading them {work.load():.2f} s"
    )
    ratio = rows[-1]["responses_per_second"] / rows[0]["responses_per_second"] / (rows[-1]["gpus"] / rows[0]["gpus"])
    print(json.dumps({"benchmark": "simulate_cluster", "ratio": round(ratio, 3), "rows": rows, "added": gains}))


if __name__ == "__main__":
    main()
