"""Collect the rollouts of a run on the workers of an executor, in the background of the updates.

Each worker has its own environment, model and, with `--rollout engine`, its own engine. It pulls parts of a few groups from
one queue over all iterations (`RolloutScheduler`), and gets the newest weights with them. The samples of an episode depend on
its number and on the weights only, so with `max_staleness` 0 the rollout equals that of one process.

With `max_staleness` above 0 the batches depend on the speed of the workers. They are recorded in `rollouts.json` of the run
folder. A resumed run repeats the recorded batches after its checkpoint, which contains the older weights that they need.

With `overdue` cut or continue, a worker reads between two sampling steps which parts are overdue (`SharedVariable`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from palaestra.core.errors import ExecutorError, RunError
from palaestra.core.records import Failure, Listener
from palaestra.executors.base import Executor, Resources
from palaestra.executors.workers import Raised, Shared, SharedVariable
from palaestra.rl.collection import join_rollouts
from palaestra.rl.interruptions import Interruptions
from palaestra.rl.loop import LoopConfig, load_weights
from palaestra.rl.rollouts import INTERRUPTED, Rollout
from palaestra.rl.scheduler import (
    Batch,
    Interruption,
    Placement,
    RolloutPart,
    RolloutScheduler,
    choose_part_size,
)
from palaestra.runs.files import read_json, write_json

if TYPE_CHECKING:
    import torch

    Weights = dict[str, torch.Tensor]

RECORD = "rollouts.json"
_SAMPLER = "sampler-{}.safetensors"
"""The file of a checkpoint with older weights, by their version."""


class Actor(Protocol):
    """The state of a worker: the loop of the run without its learner."""

    version: int | None
    """The number of updates of its weights; `None` before it has received any."""

    policy: Any

    def collect(
        self, first: int, episodes: int, version: int, prompts: Sequence[int], interruptions: Interruptions | None
    ) -> Rollout: ...


@dataclass(frozen=True, slots=True)
class _Orders:
    """What workers do with overdue parts.

    Arguments:
        versions: see `RolloutScheduler.orders`.
        weights: the handles of these versions.
    """

    versions: Mapping[tuple[int, int], int | None] = field(default_factory=dict)
    weights: Mapping[int, Shared[Weights]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Job:
    """A part for a worker: some episodes, and the weights that sample them by version.

    Arguments:
        orders: `None` if the part is recorded, or is not interrupted.
    """

    part: RolloutPart
    weights: Mapping[int, Shared[Weights]]
    orders: SharedVariable[_Orders] | None
    first: int
    episodes: int
    prompts: Sequence[int]


class RolloutWorkers:
    """Samples rollouts on the workers of an executor.

    Arguments:
        executor: is closed with the workers.
        resources: of each worker.
        make_actor: called once in each worker.
        listener: receives a notice for each lost worker.
    """

    def __init__(
        self,
        config: LoopConfig,
        executor: Executor,
        resources: Resources,
        make_actor: Callable[[], Actor],
        listener: Listener,
    ) -> None:
        self.config, self._executor, self._resources = config, executor, resources
        self._pool = executor.open_pool(make_actor, resources=resources, listener=listener)
        self._thread = threading.Thread(target=self._run, name="rollouts", daemon=True)
        self._changed = threading.Condition()
        self._weights: dict[int, Shared[Weights]] = {}
        self._prompts: Mapping[int, Sequence[int]] = {}
        self._error: BaseException | None = None
        self._record: Path | None = None
        self._plan: dict[int, list[Placement]] = {}
        self._part_groups = 0
        self._orders = executor.share_variable(_Orders()) if config.overdue in ("cut", "continue") else None
        self._ordered: Mapping[tuple[int, int], int | None] = {}
        self._scheduler: RolloutScheduler[Rollout] | None = None

    def open_record(self, folder: Path) -> None:
        """Record the batches in a run folder. The batches that it contains are repeated."""
        if not self.config.max_staleness:
            return
        self._record = folder / RECORD
        if self._record.exists():
            record = read_json(self._record)
            self._part_groups = int(record["groups_per_part"])
            for iteration, parts in record["iterations"].items():
                self._plan[int(iteration)] = [_read_placement(*part) for part in parts]

    def save(self, folder: Path) -> None:
        """Save the older weights that rollouts in progress were sampled with, in a checkpoint."""
        from safetensors.torch import save_file

        if self._scheduler is None:
            return
        with self._changed:
            needed = self._scheduler.list_needed_versions() & self._weights.keys()
        # Only `collect`, in this thread, releases weights.
        for version in sorted(version for version in needed if self._weights[version].is_readable):
            save_file(self._weights[version].read(), folder / _SAMPLER.format(version))

    def load(self, folder: Path) -> None:
        """Load the older weights of a checkpoint. Recorded batches that need others are forgotten and sampled again."""
        from safetensors.torch import load_file

        done = int(folder.name.rpartition("-")[2])
        for number in sorted(number for number in self._plan if number > done):
            versions = {version for placement in self._plan[number] for version in placement.versions}
            needed = {version for version in versions if version < done} - self._weights.keys()
            files = {version: folder / _SAMPLER.format(version) for version in needed}
            if not all(file.exists() for file in files.values()):
                self._plan = {n: placements for n, placements in self._plan.items() if n < number}
                return
            for version, file in files.items():
                self._weights[version] = self._executor.share(load_file(file))

    def collect(
        self, iteration: int, weights: Weights | Shared[Weights] | None, prompts: Mapping[int, Sequence[int]]
    ) -> Rollout:
        """Return the rollout of an iteration. Workers go on sampling for the next `max_staleness` iterations.

        Arguments:
            weights: a copy of the learner's weights after `iteration - 1` updates, or a handle of it.
            prompts: the chosen prompts of iterations; see `TokenLoop.choose_prompts`.

        Raises:
            ExecutorError: the workers of some episodes died several times.
        """
        assert weights is not None
        shared = self._executor.share(weights)
        with self._changed:
            scheduler = self._scheduler = self._scheduler or self._make_scheduler()
            self._weights[iteration - 1], self._prompts = shared, dict(prompts)
            scheduler.update_version(iteration - 1)
            if not self._thread.is_alive():
                self._thread.start()
            self._pool.wake()
            while (batch := scheduler.close_batch()) is None:
                if self._error is not None:
                    raise self._error
                self._post_orders(scheduler)
                self._changed.wait()
            self._post_orders(scheduler)
            for version in self._weights.keys() - scheduler.list_needed_versions():
                self._weights.pop(version).release()
        if self._record is not None and iteration not in self._plan:
            self._plan[iteration] = list(batch.placements)
            rows = {n: list(map(_to_row, parts)) for n, parts in self._plan.items()}
            write_json(self._record, {"groups_per_part": self._part_groups, "iterations": rows})
        return self._join(batch)

    def close(self) -> None:
        """Stop the workers. Rollouts in progress are lost."""
        self._pool.close()
        if self._thread.is_alive():
            self._thread.join()
        self._executor.close()

    def _make_scheduler(self) -> RolloutScheduler[Rollout]:
        config = self.config
        groups = config.episodes // config.group_size
        if not self._part_groups:
            slots = groups if config.rollout == "engine" else config.num_envs // config.group_size
            workers = self._executor.count_workers(self._resources)
            self._part_groups = choose_part_size(groups, slots, workers, config.max_staleness)
        if groups % self._part_groups:
            raise RunError(f"{self._record} has parts of {self._part_groups} groups; an iteration has {groups}")
        return RolloutScheduler(
            groups // self._part_groups, config.iterations, config.max_staleness, time.monotonic, self._plan,
            config.overdue,
        )  # fmt: skip

    def _post_orders(self, scheduler: RolloutScheduler[Rollout]) -> None:
        """Tell the workers which parts are overdue."""
        if self._orders is not None and (versions := scheduler.orders) != self._ordered:
            self._ordered = versions
            weights = {version: self._weights[version] for version in versions.values() if version is not None}
            self._orders.set(_Orders(versions, weights))

    def _join(self, batch: Batch[Rollout]) -> Rollout:
        rollout = join_rollouts(batch.results)
        cut = sum(any(i.version is None for i in placement.interruptions) for placement in batch.placements)
        continued = sum(len(placement.versions) > 1 for placement in batch.placements)
        for name, count in zip(INTERRUPTED, (batch.dropped, cut, continued), strict=True):
            rollout.metrics[name] = float(count * self._part_groups)
        return rollout

    def _run(self) -> None:
        """Give jobs to the workers until the pool is closed."""
        try:
            self._pool.stream(_play_part, self._take_job, self._finish_job)
        except BaseException as error:
            self._stop(error)

    def _stop(self, error: BaseException) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def _take_job(self) -> _Job | None:
        with self._changed:
            assert self._scheduler is not None
            part = None if self._error is not None else self._scheduler.next_part()
            if part is None:
                return None
            config, first = self.config, part.number * self._part_groups
            episodes, groups = self._part_groups * config.group_size, config.episodes // config.group_size
            prompts = self._prompts.get(first // groups + 1, ())[first % groups :][: self._part_groups]
            weights = {version: self._weights[version] for version in part.versions}
            orders = None if part.is_recorded else self._orders
            return _Job(part, weights, orders, first * config.group_size, episodes, prompts)

    def _finish_job(self, job: _Job, result: tuple[Rollout, list[Interruption]] | Failure | Raised) -> None:
        if isinstance(result, Raised):
            try:
                result.throw()
            except Exception as error:
                self._stop(error)
        elif isinstance(result, Failure):
            iteration = job.first // self.config.episodes + 1
            self._stop(ExecutorError(f"the rollout of iteration {iteration} failed: {result.message}"))
        else:
            with self._changed:
                assert self._scheduler is not None
                self._scheduler.finish_part(job.part, *result)
                self._changed.notify_all()


def _play_part(actor: Actor, job: _Job) -> tuple[Rollout, list[Interruption]]:
    """Play some episodes in a worker."""
    part, orders, weights = job.part, job.orders, dict(job.weights)

    def load(version: int) -> None:
        if actor.version != version:
            load_weights(actor.policy, weights[version].get(), "of the learner")
            actor.version = version

    def read_orders() -> Mapping[tuple[int, int], int | None]:
        if orders is None:
            return {}
        newest = orders.get()
        weights.update(newest.weights)
        return newest.versions

    load(part.version)
    if orders is None and not part.interruptions:
        rollout = actor.collect(job.first, job.episodes, part.version, job.prompts, None)
        return rollout.mark_version(part.version), []
    interruptions = Interruptions(part, read_orders, load)
    return actor.collect(job.first, job.episodes, part.version, job.prompts, interruptions), interruptions.done


def _to_row(placement: Placement) -> list[Any]:
    """A part in the record: its number, its first version, and its interruptions if it has any."""
    interruptions = [[interruption.step, interruption.version] for interruption in placement.interruptions]
    return [placement.number, placement.version, *([interruptions] if interruptions else [])]


def _read_placement(number: int, version: int, interruptions: Sequence[tuple[int, int | None]] = ()) -> Placement:
    return Placement(number, version, tuple(Interruption(*interruption) for interruption in interruptions))
