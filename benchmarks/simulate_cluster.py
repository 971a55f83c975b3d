"""RL on a cluster, in simulation: rollouts, grading and learning on N GPUs. Where is the knee, and what to add next?

Service times were measured (`service_times.py`, in `service_times.json`): a decoding step of 1, 64 and 256 sequences, prefill,
forward and backward, the optimizer, and a verdict. Networks, memory of activations and the efficiency of sharded training
are assumed (`Cluster`); docs/scaling.md names them. A GPU decodes all of its sequences in steps (continuous batching), so
a sequence is slower the more there are.

    python benchmarks/simulate_cluster.py --model 7b --gpus 64
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import simpy

TIMES = Path(__file__).with_name("service_times.json")
GB = 1e9


@dataclass(frozen=True)
class Cluster:
    """A cluster, and the work of one update.

    Arguments:
        rollout_gpus, learner_gpus: how the GPUs are divided.
        graders: CPU cores that grade.
        slots: sequences that a GPU decodes at a time.
        responses: responses of one update.
        mean_tokens, sigma, max_tokens: of the log-normal length of a response.
        staleness: how many updates the weights of a rollout may be behind; 0: rollouts wait for the update.
        grading: the kind of verdict, a key of the measured gradings.
        network: bytes per second between nodes, of each GPU (assumed: 400 Gb/s).
        sharding: the share of the single GPU's speed that is left with sharded weights (assumed).
        memory: bytes of a GPU.
    """

    model: str = "7b"
    rollout_gpus: int = 4
    learner_gpus: int = 4
    graders: int = 64
    slots: int = 256
    responses: int = 1024
    prompt_tokens: int = 256
    mean_tokens: float = 1024.0
    sigma: float = 0.6
    max_tokens: int = 4096
    staleness: int = 1
    grading: str = "code-skills"
    network: float = 50 * GB
    sharding: float = 0.8
    memory: float = 141 * GB


@dataclass(frozen=True)
class Times:
    """Measured service times of one model and of the grader."""

    parameters: float
    decode: tuple[tuple[int, float], ...]
    """Seconds of a decoding step by the number of sequences."""
    prefill: float
    """Tokens per second."""
    update: float
    """Tokens per second, forward and backward."""
    optimizer: float
    grading: float

    def step(self, sequences: int) -> float:
        """Seconds of one decoding step, interpolated between the measured numbers of sequences."""
        counts, seconds = zip(*self.decode, strict=True)
        return float(np.interp(sequences, counts, seconds))


def read_times(model: str, grading: str, path: Path = TIMES) -> Times:
    known = json.loads(path.read_text())
    figures = known["NVIDIA H200"][model]
    decode = tuple(sorted((int(n), ms / 1e3) for n, ms in figures["decode_ms"].items()))
    return Times(
        figures["parameters"],
        decode,
        figures["prefill_tokens_per_second"],
        figures["update_tokens_per_second"],
        figures["optimizer_step_seconds"],
        known["grading"][grading],
    )


@dataclass
class Totals:
    """What happened in the simulated time."""

    updates: int = 0
    finished: float = 0.0
    """The time of the last update."""
    busy: dict[str, float] = field(default_factory=lambda: {"rollout": 0.0, "grading": 0.0, "learner": 0.0})
    """Seconds of work of all GPUs or cores of a stage."""


class Simulation:
    """Rollout GPUs, graders and a learner that passes on its weights after each update."""

    def __init__(self, cluster: Cluster, times: Times, seed: int = 0) -> None:
        self.cluster, self.times = cluster, times
        self.random = np.random.default_rng(seed)
        self.env = simpy.Environment()
        self.requests: deque[float] = deque()
        self.arrived = self.env.event()
        self.graded = simpy.Store(self.env)
        self.graders = simpy.Resource(self.env, cluster.graders)
        self.version = 0
        self.updated = self.env.event()
        self.totals = Totals()

    def run(self, updates: int) -> Totals:
        """Simulate until the learner has made some updates."""
        for _ in range(self.cluster.rollout_gpus):
            self.env.process(self.decode())
        self.env.process(self.send_requests())
        self.env.run(until=self.env.process(self.learn(updates)))
        return self.totals

    def send_requests(self) -> Generator[Any, Any, None]:
        """Ask for the responses of an update as soon as the weights are new enough."""
        c, update = self.cluster, 0
        location = math.log(c.mean_tokens) - c.sigma**2 / 2
        while True:
            while update > self.version + c.staleness:
                yield self.updated
            lengths = self.random.lognormal(location, c.sigma, c.responses)
            for length in np.clip(lengths, 1, c.max_tokens):
                self.requests.append(float(round(length)))
            self.arrived.succeed()
            self.arrived = self.env.event()
            update += 1

    def decode(self) -> Generator[Any, Any, None]:
        """A GPU: all active sequences advance together. It takes requests while it has free slots."""
        active: list[tuple[float, float]] = []  # The tokens that are left, and the length.
        while True:
            while not active and not self.requests:
                yield self.arrived
            fresh = min(self.cluster.slots - len(active), math.ceil(len(self.requests) / self.cluster.rollout_gpus))
            for _ in range(fresh):
                length = self.requests.popleft()
                active.append((length, length))
            prefill = fresh * self.cluster.prompt_tokens / self.times.prefill
            steps = min(left for left, _ in active)
            if len(active) < self.cluster.slots:
                steps = min(steps, 64.0)  # Look for new requests now and then.
            seconds = prefill + steps * self.times.step(len(active))
            yield self.env.timeout(seconds)
            self.totals.busy["rollout"] += seconds
            active = [(left - steps, length) for left, length in active]
            for _, length in (sequence for sequence in active if sequence[0] <= 0):
                self.env.process(self.grade(length))
            active = [sequence for sequence in active if sequence[0] > 0]

    def grade(self, length: float) -> Generator[Any, Any, None]:
        with self.graders.request() as turn:
            yield turn
            yield self.env.timeout(self.times.grading)
            self.totals.busy["grading"] += self.times.grading
        yield self.graded.put(length)

    def learn(self, updates: int) -> Generator[Any, Any, None]:
        c = self.cluster
        for _ in range(updates):
            tokens = 0.0
            for _ in range(c.responses):
                tokens += (yield self.graded.get()) + c.prompt_tokens
            seconds = update_seconds(c, self.times, tokens)
            self.totals.busy["learner"] += seconds * c.learner_gpus
            yield self.env.timeout(seconds)
            yield self.env.timeout(sync_seconds(c, self.times))
            self.version += 1
            self.updated.succeed()
            self.updated = self.env.event()
            self.totals.updates += 1
            self.totals.finished = self.env.now


def update_seconds(cluster: Cluster, times: Times, tokens: float) -> float:
    """One pass over the tokens, an optimizer step on the shard, and the gradients over the network."""
    speed = times.update * cluster.learner_gpus * (cluster.sharding if cluster.learner_gpus > 1 else 1.0)
    gradients = 2 * times.parameters * 2 / cluster.network if cluster.learner_gpus > 8 else 0.0
    return tokens / speed + times.optimizer / cluster.learner_gpus + gradients


def sync_seconds(cluster: Cluster, times: Times) -> float:
    """The weights in two bytes to all rollout GPUs, sent on along a chain of nodes: once over the network."""
    return 2 * times.parameters / cluster.network


def learner_memory(cluster: Cluster, times: Times) -> float:
    """Bytes per learner GPU: weights and gradients in 2 bytes, AdamW's states and a copy of the weights in 4 (assumed 16
    bytes per parameter), sharded, and 20 GB for activations (assumed)."""
    return 16 * times.parameters / cluster.learner_gpus + 20 * GB


def rate(cluster: Cluster, times: Times, updates: int) -> tuple[float, dict[str, float]]:
    """Responses per second after the first update, and the utilisation of each stage."""
    totals = Simulation(cluster, times).run(updates)
    servers = {"rollout": cluster.rollout_gpus, "grading": cluster.graders, "learner": cluster.learner_gpus}
    use = {stage: totals.busy[stage] / totals.finished / count for stage, count in servers.items()}
    return totals.updates * cluster.responses / totals.finished, use


def best_split(
    cluster: Cluster, times: Times, gpus: int, updates: int
) -> tuple[Cluster, float, dict[str, float]] | None:
    """The division of the GPUs with the most responses per second; `None` if the learner's state fits none."""
    best: tuple[Cluster, float, dict[str, float]] | None = None
    for learners in sorted({max(1, round(gpus * share / 16)) for share in range(1, 16)}):
        split = replace(cluster, learner_gpus=learners, rollout_gpus=gpus - learners)
        if split.rollout_gpus < 1 or learner_memory(split, times) > cluster.memory:
            continue
        responses, use = rate(split, times, updates)
        if best is None or responses > best[1]:
            best = split, responses, use
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="7b", help="a model of service_times.json")
    parser.add_argument("--gpus", type=int, default=64, help="the largest number of GPUs")
    parser.add_argument("--staleness", type=int, default=1)
    parser.add_argument("--grading", default="code-skills", help="math-skills or code-skills")
    parser.add_argument("--graders", type=int, default=64, help="CPU cores that grade")
    parser.add_argument("--responses", type=int, default=1024, help="responses of one update")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    updates = 3 if options.quick else 8
    cluster = Cluster(
        options.model,
        graders=options.graders,
        responses=options.responses,
        staleness=options.staleness,
        grading=options.grading,
    )
    times = read_times(cluster.model, cluster.grading)
    rows: list[dict[str, Any]] = []
    print(
        f"{'GPUs':>5} {'rollout':>8} {'learner':>8} {'responses/s':>12} {'per GPU':>8}  busy: rollout, grading, learner"
    )
    gpus = 2
    while gpus <= options.gpus:
        best = best_split(cluster, times, gpus, updates)
        if best is None:
            print(f"{gpus:>5} the learner's state does not fit: {16 * times.parameters / GB:.0f} GB in all")
        else:
            split, responses, use = best
            busy = ", ".join(f"{share:.0%}" for share in use.values())
            print(
                f"{gpus:>5} {split.rollout_gpus:>8} {split.learner_gpus:>8} {responses:>12.1f} {responses / gpus:>8.2f}  {busy}"
            )
            rows.append(
                {
                    "gpus": gpus,
                    "rollout": split.rollout_gpus,
                    "learner": split.learner_gpus,
                    "responses_per_second": round(responses, 2),
                    "busy": {k: round(v, 3) for k, v in use.items()},
                }
            )
        gpus *= 2
    knee = next(
        (a["gpus"] for a, b in itertools.pairwise(rows) if b["responses_per_second"] < 1.5 * a["responses_per_second"]),
        None,
    )
    last = best_split(cluster, times, rows[-1]["gpus"], updates)
    assert last is not None
    added = {
        "8 rollout GPUs": replace(last[0], rollout_gpus=last[0].rollout_gpus + 8),
        "8 learner GPUs": replace(last[0], learner_gpus=last[0].learner_gpus + 8),
        "32 grading cores": replace(last[0], graders=last[0].graders + 32),
        "staleness + 1": replace(last[0], staleness=last[0].staleness + 1),
        "twice the responses per update": replace(last[0], responses=2 * last[0].responses),
    }
    gains = {name: round(rate(more, times, updates)[0] / last[1], 3) for name, more in added.items()}
    for name, gain in sorted(gains.items(), key=lambda pair: -pair[1]):
        print(f"with {name}: {gain:.2f} times the responses per second")
    print(
        f"memory of a learner GPU: {learner_memory(last[0], times) / GB:.0f} GB; new weights take {sync_seconds(last[0], times):.2f} s"
    )
    ratio = rows[-1]["responses_per_second"] / rows[0]["responses_per_second"] / (rows[-1]["gpus"] / rows[0]["gpus"])
    print(
        json.dumps(
            {"benchmark": "simulate_cluster", "ratio": round(ratio, 3), "knee": knee, "rows": rows, "added": gains}
        )
    )


if __name__ == "__main__":
    main()
