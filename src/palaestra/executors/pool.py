"""A pool of workers that keep their states over several maps."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from itertools import count, islice
from typing import Generic, Self, cast

from palaestra.core.errors import ExecutorError
from palaestra.core.records import Failure, FailureCause, Listener, notice
from palaestra.executors.workers import Item, Raised, Result, State, Worker, WorkerLost

ATTEMPTS = 3
"""How often an item runs if its worker dies, and how often a worker is started again without a result in between."""
_INTERVAL = 5.0
"""Seconds between two checks of the connection while workers are busy."""
_NOTICE_SECONDS = 60.0
"""Seconds without a running worker after which a notice is sent."""
WINDOW = 4
"""Items per worker that are read ahead of the results. It bounds the memory of `map`."""


class Pool(Generic[State]):
    """Workers with their states, each with one item at a time. Made by `Executor.open_pool`; leaving it stops them.

    Workers start when there are items for them. A lost worker is replaced; the new one gets items once it is ready. On a
    full cluster it may never be ready; the other workers then do all of the work.
    """

    def __init__(
        self,
        make_worker: Callable[[], Worker[State]],
        count_workers: Callable[[], int],
        check_connection: Callable[[], None],
        attempts: int,
        listener: Listener,
    ) -> None:
        self.make_worker, self.count_workers, self.check_connection = make_worker, count_workers, check_connection
        self.attempts, self.listener = attempts, listener
        self._workers: set[Worker[State]] = set()
        self._starting: dict[Future[object], Worker[State]] = {}
        self._checking: dict[Future[object], Worker[State]] = {}
        self._running: dict[Future[object], tuple[Worker[State], _Entry]] = {}
        self._idle: list[Worker[State]] = []
        self._waiting: deque[_Entry] = deque()
        self._lost_starts = 0
        self._is_mapping = False
        self._is_closed = False
        self._wakeup: Future[object] | None = None
        self._lock = threading.Lock()

    def map(self, function: Callable[[State, Item], Result], items: Iterable[Item]) -> Iterator[Result | Failure]:
        """Yield `function(state, item)` for each item, in the order of the items.

        Items are read lazily, a few per worker ahead of the results. If a worker dies, its item runs again on another
        one. An item whose worker died `attempts` times becomes a `Failure`. An exception of the function is raised at
        the item's place in the order; the pool can be used again after it.

        One map runs at a time, in any thread. If its iterator is closed early, the items that run end in the background.

        Raises:
            ExecutorError: no worker can be started, another map is running, or the pool is closed.
        """
        size = self._start_map()
        source = (_Entry(function, item, number) for number, item in zip(count(1), items, strict=False))
        order: deque[_Entry] = deque()
        try:
            while True:
                for entry in islice(source, WINDOW * size - len(order)):
                    order.append(entry)
                    self._waiting.append(entry)
                if not order:
                    return
                self._assign(size)
                if not order[0].is_done:
                    self._collect()
                while order and order[0].is_done:
                    result = order.popleft().result
                    if isinstance(result, Raised):
                        result.throw()
                    yield cast("Result | Failure", result)
        finally:
            self._end_map(order)

    def stream(
        self,
        function: Callable[[State, Item], Result],
        take: Callable[[], Item | None],
        finish: Callable[[Item, Result | Failure | Raised], None],
    ) -> None:
        """Run `function(state, item)` for items that are taken when a worker is free, until the pool is closed.

        Arguments:
            take: returns the next item, or `None` if there is none now; it is asked again when an item is done and
                after `wake`.
            finish: gets each item with its result as soon as it is done. Dead workers are treated as by `map`.

        Raises:
            ExecutorError: as `map`, except that it returns when the pool is closed.
        """
        size, numbers = self._start_map(), count(1)
        entries: list[_Entry] = []
        try:
            while True:
                with self._lock:
                    self._check_open()
                    self._wakeup = Future()  # Before `take`, so that no call of `wake` is missed.
                while len(self._running) + len(self._waiting) < size and (item := take()) is not None:
                    entries.append(_Entry(function, item, next(numbers)))
                    self._waiting.append(entries[-1])
                    self._assign(size)
                self._assign(size)
                self._collect()
                done, entries = [e for e in entries if e.is_done], [e for e in entries if not e.is_done]
                for entry in done:
                    finish(cast("Item", entry.item), cast("Result | Failure | Raised", entry.result))
        except ExecutorError:
            if not self._is_closed:
                raise
        finally:
            self._end_map(entries)

    def wake(self) -> None:
        """Let `stream` ask for items, in any thread."""
        with self._lock:
            if self._wakeup is not None and not self._wakeup.done():
                self._wakeup.set_result(None)

    def close(self) -> None:
        """Stop all workers at once. A map in another thread ends with an `ExecutorError`, and a stream ends."""
        with self._lock:
            self._is_closed = True
        while self._workers:
            self._workers.pop().stop()
        self.wake()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start_map(self) -> int:
        """Begin a map or a stream. Returns the number of workers that may run."""
        if self._is_mapping:
            raise ExecutorError("a pool runs one map at a time; finish the other one, or close its iterator")
        size, self._lost_starts = self.count_workers(), 0
        self._take(wait(self._list_futures(), 0).done)
        self._check_idle()
        self._is_mapping = True
        return size

    def _end_map(self, entries: Iterable[_Entry]) -> None:
        """Abandon the items that have no result."""
        for entry in entries:
            entry.is_done = True
        self._waiting.clear()
        self._is_mapping, self._wakeup = False, None

    def _assign(self, size: int) -> None:
        """Give items to idle workers, and start as many workers as there is work for, `size` at most."""
        while self._waiting and self._idle:
            worker, entry = self._idle[-1], self._waiting[0]
            self._running[worker.submit(entry.function, entry.item)] = worker, entry
            self._idle.pop()
            self._waiting.popleft()
        wanted = len(self._waiting) - len(self._starting) - len(self._checking)
        for _ in range(min(size - len(self._workers), wanted)):
            self.check_connection()
            with self._lock:
                self._check_open()
                worker = self.make_worker()
                self._workers.add(worker)
            self._starting[worker.start()] = worker

    def _check_open(self) -> None:
        if self._is_closed:
            raise ExecutorError("the pool is closed; open another one")

    def _check_idle(self) -> None:
        """Ask all idle workers whether they live, so that no item counts the death of a worker that it never reached.

        Workers that were asked before are asked again: their answer may be older than their death.
        """
        workers = [*self._idle, *self._checking.values()]
        self._checking = {worker.submit(_answer, None): worker for worker in workers}
        self._idle.clear()

    def _collect(self) -> None:
        """Wait for a worker, then take all available results."""
        start, is_told = time.monotonic(), bool(self._running) or not self._starting
        while not (ended := wait(self._list_futures(), _INTERVAL, return_when=FIRST_COMPLETED).done):
            self.check_connection()
            if not is_told and time.monotonic() - start > _NOTICE_SECONDS:
                self.listener(notice("waiting for a worker to start; other programs may use the cluster"))
                is_told = True
        self._check_open()
        self._take(ended)

    def _list_futures(self) -> list[Future[object]]:
        wakeups = [] if self._wakeup is None else [self._wakeup]
        return [*self._starting, *self._checking, *self._running, *wakeups]

    def _take(self, ended: Iterable[Future[object]]) -> None:
        for future in ended:
            if future in self._starting:
                self._take_started(future, self._starting.pop(future))
            elif future in self._checking:
                self._take_checked(future, self._checking.pop(future))
            elif future in self._running:  # Otherwise it is a wakeup, or the answer of a worker that was asked again.
                self._take_result(future, *self._running.pop(future))

    def _take_started(self, future: Future[object], worker: Worker[State]) -> None:
        try:
            result = _get_result(future)
        except WorkerLost as error:
            self._remove(worker)
            self._lost_starts += 1
            if self._lost_starts >= self.attempts:
                raise ExecutorError(f"a worker died {self._lost_starts} times while it started: {error}") from None
            self.listener(notice(f"a worker died while it started; another one starts ({error})"))
            return
        if isinstance(result, Raised):
            self._remove(worker)
            result.throw()
        self._idle.append(worker)

    def _take_checked(self, future: Future[object], worker: Worker[State]) -> None:
        try:
            future.result()
        except WorkerLost as error:
            self._remove(worker)
            self.listener(notice(f"a worker died; another one starts if there is work for it ({error})"))
        else:
            self._idle.append(worker)

    def _take_result(self, future: Future[object], worker: Worker[State], entry: _Entry) -> None:
        try:
            result = _get_result(future)
        except WorkerLost as error:
            self._remove(worker)
            self._check_idle()
            entry.losses += 1
            if entry.is_done:
                self.listener(notice(f"a worker died ({error})"))
            elif entry.losses < self.attempts:
                self.listener(notice(f"a worker died; item {entry.number} runs again ({error})"))
                self._waiting.appendleft(entry)
            else:
                message = f"the worker of this item died {entry.losses} times: {error}"
                entry.finish(Failure(FailureCause.WORKER, message))
            return
        except Exception as error:  # for example, the item cannot be pickled
            result = Raised(error)
        self._lost_starts = 0
        self._idle.append(worker)
        if entry.is_done:  # an item of an abandoned map: the worker may have died since
            self._check_idle()
        entry.finish(result)

    def _remove(self, worker: Worker[State]) -> None:
        worker.stop()
        self._workers.discard(worker)


@dataclass(slots=True)
class _Entry:
    """An item, its number from 1, and how many of its workers died. It is done if it has a result or its map ended."""

    function: Callable[..., object]
    item: object
    number: int
    losses: int = 0
    is_done: bool = False
    result: object = None

    def finish(self, result: object) -> None:
        self.result, self.is_done = result, True


def _get_result(future: Future[object]) -> object:
    """The result of a worker. A worker without memory counts as lost, because its state may be damaged."""
    result = future.result()
    if isinstance(result, Raised) and isinstance(result.error, MemoryError):
        raise WorkerLost("it ran out of memory")
    return result


def _answer(state: object, item: None) -> None:
    """Do nothing, in a worker that lives."""
