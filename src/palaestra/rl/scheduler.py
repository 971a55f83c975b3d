"""Which rollouts are sampled next, with which weights, and which batch they are learned in.

The groups of a run form one queue over all iterations, cut into parts of a few whole groups. Workers pull parts; the learner
takes a batch as soon as enough parts are done. Batch `i` is learned by weights of version `i - 1` (the number of updates),
and no trajectory in it is staler than `max_staleness` updates:

- With version `v`, parts up to those of batch `v + max_staleness + 1` may start. So a batch of the oldest finished parts is
  never too stale, and with `max_staleness` 0 batch `i` is exactly the parts of iteration `i`.
- A part may run for so long that it would be too stale for the next batch. It is then overdue. `overdue` says what happens:
  the learner waits for it; or it is dropped and sampled again with newer weights; or its responses are cut, and the learner
  waits for that; or newer weights continue its responses, and the learner does not wait. Only the oldest tokens of continued
  parts are staler than `max_staleness`.

The order depends on the speed of the workers. `Batch.placements` is the record of it: a scheduler with a record as its plan
samples the same parts with the same versions, interrupts them after the same steps and closes the same batches.

The scheduler is a plain object without threads: `RolloutWorkers` calls it, and so does the simulation of a cluster
(`benchmarks/simulate_cluster.py`), each with its own clock.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Literal, TypeVar

Result = TypeVar("Result")
Overdue = Literal["wait", "drop", "cut", "continue"]


@dataclass(frozen=True, slots=True)
class Interruption:
    """An interruption of a part after some sampling steps.

    Arguments:
        step: number of steps before it.
        version: of the weights that continue; `None` if the part is cut.
    """

    step: int
    version: int | None


@dataclass(frozen=True, slots=True)
class Placement:
    """A part in the record of a batch: its number, the version that began it, and its interruptions."""

    number: int
    version: int
    interruptions: tuple[Interruption, ...] = ()

    @property
    def versions(self) -> list[int]:
        """The versions that sampled the part, in order."""
        return [self.version, *(i.version for i in self.interruptions if i.version is not None)]


@dataclass(frozen=True, slots=True)
class RolloutPart(Placement):
    """One attempt at sampling some groups.

    Arguments:
        drops: how often it was dropped before.
        started: the time of its start.
        is_recorded: whether its interruptions are those of a record. Otherwise it has none before it is finished.
    """

    drops: int = 0
    started: float = 0.0
    is_recorded: bool = False


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
        overdue: what happens to parts that would become too stale. The learner waits for a part that was dropped before.
    """

    def __init__(
        self,
        parts_per_batch: int,
        batches: int,
        max_staleness: int,
        clock: Callable[[], float],
        plan: Mapping[int, Sequence[Placement]] | None = None,
        overdue: Overdue = "wait",
    ) -> None:
        self.parts_per_batch, self.batches, self.max_staleness = parts_per_batch, batches, max_staleness
        self.clock, self.plan, self.overdue = clock, dict(plan or {}), overdue
        self.version = -1
        self._planned: dict[int, Placement] = {}  # The parts of recorded batches.
        self._admitted = 0
        self._waiting: list[int] = []  # Admitted parts that no worker has, in order.
        self._drops: dict[int, int] = {}
        self._running: dict[int, RolloutPart] = {}
        self._finished: dict[int, tuple[RolloutPart, Result, float]] = {}
        self._ordered: dict[int, list[int | None]] = {}  # The orders for running parts, in order.
        self._dropped, self._asked = 0, 0.0

    def update_version(self, version: int) -> None:
        """Sample with the weights after `version` updates from now on. Continues or drops the parts that are too stale.

        The first call starts the run, or continues it after a checkpoint with this version.
        """
        if self.version < 0:
            self._skip_batches(version)
        self.version, self._asked = version, self.clock()
        for part in self._list_outstanding():
            if self._find_newest(part) >= version - self.max_staleness or part.number in self._planned:
                continue
            if self.overdue != "continue":
                self._drop(part.number)
            elif part.number in self._running:
                self._ordered.setdefault(part.number, []).append(version)
        limit = min(version + self.max_staleness + 1, self.batches) * self.parts_per_batch
        while self._admitted < limit:
            insort(self._waiting, self._admitted)
            self._admitted += 1

    def next_part(self) -> RolloutPart | None:
        """The next part for a free worker; `None` if it has to wait for new weights."""
        for place, number in enumerate(self._waiting):
            planned = self._planned.get(number)
            known = planned or Placement(number, self.version)
            if max(known.versions) <= self.version:
                del self._waiting[place]
                drops, is_recorded = self._drops.get(number, 0), planned is not None
                part = RolloutPart(number, known.version, known.interruptions, drops, self.clock(), is_recorded)
                self._running[number] = part
                return part
        return None

    @property
    def orders(self) -> dict[tuple[int, int], int | None]:
        """By number and first version of an overdue part, the version that continues it; `None` if it is cut."""
        return {(number, self._running[number].version): versions[-1] for number, versions in self._ordered.items()}

    def finish_part(self, part: RolloutPart, result: Result, interruptions: Sequence[Interruption] = ()) -> None:
        """Take the result of a part, and how it was interrupted. The result of a dropped part is ignored."""
        if self._running.get(part.number) is part:
            del self._running[part.number]
            self._ordered.pop(part.number, None)
            finished = replace(part, interruptions=tuple(interruptions))
            self._finished[part.number] = finished, result, self.clock() - part.started

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
        placements = tuple(Placement(part.number, part.version, part.interruptions) for part in parts)
        for part in parts:
            self._planned.pop(part.number, None)
            self._drops.pop(part.number, None)
        dropped, self._dropped = self._dropped, 0
        return Batch(number, placements, results, seconds, dropped, self.clock() - self._asked)

    def list_needed_versions(self) -> set[int]:
        """The versions whose weights may be needed: the newest one, and those of the parts that are not learned yet."""
        parts = [*self._planned.values(), *self._list_outstanding()]
        ordered = [version for orders in self._ordered.values() for version in orders if version is not None]
        return {self.version, *ordered, *(version for part in parts for version in part.versions)}

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
                self._planned |= {placement.number: placement for placement in placements}
        # Parts that were learned early leave holes before the last of them.
        self._admitted = max(done, default=-1) + 1
        self._waiting = sorted(set(range(self._admitted)) - done)

    def _drop(self, number: int) -> None:
        for parts in (self._running, self._finished, self._ordered):
            parts.pop(number, None)
        insort(self._waiting, number)
        self._drops[number] = self._drops.get(number, 0) + 1
        self._dropped += 1

    def _find_newest(self, part: RolloutPart) -> int:
        """The newest version that samples a part, if its worker obeys."""
        return max(part.versions[-1], *(version or 0 for version in self._ordered.get(part.number, ())), 0)

    def _has_to_wait(self, number: int) -> bool:
        """Whether a part would be too stale if batch `number` closed without it, and must not be dropped. It is cut, if chosen."""
        max_drops = int(self.overdue == "drop")
        overdue = [
            part.number
            for part in self._running.values()
            if part.drops >= max_drops and part.version < number - self.max_staleness
        ]
        if self.overdue == "cut":
            self._ordered |= {part: [None] for part in overdue}
        return bool(overdue) and self.overdue != "continue"


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
