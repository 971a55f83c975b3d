"""Pools keep the states of their workers over several maps; shared values reach all workers."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from palaestra.core.errors import ExecutorError, SettingsError
from palaestra.core.records import Event, Failure
from palaestra.executors.base import Executor, Shared, open_executor
from palaestra.executors.pool import Pool
from palaestra.executors.workers import SharedVariable, Worker, WorkerLost

Weights = dict[str, Any]


class Counter:
    """A state that counts its items."""

    def __init__(self) -> None:
        self.count = 0


def count(state: Counter, item: float) -> tuple[int, int]:
    state.count += 1
    time.sleep(item)
    return os.getpid(), state.count


def die(state: Counter, item: int) -> int:
    if item == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def refuse(state: Counter, item: int) -> int:
    raise SettingsError(f"no {item}")


def add_up(state: Counter, item: tuple[Shared[Weights], int]) -> float:
    shared, factor = item
    return factor * float(sum(tensor.double().sum() for tensor in shared.get().values()))


def read(state: Counter, shared: Any) -> Any:
    return shared.get()


def test_states_live_over_several_maps(executor: Executor) -> None:
    with executor.open_pool(Counter) as pool:
        results = [result for _ in range(4) for result in pool.map(count, [0.01] * 6)]
    counts: dict[int, list[int]] = {}
    for result in results:
        assert not isinstance(result, Failure)
        counts.setdefault(result[0], []).append(result[1])
    assert len(counts) <= executor.workers
    assert all(sorted(several) == list(range(1, len(several) + 1)) for several in counts.values())


def meet_workers(pool: Pool[Counter], wanted: int) -> set[int]:
    """Map until `wanted` workers have answered. Returns their process ids."""
    pids: set[int] = set()
    for result in pool.map(count, iter(lambda: 0.01, None)):
        assert not isinstance(result, Failure)
        pids.add(result[0])
        if len(pids) == wanted:
            break
    return pids


def test_workers_killed_between_maps_are_replaced(parallel: Executor) -> None:
    notices: list[str] = []
    with parallel.open_pool(Counter, attempts=1, listener=lambda event: notices.append(event.data["text"])) as pool:
        first = meet_workers(pool, 2)
        list(pool.map(count, [0.0] * 2))
        for pid in first:
            os.kill(pid, signal.SIGKILL)
        assert not first & meet_workers(pool, 2)
    assert sum("a worker died" in text for text in notices) == 2


class ManualWorker(Worker[Counter]):
    """A worker that loses every item once it is dead. The results of the item "slow", and of `held` ones, are set by the test."""

    def __init__(self) -> None:
        self.is_dead = self.held = False
        self.started: Future[object] = Future()
        self.result: Future[object] = Future()

    def start(self) -> Future[object]:
        return self.started

    def submit(self, function: Any, item: Any) -> Future[object]:
        self.result = Future()
        if self.is_dead:
            self.result.set_exception(WorkerLost("killed"))
        elif item != "slow" and not self.held:
            self.result.set_result(item)
        return self.result

    def stop(self) -> None: ...


@pytest.mark.parametrize("answered", ["an abandoned item", "a check of an earlier map"])
def test_a_late_answer_of_a_killed_worker_loses_no_item(answered: str) -> None:
    workers = [ManualWorker() for _ in range(3)]
    unused = iter(workers)
    for worker in workers[:2]:
        worker.started.set_result(None)

    def react(event: Event) -> None:
        """Deliver the late answer at the first notice of a death; at the second, let the third worker start."""
        if not answer.done():
            answer.set_result("late")
        elif not workers[2].started.done():
            workers[2].started.set_result(None)

    with Pool(lambda: next(unused), lambda: 2, lambda: None, 1, react) as pool:
        abandoned = pool.map(read, ["done", "slow"])
        assert next(abandoned) == "done"
        abandoned.close()  # type: ignore[attr-defined]
        late, idle = sorted(workers[:2], key=lambda worker: worker.result.done())
        if answered != "an abandoned item":
            late.result.set_result("abandoned")
            late.held = True
            assert list(pool.map(read, ["done"])) == ["done"]
        answer = late.result
        late.is_dead = idle.is_dead = True
        assert list(pool.map(read, ["done"])) == ["done"]


def test_a_worker_killed_during_a_map_is_replaced_for_the_next() -> None:
    with open_executor("processes:1") as executor, executor.open_pool(Counter, attempts=1) as pool:
        results = list(pool.map(die, range(3)))
        assert isinstance(results[1], Failure)
        assert [results[0], results[2]] == [0, 2]
        assert list(pool.map(die, [3, 4])) == [3, 4]


def test_an_exception_leaves_the_pool_usable(local: Executor) -> None:
    with local.open_pool(Counter) as pool:
        pids = meet_workers(pool, local.workers)
        with pytest.raises(SettingsError, match="no 0"):
            list(pool.map(refuse, range(9)))
        assert meet_workers(pool, local.workers) == pids


def test_results_of_an_abandoned_map_do_not_reach_the_next(local: Executor) -> None:
    with local.open_pool(Counter) as pool:
        abandoned = pool.map(count, [0.2] * 9)
        next(abandoned)
        with pytest.raises(ExecutorError, match="one map"):
            next(pool.map(count, [0.0]))
        abandoned.close()  # type: ignore[attr-defined]
        assert list(pool.map(die, [5, 6, 7])) == [5, 6, 7]


def test_a_pool_can_be_closed_while_another_thread_maps() -> None:
    errors: list[Exception] = []
    started = threading.Event()

    def wait(items: Any) -> None:
        try:
            for _ in pool.map(count, items):
                started.set()
        except Exception as error:
            errors.append(error)

    with open_executor("processes:2") as executor:
        pool = executor.open_pool(Counter)
        thread = threading.Thread(target=wait, args=([0.0, 600.0, 600.0],))
        thread.start()
        assert started.wait(60)
        executor.close()
        thread.join(60)
    assert "closed" in str(errors[0])
    with pytest.raises(ExecutorError, match="closed"):
        next(pool.map(count, [0.0]))


def test_a_stream_takes_items_until_it_is_closed() -> None:
    waiting, results, done = [0, 1, 2], dict[int, Any](), threading.Semaphore(0)

    def take() -> int | None:
        return waiting.pop(0) if waiting else None

    def finish(item: int, result: Any) -> None:
        results[item] = result
        done.release()

    def wait_for(count: int) -> None:
        for _ in range(count):
            assert done.acquire(timeout=120)

    with open_executor("processes:2") as executor:
        pool = executor.open_pool(Counter, attempts=1)
        thread = threading.Thread(target=pool.stream, args=(die, take, finish))
        thread.start()
        wait_for(3)
        # The worker of item 1 died; the stream goes on when there are items again.
        assert isinstance(results.pop(1), Failure)
        waiting += [3, 4]
        pool.wake()
        wait_for(2)
        assert results == {k: k for k in (0, 2, 3, 4)}
        pool.close()
        thread.join(60)
        assert not thread.is_alive()


def test_a_stream_returns_exceptions_to_their_items() -> None:
    seen: list[Any] = []
    with open_executor("inline") as executor:
        pool = executor.open_pool(Counter)
        items = iter([1, 2])

        def finish(item: int, result: Any) -> None:
            seen.append((item, str(result.error)))
            if len(seen) == 2:
                pool.close()

        pool.stream(refuse, lambda: next(items, None), finish)
    assert seen == [(1, "no 1"), (2, "no 2")]


def test_a_shared_value_reaches_all_workers_and_is_released(executor: Executor) -> None:
    import numpy as np
    import torch

    weights = {
        "a": torch.arange(10.0).reshape(2, 5).T,
        "b": torch.full((3,), 0.5, dtype=torch.bfloat16),
        "c": torch.tensor(7),
        "empty": torch.zeros(0, 3),
    }
    shared = executor.share(weights)
    with executor.open_pool(Counter) as pool:
        assert list(pool.map(add_up, [(shared, k) for k in range(8)])) == [k * 53.5 for k in range(8)]
        [copy] = pool.map(read, [shared])
        assert isinstance(copy, dict)
        assert all(torch.equal(copy[name], weights[name]) for name in weights)
        assert all(copy[name].dtype == weights[name].dtype for name in weights)
        [array] = pool.map(read, [executor.share({"x": np.arange(6)})])
        assert isinstance(array, dict)
        assert array["x"].tolist() == list(range(6))
        shared.release()
        with pytest.raises(ExecutorError, match="was released"):
            list(pool.map(read, [shared]))


def wait_for(state: Counter, item: tuple[SharedVariable[str], str]) -> int:
    """Read the variable until it has a value. Returns how often the first value was read."""
    variable, wanted = item
    deadline, reads = time.monotonic() + 20, 0
    while variable.get() != wanted and time.monotonic() < deadline:
        reads += 1
        time.sleep(0.001)
    assert variable.get() == wanted
    return reads


def test_a_variable_reaches_workers_that_are_busy(parallel: Executor) -> None:
    variable = parallel.share_variable("first")
    with parallel.open_pool(Counter) as pool:
        assert list(pool.map(wait_for, [(variable, "first")])) == [0]
        timer = threading.Timer(0.3, lambda: variable.set("second"))
        timer.start()
        [reads] = pool.map(wait_for, [(variable, "second")])
        assert reads > 10  # type: ignore[operator]
        timer.join()
        variable.set("third")
        list(pool.map(wait_for, [(variable, "third")]))


def test_the_files_of_shared_values_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with open_executor("processes:1") as executor:
        first, second = executor.share([1]), executor.share([2])
        assert (first.get(), second.get(), len(list(tmp_path.iterdir()))) == ([1], [2], 2)
        first.release()
        assert len(list(tmp_path.iterdir())) == 1
    assert not list(tmp_path.iterdir())


def grow(state: Counter, shared: Shared[Weights]) -> tuple[float, int]:
    """Read the last element; return how much memory that takes, in kB."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    last = float(shared.get()["x"][-1])
    return last, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before


def test_a_large_value_is_mapped_and_not_copied() -> None:
    import torch

    with open_executor("processes:1") as executor, executor.open_pool(Counter) as pool:
        list(pool.map(read, [executor.share(torch.ones(1))]))
        [result] = pool.map(grow, [executor.share({"x": torch.ones(16 << 20)})])
    assert not isinstance(result, Failure)
    assert result[0] == 1.0
    assert result[1] < 16 << 10


@pytest.mark.backends  # A bench survives a killed node in `make test`.
def test_a_shared_value_survives_a_killed_node(two_nodes: Any) -> None:
    import torch

    events: list[Event] = []
    with open_executor("ray") as executor, executor.open_pool(Counter, listener=events.append) as pool:
        shared = executor.share({"x": torch.ones(1 << 20)})
        assert set(pool.map(add_up, [(shared, 1)] * 4)) == {float(1 << 20)}
        two_nodes.remove_node(two_nodes.list_all_nodes()[1], allow_graceful=False)
        assert list(pool.map(add_up, [(shared, k) for k in range(4)])) == [k * float(1 << 20) for k in range(4)]
