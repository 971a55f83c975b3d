"""The order of parts: versions, bounded staleness, dropped parts, recorded orders."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from palaestra.rl.scheduler import Interruption, Placement, RolloutPart, RolloutScheduler


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def make(max_staleness: int, batches: int = 10, size: int = 2, **options: object) -> RolloutScheduler[str]:
    scheduler: RolloutScheduler[str] = RolloutScheduler(size, batches, max_staleness, Clock(), **options)  # type: ignore[arg-type]
    scheduler.update_version(0)
    return scheduler


def pull(scheduler: RolloutScheduler[str]) -> list[RolloutPart]:
    """All parts that workers may start now."""
    return list(iter(scheduler.next_part, None))


def finish(scheduler: RolloutScheduler[str], parts: Iterable[RolloutPart]) -> None:
    for part in parts:
        scheduler.finish_part(part, f"{part.number} by {part.version}")


def close(scheduler: RolloutScheduler[str]) -> tuple[str, ...]:
    batch = scheduler.close_batch()
    assert batch is not None
    scheduler.update_version(batch.number)
    return batch.results


def test_without_staleness_a_batch_is_its_iteration() -> None:
    scheduler = make(0, batches=2)
    first = pull(scheduler)
    assert [(part.number, part.version) for part in first] == [(0, 0), (1, 0)]
    finish(scheduler, first[1:])
    assert scheduler.close_batch() is None
    assert scheduler.next_part() is None
    finish(scheduler, first[:1])
    assert close(scheduler) == ("0 by 0", "1 by 0")
    finish(scheduler, pull(scheduler))
    assert close(scheduler) == ("2 by 1", "3 by 1")
    assert pull(scheduler) == []  # The run has two batches.


def test_a_slow_part_joins_a_later_batch_with_its_own_version() -> None:
    scheduler = make(2)
    slow, *others = pull(scheduler)
    assert len(others) == 5  # of three batches
    finish(scheduler, others)
    assert close(scheduler) == ("1 by 0", "2 by 0")
    finish(scheduler, [slow, *pull(scheduler)])
    assert close(scheduler) == ("0 by 0", "3 by 0")
    batch = scheduler.close_batch()
    assert batch is not None
    assert (batch.placements, batch.staleness) == ((Placement(4, 0), Placement(5, 0)), [2, 2])


def test_the_learner_waits_for_a_part_that_would_be_too_stale() -> None:
    scheduler = make(1)
    slow, *others = pull(scheduler)
    finish(scheduler, others)
    close(scheduler)
    finish(scheduler, pull(scheduler))
    assert len(scheduler._finished) == 3
    assert scheduler.close_batch() is None  # After it version 0 would be too stale.
    finish(scheduler, [slow])
    assert close(scheduler) == ("0 by 0", "3 by 0")


def test_a_stale_part_is_dropped_once_and_then_waited_for() -> None:
    scheduler = make(1, overdue="drop")
    slow, *others = pull(scheduler)
    finish(scheduler, others)
    for _ in range(2):
        close(scheduler)
        finish(scheduler, [part for part in pull(scheduler) if part.number])
    # After two updates, version 0 is too stale for the third.
    [again] = [part for part in scheduler._running.values() if part.number == 0]
    assert (again.version, again.drops) == (2, 1)
    finish(scheduler, [slow])
    assert 0 not in scheduler._finished
    batch = scheduler.close_batch()
    assert batch is not None
    assert batch.dropped == 1
    scheduler.update_version(3)
    finish(scheduler, pull(scheduler))
    # It fits batch 4 at the latest: without it the learner waits.
    assert scheduler.close_batch() is None
    finish(scheduler, [again])
    assert "0 by 2" in close(scheduler)


def test_an_overdue_part_is_cut_when_the_learner_would_wait() -> None:
    scheduler = make(1, overdue="cut")
    slow, *others = pull(scheduler)
    finish(scheduler, others)
    close(scheduler)
    assert scheduler.orders == {}  # It may still join batch 2.
    finish(scheduler, pull(scheduler))
    assert scheduler.close_batch() is None
    assert scheduler.orders == {(0, 0): None}
    scheduler.finish_part(slow, "cut", [Interruption(9, None)])
    assert scheduler.orders == {}
    batch = scheduler.close_batch()
    assert batch is not None
    assert batch.placements == (Placement(0, 0, (Interruption(9, None),)), Placement(3, 0))
    assert batch.staleness == [1, 1]


def test_an_overdue_part_is_continued_by_newer_weights() -> None:
    scheduler = make(1, overdue="continue")
    slow, *others = pull(scheduler)
    finish(scheduler, others)
    for version, orders in ((1, {}), (2, {(0, 0): 2}), (3, {(0, 0): 2}), (4, {(0, 0): 4})):
        close(scheduler)
        assert (scheduler.version, scheduler.orders) == (version, orders)
        finish(scheduler, pull(scheduler))
    # Its worker may have obeyed both orders, one or none.
    assert {0, 2, 4} <= scheduler.list_needed_versions()
    scheduler.finish_part(slow, "continued", [Interruption(5, 2)])
    assert scheduler.list_needed_versions() >= {0, 2}
    batch = scheduler.close_batch()
    assert batch is not None
    assert batch.placements[0] == Placement(0, 0, (Interruption(5, 2),))
    assert batch.staleness[0] == 4


@pytest.mark.parametrize("max_staleness", [1, 2, 3])
def test_the_weights_that_continue_are_within_the_bound(max_staleness: int) -> None:
    scheduler = make(max_staleness, batches=30, size=3, overdue="continue")
    running: dict[RolloutPart, list[Interruption]] = {}
    learned = list[Placement]()
    for step in range(9000):
        if len(running) < 5 and (part := scheduler.next_part()) is not None:
            running[part] = []
        for part, done in running.items():
            order = scheduler.orders.get((part.number, part.version))
            if order is not None and order not in [part.version, *(i.version for i in done)]:
                done.append(Interruption(step, order))
            newest = done[-1].version if done else part.version
            assert newest is not None
            assert scheduler.version - newest <= max_staleness
        ready = [part for part in running if part.number % 5 or step % 97 == 0]
        if ready and step % 2:
            scheduler.finish_part(ready[0], "", running.pop(ready[0]))
        if scheduler.version < 30 and (batch := scheduler.close_batch()) is not None:
            learned += batch.placements
            scheduler.update_version(batch.number)
    assert sorted(placement.number for placement in learned) == list(range(90))
    assert any(placement.interruptions for placement in learned)


def test_a_recorded_interruption_waits_for_its_versions() -> None:
    placement = Placement(0, 0, (Interruption(3, 1), Interruption(8, 2)))
    plan = {
        1: [Placement(1, 0), Placement(2, 0)],
        2: [Placement(3, 0), Placement(4, 1)],
        3: [placement, Placement(5, 1)],
    }
    scheduler = make(1, plan=plan, overdue="continue")
    for expected in ([1, 2, 3], [4, 5]):
        parts = pull(scheduler)
        assert [part.number for part in parts] == expected
        finish(scheduler, parts)
        close(scheduler)
    first = pull(scheduler)[0]
    assert (first.number, first.version, first.interruptions) == (0, 0, placement.interruptions)
    assert first.is_recorded
    assert {0, 1, 2} <= scheduler.list_needed_versions()
    scheduler.finish_part(first, "", first.interruptions)
    batch = scheduler.close_batch()
    assert batch is not None
    assert batch.placements[0] == placement


@pytest.mark.parametrize("overdue", ["wait", "drop", "cut"])
@pytest.mark.parametrize("max_staleness", [0, 1, 3])
def test_every_part_is_learned_once_within_the_bound(max_staleness: int, overdue: str) -> None:
    scheduler = make(max_staleness, batches=20, size=3, overdue=overdue)
    running, learned = list[RolloutPart](), list[Placement]()
    for step in range(2000):
        if len(running) < 4 and (part := scheduler.next_part()) is not None:
            running.append(part)
        # Every seventh part is slow.
        ready = [part for part in running if part.number % 7 or step % 51 == 0]
        if ready and step % 2:
            finish(scheduler, ready[:1])
            running.remove(ready[0])
        if scheduler.version < 20 and (batch := scheduler.close_batch()) is not None:
            assert max(batch.staleness) <= max_staleness
            learned += batch.placements
            scheduler.update_version(batch.number)
    assert sorted(placement.number for placement in learned) == list(range(60))


def test_a_recorded_order_is_repeated_from_any_version() -> None:
    plan = {
        1: [Placement(0, 0), Placement(3, 0)],
        2: [Placement(1, 0), Placement(2, 1)],
        3: [Placement(4, 0), Placement(5, 2)],
    }
    scheduler = make(2, plan=plan)
    parts = pull(scheduler)
    assert [part.number for part in parts] == [0, 1, 3, 4]
    finish(scheduler, parts)
    assert close(scheduler) == ("0 by 0", "3 by 0")
    finish(scheduler, pull(scheduler))
    assert close(scheduler) == ("1 by 0", "2 by 1")
    assert scheduler.list_needed_versions() == {0, 1, 2}  # Parts 6 and 7 are not recorded and were sampled at once.
    finish(scheduler, pull(scheduler))
    assert close(scheduler) == ("4 by 0", "5 by 2")

    continued: RolloutScheduler[str] = RolloutScheduler(2, 10, 2, Clock(), plan)
    continued.update_version(2)
    assert [(part.number, part.version) for part in pull(continued)][:3] == [(4, 0), (5, 2), (6, 2)]


def test_the_clock_measures_parts_and_waits() -> None:
    scheduler = make(0)
    parts = pull(scheduler)
    for part, now in zip(parts, (3.0, 5.0), strict=True):
        scheduler.clock.now = now  # type: ignore[attr-defined]
        scheduler.finish_part(part, "")
    batch = scheduler.close_batch()
    assert batch is not None
    assert (batch.seconds, batch.waited) == ((3.0, 5.0), 5.0)
