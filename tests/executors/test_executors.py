"""All executors keep order, bound what is in flight, and survive dead workers."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from palaestra.core.errors import ExecutorError, MissingExtraError, SettingsError, UnknownNameError
from palaestra.core.records import Event, Failure, FailureCause
from palaestra.executors.base import Executor, Resources, open_executor
from palaestra.executors.pool import WINDOW


def make_offset() -> int:
    return 1000


def add(offset: int, item: int) -> int:
    return offset + item


def slow_first(offset: int, item: int) -> int:
    time.sleep(0.3 if item == 0 else 0.0)
    return offset + item


def name_process(offset: int, item: int) -> int:
    time.sleep(0.05)
    return os.getpid()


def fail_at_three(offset: int, item: int) -> int:
    if item == 3:
        raise SettingsError("three is not allowed")
    return item


class Unpicklable(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


def raise_unpicklable(offset: int, item: int) -> int:
    raise Unpicklable(1, 2)


def die_at_two(offset: int, item: int) -> int:
    if item == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def die_once(folder: str, item: int) -> int:
    marker = Path(folder) / str(item)
    if item % 5 == 2 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return item * item


class InFolder:
    """A state that the caller chose."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def __call__(self) -> str:
        return self.folder


def fail_to_start() -> int:
    raise SettingsError("no such model")


def die_at_start() -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def test_a_cluster_that_does_not_answer_says_so() -> None:
    with pytest.raises(ExecutorError, match=r"127\.0\.0\.1:1: .*refused"):
        open_executor("ray:127.0.0.1:1")


def test_results_come_in_the_order_of_the_items(executor: Executor) -> None:
    assert list(executor.map(slow_first, range(20), make_offset)) == [1000 + k for k in range(20)]


def test_no_items_start_no_worker(local: Executor) -> None:
    assert list(local.map(add, [], fail_to_start)) == []


def test_items_are_read_only_a_few_ahead_of_the_results(local: Executor) -> None:
    read: list[int] = []

    def items() -> Iterator[int]:
        for k in range(1000):
            read.append(k)
            yield k

    results = local.map(add, items(), make_offset)
    for k in range(5):
        assert next(results) == 1000 + k
        assert len(read) <= k + 1 + WINDOW * local.count_workers(Resources())
    results.close()  # type: ignore[attr-defined]
    assert len(read) < 100


def test_all_workers_work(parallel: Executor) -> None:
    pids = set(parallel.map(name_process, range(20), make_offset))
    assert len(pids) == 2
    assert os.getpid() not in pids


def test_an_exception_is_raised_at_its_place_with_its_type(local: Executor) -> None:
    results = local.map(fail_at_three, range(10), make_offset)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(SettingsError, match="three"):
        next(results)


def test_an_exception_that_cannot_be_pickled_keeps_its_text() -> None:
    with open_executor("processes:2") as parallel, pytest.raises(ExecutorError, match="Unpicklable: 1 and 2"):
        list(parallel.map(raise_unpicklable, range(3), make_offset))


def test_errors_with_their_own_constructors_can_be_pickled() -> None:
    for error in (UnknownNameError("task", "mat", ["math"]), MissingExtraError("ray", "ray", "this")):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def test_the_item_of_a_dead_worker_runs_again(parallel: Executor, tmp_path: Path) -> None:
    events: list[Event] = []
    results = list(parallel.map(die_once, range(12), InFolder(tmp_path), listener=events.append))
    assert results == [k * k for k in range(12)]
    assert sum("runs again" in event.data["text"] for event in events) == 2


@pytest.mark.backends
def test_only_the_item_that_kills_its_workers_fails(parallel: Executor) -> None:
    results = list(parallel.map(die_at_two, range(6), make_offset))
    failure = results.pop(2)
    assert results == [0, 1, 3, 4, 5]
    assert isinstance(failure, Failure)
    assert failure.cause is FailureCause.WORKER
    assert "died 3 times" in failure.message


