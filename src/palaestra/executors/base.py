"""Run independent items on workers. Results come back in the order of the items.

A worker is a process, or an actor of a Ray cluster, that makes its state once (an engine, a task) and then runs one item
at a time. `Executor.map` is the same for all executors; an executor only implements how to start a worker.

    inline              in this process, one item after the other
    processes[:N]       in N processes of this machine; default: one per core
    ray[:ADDRESS]       on a Ray cluster; without an address the running one, or a new one on this machine
"""

from __future__ import annotations

import pickle
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from palaestra.core.errors import ExecutorError
from palaestra.core.events import Listener, ignore, notice
from palaestra.core.records import Failure, FailureCause
from palaestra.core.registry import Registry

State = TypeVar("State")
Item = TypeVar("Item")
Result = TypeVar("Result")

EXECUTORS = Registry("executor", "palaestra.executors")
"""Executors by scheme. Each entry is called with the text after the colon."""
EXECUTORS.register("inline", "palaestra.executors.base:InlineExecutor", "in this process, one item after the other")
EXECUTORS.register(
    "processes", "palaestra.executors.processes:ProcessExecutor", "processes of this machine, processes:N"
)
EXECUTORS.register("ray", "palaestra.executors.ray:RayExecutor", "a Ray cluster, ray:ADDRESS")

ATTEMPTS = 3
"""How often an item runs if its worker dies, and how often a worker is started again without a result in between."""
PATIENCE = 60.0
"""Seconds without a running worker after which a notice is sent."""
WINDOW = 4
"""Items per worker that are read ahead of the results. It bounds the memory of `map`."""


@dataclass(frozen=True, slots=True)
class Resources:
    """What a worker needs: CPU cores and GPUs (fractions are allowed), and memory in bytes (0: unspecified).

    Ray places workers by it. The other executors ignore it.
    """

    cpus: float = 1.0
    gpus: float = 0.0
    memory: int = 0


class WorkerLost(Exception):
    """The process of a worker died: it was killed, ran out of memory, or its node is gone."""


class Worker(ABC, Generic[State]):
    """A worker with its state."""

    @abstractmethod
    def start(self) -> Future[Any]:
        """Start making the state. The future is done when the worker is ready."""

    @abstractmethod
    def submit(self, function: Callable[[State, Any], Any], item: Any) -> Future[Any]:
        """Run `function(state, item)`. The future returns the result of `call`, or raises `WorkerLost`."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the worker at once."""


