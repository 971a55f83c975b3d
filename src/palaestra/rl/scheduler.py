"""Which rollouts are sampled next, with which weights, and which batch they are learned in.

The groups of a run form one queue over all iterations, cut into parts of a few whole groups. Workers pull parts; the learner
takes a batch as soon as enough parts are done. Batch `i` is learned by weights of version `i - 1` (the number of updates),
and no trajectory in it is staler than `max_staleness` updates:

- With version `v`, parts up to those of batch `v + max_staleness + 1` may start. So a batch of the oldest finished parts is
  never too stale, and with `max_staleness` 0 batch `i` is exactly the parts of iteration `i`.
- A part may run for so long that it would be too stale for the next batch. Then the learner waits for it, or (`max_drops`)
  it is dropped and sampled again with newer weights.

The order depends on the speed of the workers. `Batch.placements` is the record of it: a scheduler with a record as its plan
samples the same parts with the same versions and closes the same batches.

The scheduler is a plain object without threads: `RolloutWorkers` calls it, and so does the simulation of a cluster
(`benchmarks/simulate_cluster.py`), each with its own clock.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class RolloutPart:
    """One attempt at sampling some groups.

    Arguments:
        number: of the part.
        version: of the weights that sample it.
        drops: how often it was dropped before.
        started: the time of its start.
    """

    number: int
    version: int
    drops: int = 0
    started: float = 0.0


@dataclass(frozen=True, slots=True)
class Placement:
    """A part in the record of a batch, and the version that sampled it."""

    number: int
    version: int


@dataclass(frozen=True, slots=True)
class Batch(Generic[Result]):
    """The parts of one update, by their numbers.

    Arguments:
        number: of the iteration, from 1.
        results: the results of the parts.
        seconds: how long each part was sampled, by the scheduler's clock.
        dropped: parts that were dropped since the last batch.
        waited: seconds that the learner waited for the batch.
    """

    number: int
    placements: tuple[Placement, ...]
    results: tuple[Result, ...]
    seconds: tuple[float, ...]
    dropped: int
    waited: float

    @property
    def staleness(self) -> list[int]:
        """The updates between the weights of each part and those that learn from it."""
        return [self.number - 1 - placement.version for placement in self.placements]


class RolloutScheduler(Generic[Result]):
    """Gives parts to workers and batches to the learner.

    Arguments:
        parts_per_batch: parts of one batch.
        batches: batches of the run.
        max_staleness: the maximum number of updates between sampling and learning.
        clock: the current time in seconds.
        plan: recorded batches by number, which are repeated.
        max_drops: how often a part that became too stale is dropped before the learner waits for it.
    """

    def __init__(
        self,
        parts_per_batch: int,
        batches: int,
        max_staleness: int,
        clock: Callable[[], float],
        plan: Mapping[int, Sequence[Placement]] | None = None,
        max_drops: int = 0,
    ) -> None:
        self.parts_per_batch, self.batches, self.max_staleness = parts_per_batch, batches, max_staleness
        self.clock, self.plan, self.max_drops = clock, dict(plan or {}), max_drops
        self.version = -1
        self._planned: dict[int, int] = {}  # The versions of the parts of recorded batches.
        self._admitted = 0
        self._waiting: list[int] = []  # Admitted parts that no worker has, in order.
        self._drops: dict[int, int] = {}
        self._running: dict[int, RolloutPart] = {}
        self._finished: dict[int, tuple[RolloutPart, Result, float]] = {}
        self._dropped, self._asked = 0, 0.0

    def update_version(self, version: int) -> None:
        """Sample with the weights after `version` updates from now on. Drops the parts that are too stale for them.

        The first call starts the run, or continues it after a checkpoint with this version.
        """
        if self.version < 0:
            self._skip_batches(version)
        self.version, self._asked = version, self.clock()
        for part in self._list_outstanding():
            if part.version < version - self.max_staleness and part.number not in self._planned:
                self._drop(part.number)
        limit = min(version + self.max_staleness + 1, self.batches) * self.parts_per_batch
        while self._admitted < limit:
            insort(self._waiting, self._admitted)
            self._admitted += 1

    def next_part(self) -> RolloutPart | None:
        """The next part for a free worker; `None` if it has to wait for new weights."""
        for place, number in enumerate(self._waiting):
            version = self._planned.get(number, self.version)
            if version <= self.version:
                del self._waiting[place]
                self._running[number] = part = RolloutPart(number, version, self._drops.get(number, 0), self.clock())
                return part
        return None

    def finish_part(self, part: RolloutPart, result: Result) -> None:
        """Take the result of a part. The result of a dropped part is ignored."""
        if self._running.get(part.number) is part:
            del self._running[part.number]
            self._finished[part.number] = part, result, self.clock() - part.started

    def close_batch(self) -> Batch[Result] | None:
        """Return the next batch; `None` if it is not complete."""
        number = self.version + 1
        if number in self.plan:
            chosen = [placement.number for placement in self.plan[number]]
            if any(part not in self._finished for part in chosen):
                return None
        else:
            free = [n for n in self._finished if n not in self._planned]
            # The oldest first: they would be the next to become too stale.
            chosen = sorted(free, key=lambda n: (self._finished[n][0].version, n))[: self.parts_per_batch]
            if len(chosen) < self.parts_per_batch or self._has_to_wait(number):
                return None
        parts, results, seconds = zip(*(self._finished.pop(n) for n in sorted(chosen)), strict=True)
        placements = tuple(Placement(part.number, part.version) for part in parts)
        for part in parts:
            self._planned.pop(part.number, None)
            self._drops.pop(part.number, None)
        dropped, self._dropped = self._dropped, 0
        return Batch(number, placements, results, seconds, dropped, self.clock() - self._asked)

    def list_needed_versions(self) -> set[int]:
        """The versions whose weights may be needed: the newest one, and those of the parts that are not learned yet."""
        return {self.version, *self._planned.values(), *(part.version for part in self._list_outstanding())}

    def _list_outstanding(self) -> list[RolloutPart]:
        """The parts that are sampled, or were sampled and not learned."""
        return [*self._running.values(), *(part for part, _, _ in self._finished.values())]

    def _skip_batches(self, version: int) -> None:
        """Begin after the batches of `version` updates, and plan the recorded batches after them."""
        size = self.parts_per_batch
        done: set[int] = set()
        for number in range(1, version + 1):
            recorded = [placement.number for placement in self.plan.get(number, ())]
            done.update(recorded or range((number - 1) * size, number * size))
        for number, placements in self.plan.items():
            if number > version:
                self._planned |= {placement.number: placement.version for placement in placements}
        # Parts that were learned early leave holes before the last of them.
        self._admitted = max(done, default=-1) + 1
        self._waiting = sorted(set(range(self._admitted)) - done)

    def _drop(self, number: int) -> None:
        self._running.pop(number, None)
        self._finished.pop(number, None)
        insort(self._waiting, number)
        self._drops[number] = self._drops.get(number, 0) + 1
        self._dropped += 1

    def _has_to_wait(self, number: int) -> bool:
        """Whether a part would be too stale if batch `number` closed without it, and must not be dropped any more."""
        return any(
            part.drops >= self.max_drops and part.version < number - self.max_staleness
            for part in self._running.values()
        )


def choose_part_size(groups: int, slots: int, workers: int, max_staleness: int) -> int:
    """The number of groups that a worker plays at a time: a divisor of the groups of an iteration.

    A worker samples the groups of a part side by side, so large parts use it better, and small ones balance the load. Without
    staleness there is one part per worker and iteration; with it, two per worker of the groups that may be in progress.

    Arguments:
        groups: of an iteration.
        slots: groups that a worker plays side by side at most.

    >>> choose_part_size(32, 16, workers=2, max_staleness=0), choose_part_size(32, 16, workers=8, max_staleness=2)
    (16, 4)
    """
    wanted = groups // workers if max_staleness == 0 else groups * (max_staleness + 1) // (2 * workers)
    return max(size for size in range(1, max(1, min(slots, wanted, groups)) + 1) if groups % size == 0)