def allocate(offset: int, item: int) -> int:
    """Allocate a gigabyte for item 1, with a limit of less than that."""
    import resource

    limit = psutil.Process().memory_info().vms + (256 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    return len(bytes(1 << 30)) if item == 1 else item


def test_an_item_that_needs_too_much_memory_becomes_a_failure() -> None:
    with open_executor("processes:1") as parallel:
        results = list(parallel.map(allocate, range(3), make_offset, attempts=2))
    failure = results.pop(1)
    assert results == [0, 2]
    assert failure == Failure(FailureCause.WORKER, "the worker of this item died 2 times: it ran out of memory")


def test_a_state_that_cannot_be_made_is_an_error(local: Executor) -> None:
    with pytest.raises(SettingsError, match="no such model"):
        list(local.map(add, range(3), fail_to_start))


def test_workers_that_die_at_their_start_are_an_error() -> None:
    with open_executor("processes:2") as parallel, pytest.raises(ExecutorError, match=r"3 times .*started"):
        list(parallel.map(add, range(3), die_at_start))


@pytest.mark.parametrize(
    ("name", "message"),
    [("inline:3", "takes no argument"), ("processes:two", "processes:4"), ("processes:0", "at least 1")],
)
def test_wrong_arguments_are_explained(name: str, message: str) -> None:
    with pytest.raises(ExecutorError, match=message):
        open_executor(name)


def test_an_unknown_executor_is_named() -> None:
    with pytest.raises(UnknownNameError, match="'processes'"):
        open_executor("proceses")


def test_a_cluster_runs_items_and_says_that_it_has_no_room(two_nodes: Any) -> None:
    with open_executor("ray") as ray:
        assert list(ray.map(add, range(3), make_offset)) == [1000, 1001, 1002]
        with pytest.raises(ExecutorError, match=r"no room.*GPU 0"):
            list(ray.map(add, range(3), make_offset, resources=Resources(gpus=1)))


@pytest.mark.backends
def test_items_of_a_killed_node_run_on_the_other(two_nodes: Any) -> None:
    results: list[Any] = []
    pids: set[int] = set()
    events: list[Event] = []

    def items() -> Iterator[int]:
        k = 0
        while k < 24 or len(pids) < 2:
            yield k
            k += 1

    with open_executor("ray") as ray:
        for square, pid in ray.map(slow_square, items(), make_offset, listener=events.append):
            results.append(square)
            if pid not in pids and len(pids) == 1:
                two_nodes.remove_node(two_nodes.list_all_nodes()[1], allow_graceful=False)
            pids.add(pid)
    assert results == [k * k for k in range(len(results))]
    assert "a worker died" in events[0].data["text"]


def slow_square(offset: int, item: int) -> tuple[int, int]:
    time.sleep(0.2)
    return item * item, os.getpid()


@pytest.mark.backends
@pytest.mark.parametrize(
    ("name", "signal_", "code"),
    [("processes:2", signal.SIGKILL, -9), ("processes:2", signal.SIGINT, 130), ("ray", signal.SIGINT, 130)],
)
def test_workers_end_with_their_driver(
    name: str, signal_: signal.Signals, code: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    script, folder = tmp_path / "driver.py", tmp_path / "workers"
    script.write_text(DRIVER)
    folder.mkdir()
    if name == "ray":
        name = f"ray:{request.getfixturevalue('two_nodes').address}"
    with subprocess.Popen([sys.executable, str(script), name, str(folder)], start_new_session=True) as driver:
        _wait_until(lambda: len(list(folder.iterdir())) == 2)
        os.killpg(driver.pid, signal_)  # as a terminal does for Ctrl-C
        driver.wait(60)
    assert driver.returncode == code
    _wait_until(lambda: not any(psutil.pid_exists(int(file.name)) for file in folder.iterdir()))


DRIVER = """
import os, sys, time
from functools import partial
from pathlib import Path
from palaestra.executors.base import open_executor
def make(folder):
    (Path(folder) / str(os.getpid())).touch()

def work(state, item):
    time.sleep(600)

if __name__ == "__main__":
    try:
        with open_executor(sys.argv[1]) as executor:
            list(executor.map(work, range(2), partial(make, sys.argv[2])))
    except KeyboardInterrupt:
        sys.exit(130)
"""


def _wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.05)