class Executor(ABC):
    """Starts workers, and maps functions over items with them. A context manager: leaving it stops all workers.

    Arguments:
        workers: the maximum number of workers at a time.
    """

    def __init__(self, workers: int) -> None:
        if workers < 1:
            raise ExecutorError(f"an executor needs at least 1 worker; got {workers}")
        self.workers = workers

    @abstractmethod
    def make_worker(self, make_state: Callable[[], State], resources: Resources) -> Worker[State]:
        """Make a worker that will call `make_state()` once. Both must be picklable, except for the inline executor."""

    def count_workers(self, resources: Resources) -> int:
        """The number of workers with these resources that may run at a time."""
        return self.workers

    def close(self) -> None:  # noqa: B027
        """Release the executor. Workers of a `map` end with their iterator."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        """Yield `function(state, item)` for each item, in the order of the items.

        Items are read lazily, a few per worker ahead of the results. If a worker dies, its item runs again on another
        one. An item whose worker died `attempts` times becomes a `Failure`. An exception of the function is raised at
        the item's place in the order.

        Arguments:
            make_state: called once in each worker; its result is the function's first argument.
            resources: what a worker needs; default: one core.
            listener: receives a notice for each lost worker.

        Raises:
            ExecutorError: no worker can be started.
        """
        pool = _Pool(self, function, make_state, resources or Resources(), attempts, listener)
        return pool.run(items)


class InlineExecutor(Executor):
    """Runs items in this process, one after the other."""

    def __init__(self, argument: str = "") -> None:
        if argument:
            raise ExecutorError(f"the executor 'inline' takes no argument; got '{argument}'")
        super().__init__(1)

    def make_worker(self, make_state: Callable[[], State], resources: Resources) -> Worker[State]:
        return _InlineWorker(make_state)


class _InlineWorker(Worker[State]):
    def __init__(self, make_state: Callable[[], State]) -> None:
        self._make_state = make_state

    def start(self) -> Future[Any]:
        self._state = self._make_state()
        return _complete(None)

    def submit(self, function: Callable[[State, Any], Any], item: Any) -> Future[Any]:
        return _complete(function(self._state, item))

    def stop(self) -> None:
        del self._make_state


def open_executor(name: str) -> Executor:
    """Open an executor: `inline`, `processes:4`, `ray`, `ray:10.0.0.1:6379`.

    Raises:
        UnknownNameError: there is no such executor.
        ExecutorError: it cannot be used.
    """
    scheme, _, argument = name.partition(":")
    executor: Executor = EXECUTORS.get(scheme)(argument)
    return executor


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception in a worker, in a form that can be pickled."""

    error: Exception
    trace: str


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a worker. An exception is returned as `Raised`, so that it cannot end the worker."""
    try:
        return function(*arguments)
    except Exception as error:
        trace = traceback.format_exc()
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            error = ExecutorError(f"{type(error).__name__}: {error}")
        return Raised(error, trace)


class _Pool(Generic[State]):
    """The workers of one `map`, each with one item at a time.

    A worker that replaces a lost one gets items once it is ready. On a full cluster it may never be ready; the other
    workers then do all of the work.
    """

    def __init__(
        self,
        executor: Executor,
        function: Callable[[State, Any], Any],
        make_state: Callable[[], State],
        resources: Resources,
        attempts: int,
        listener: Listener,
    ) -> None:
        self.executor, self.function, self.make_state = executor, function, make_state
        self.resources, self.attempts, self.listener = resources, attempts, listener
        self.size = executor.count_workers(resources)
        self.starting: dict[Future[Any], Worker[State]] = {}
        self.running: dict[Future[Any], tuple[Worker[State], _Entry]] = {}
        self.idle: list[Worker[State]] = []
        self.waiting: deque[_Entry] = deque()
        self.done: dict[int, Any] = {}
        self.lost_starts = 0

    def run(self, items: Iterable[Any]) -> Iterator[Any]:
        source = enumerate(items)
        taken, next_index, exhausted = 0, 0, False
        try:
            while True:
                while not exhausted and taken - next_index < WINDOW * self.size:
                    entry = next(source, None)
                    exhausted = entry is None
                    if entry is not None:
                        self.waiting.append(_Entry(*entry))
                        taken += 1
                if next_index == taken:
                    return
                self._assign()
                if next_index not in self.done:
                    self._collect()
                while next_index in self.done:
                    result = self.done.pop(next_index)
                    next_index += 1
                    if isinstance(result, Raised):
                        result.error.add_note(f"In a worker:\n{result.trace}")
                        raise result.error
                    yield result
        finally:
            for worker in [*self.idle, *self.starting.values(), *(worker for worker, _ in self.running.values())]:
                worker.stop()

    def _assign(self) -> None:
        """Give items to idle workers, and start as many workers as there is work for."""
        while self.waiting and self.idle:
            worker, entry = self.idle.pop(), self.waiting.popleft()
            self.running[worker.submit(self.function, entry.item)] = worker, entry
        workers = len(self.starting) + len(self.running) + len(self.idle)
        for _ in range(min(self.size - workers, len(self.waiting) - len(self.starting))):
            worker = self.executor.make_worker(self.make_state, self.resources)
            self.starting[worker.start()] = worker

    def _collect(self) -> None:
        """Wait for a worker, then take all available results."""
        futures = [*self.starting, *self.running]
        timeout = None if self.running else PATIENCE
        while not (ended := wait(futures, timeout, return_when=FIRST_COMPLETED).done):
            self.listener(notice(f"waiting for a worker to start: it needs {self.resources}"))
            timeout = None
        for future in ended:
            if future in self.starting:
                self._take_started(future, self.starting.pop(future))
            else:
                self._take_result(future, *self.running.pop(future))

    def _take_started(self, future: Future[Any], worker: Worker[State]) -> None:
        try:
            result = future.result()
        except WorkerLost as error:
            worker.stop()
            self.lost_starts += 1
            if self.lost_starts >= self.attempts:
                raise ExecutorError(f"a worker died {self.lost_starts} times while it started: {error}") from None
            self.listener(notice(f"a worker died while it started; another one starts ({error})"))
            return
        if isinstance(result, Raised):
            result.error.add_note(f"In a worker:\n{result.trace}")
            raise result.error
        self.idle.append(worker)

    def _take_result(self, future: Future[Any], worker: Worker[State], entry: _Entry) -> None:
        try:
            self.done[entry.index] = future.result()
        except WorkerLost as error:
            worker.stop()
            entry.attempts += 1
            if entry.attempts < self.attempts:
                self.listener(notice(f"a worker died; item {entry.index + 1} runs again ({error})"))
                self.waiting.appendleft(entry)
            else:
                message = f"the worker of this item died {entry.attempts} times: {error}"
                self.done[entry.index] = Failure(FailureCause.WORKER, message)
        else:
            self.lost_starts = 0
            self.idle.append(worker)


@dataclass(slots=True)
class _Entry:
    """An item, its index, and how many of its workers died."""

    index: int
    item: Any
    attempts: int = 0


def _complete(result: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(result)
    return future
