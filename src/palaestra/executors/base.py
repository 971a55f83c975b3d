"""Run independent items on workers. Results come back in the order of the items.

A worker is a process, or an actor of a Ray cluster, that makes its state once (an engine, a task) and then runs one item
at a time. `Executor.map` and `Pool` are the same for all executors; an executor only implements how to start a worker and
how to share a value with all of them.

    inline              in this process, one item after the other
    processes[:N]       in N processes of this machine; default: one per core
    ray[:ADDRESS]       on a Ray cluster; without an address the running one, or a new one on this machine
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any, Self
from weakref import WeakSet

from palaestra.core.errors import ExecutorError
from palaestra.core.records import Failure, Listener, ignore
from palaestra.core.registry import Registry
from palaestra.executors.pool import ATTEMPTS, Pool
from palaestra.executors.workers import (
    RELEASED,
    Item,
    Raised,
    Resources,
    Result,
    Shared,
    SharedVariable,
    State,
    Value,
    Worker,
)

__all__ = ["ATTEMPTS", "EXECUTORS", "Executor", "InlineExecutor", "Pool", "Resources", "Shared", "open_executor"]

EXECUTORS = Registry("executor", "palaestra.executors")
"""Executors by scheme. Each entry is called with the text after the colon."""
EXECUTORS.register("inline", "palaestra.executors.base:InlineExecutor", "in this process, one item after the other")
EXECUTORS.register(
    "processes", "palaestra.executors.processes:ProcessExecutor", "processes of this machine, processes:N"
)
EXECUTORS.register("ray", "palaestra.executors.ray:RayExecutor", "a Ray cluster, ray:ADDRESS")


class Executor(ABC):
    """Starts workers, and maps functions over items with them. A context manager: leaving it stops all workers.

    Arguments:
        workers: the maximum number of workers at a time.
    """

    def __init__(self, workers: int) -> None:
        if workers < 1:
            raise ExecutorError(f"an executor needs at least 1 worker; got {workers}")
        self.workers = workers
        self._pools: WeakSet[Pool[Any]] = WeakSet()
        self._shared: WeakSet[Shared[Any]] = WeakSet()

    @abstractmethod
    def make_worker(self, make_state: Callable[[], State], resources: Resources) -> Worker[State]:
        """Make a worker that will call `make_state()` once. Both must be picklable, except for the inline executor."""

    def count_workers(self, resources: Resources) -> int:
        """The number of workers with these resources that may run at a time."""
        return self.workers

    def check_connection(self) -> None:  # noqa: B027
        """Raise `ExecutorError` if workers cannot be reached any more. Called when a worker starts, and every few seconds."""

    @abstractmethod
    def make_shared(self, value: Value) -> Shared[Value]:
        """Make a value available to the workers."""

    @abstractmethod
    def share_variable(self, value: Value) -> SharedVariable[Value]:
        """Share a small value that the driver replaces while workers run items. Put the returned handle into items."""

    def close(self) -> None:
        """Stop all workers and release all shared values."""
        for pool in list(self._pools):
            pool.close()
        for shared in list(self._shared):
            shared.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def map(
        self,
        function: Callable[[State, Item], Result],
        items: Iterable[Item],
        make_state: Callable[[], State],
        *,
        resources: Resources | None = None,
        attempts: int = ATTEMPTS,
        listener: Listener = ignore,
    ) -> Iterator[Result | Failure]:
        """Yield `function(state, item)` for each item, in the order of the items. The workers end with the iterator.

        Arguments: see `open_pool` and `Pool.map`.
        """
        with self.open_pool(make_state, resources=resources, attempts=attempts, listener=listener) as pool:
            yield from pool.map(function, items)

    def open_pool(
        self,
        make_state: Callable[[], State],
        *,
        resources: Resources | None = None,
        attempts: int = ATTEMPTS,
        listener: Listener = ignore,
    ) -> Pool[State]:
        """Open a pool of workers that keep their states from one `Pool.map` to the next. Close it to stop them.

        Arguments:
            make_state: called once in each worker; its result is the first argument of the functions.
            resources: what a worker needs; default: one core.
            attempts: how often an item runs if its worker dies, before it becomes a `Failure`.
            listener: receives a notice for each lost worker.
        """
        needed = resources or Resources()
        pool: Pool[State] = Pool(
            partial(self.make_worker, make_state, needed),
            partial(self.count_workers, needed),
            self.check_connection,
            attempts,
            listener,
        )
        self._pools.add(pool)
        return pool

    def share(self, value: Value | Shared[Value]) -> Shared[Value]:
        """Share a large value with the workers: put the returned handle into items, and call its `get` in a worker.

        The value is sent once per node and not once per item. Arrays and tensors are not copied for each worker;
        tensors arrive on the CPU. The value is freed by `Shared.release`, or when the executor closes. A handle that others
        have made, for example a `SharedWeights`, is returned as it is.
        """
        shared = value if isinstance(value, Shared) else self.make_shared(value)
        self._shared.add(shared)
        return shared


class InlineExecutor(Executor):
    """Runs items in this process, one after the other."""

    def __init__(self, argument: str = "") -> None:
        if argument:
            raise ExecutorError(f"the executor 'inline' takes no argument; got '{argument}'")
        super().__init__(1)

    def make_worker(self, make_state: Callable[[], State], resources: Resources) -> Worker[State]:
        return _InlineWorker(make_state)

    def make_shared(self, value: Value) -> Shared[Value]:
        return _InlineShared(value)

    def share_variable(self, value: Value) -> SharedVariable[Value]:
        return _InlineVariable(value)


class _InlineVariable(SharedVariable[Value]):
    def __init__(self, value: Value) -> None:
        self._value = value

    def set(self, value: Value) -> None:
        self._value = value

    def get(self) -> Value:
        return self._value


class _InlineShared(Shared[Value]):
    def __init__(self, value: Value) -> None:
        self._value = [value]

    def get(self) -> Value:
        if not self._value:
            raise ExecutorError(RELEASED)
        return self._value[0]

    def release(self) -> None:
        self._value.clear()


class _InlineWorker(Worker[State]):
    def __init__(self, make_state: Callable[[], State]) -> None:
        self._make_state = make_state

    def start(self) -> Future[object]:
        self._state = self._make_state()
        return _complete(None)

    def submit(self, function: Callable[[State, Item], object], item: Item) -> Future[object]:
        try:
            return _complete(function(self._state, item))
        except MemoryError:
            raise
        except Exception as error:
            return _complete(Raised(error))

    def stop(self) -> None:
        """Nothing runs between items."""


def open_executor(name: str) -> Executor:
    """Open an executor: `inline`, `processes:4`, `ray`, `ray:10.0.0.1:6379`.

    Raises:
        UnknownNameError: there is no such executor.
        ExecutorError: it cannot be used.
    """
    scheme, _, argument = name.partition(":")
    executor: Executor = EXECUTORS.get(scheme)(argument)
    return executor


def _complete(result: object) -> Future[object]:
    future: Future[object] = Future()
    future.set_result(result)
    return future
