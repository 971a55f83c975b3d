"""Workers that are processes of this machine, each a `ProcessPoolExecutor` with one process."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from pathlib import Path

from palaestra.core.errors import ExecutorError
from palaestra.executors.base import Executor
from palaestra.executors.workers import (
    RELEASED,
    Item,
    Resources,
    Shared,
    SharedVariable,
    State,
    Value,
    Worker,
    call,
    hide_progress_bars,
    pack,
    translate_errors,
    unpack,
)

_CORES = os.cpu_count() or 1
_STATE: list[object] = []
"""The state of this process, if it is a worker."""


class ProcessExecutor(Executor):
    """Runs items in processes.

    The processes are spawned, so scripts need `if __name__ == "__main__":`. Numeric libraries share the cores: each
    worker gets its share as threads, unless `OMP_NUM_THREADS` is set.

    Arguments:
        argument: the number of processes; empty: one per core.
    """

    def __init__(self, argument: str = "") -> None:
        if argument and not argument.isdecimal():
            raise ExecutorError(f"expected the number of processes as in 'processes:4'; got 'processes:{argument}'")
        super().__init__(int(argument) if argument else _CORES)

    def make_worker(self, make_state: Callable[[], State], resources: Resources) -> Worker[State]:
        return _ProcessWorker(make_state, max(1, _CORES // self.workers))

    def make_shared(self, value: Value) -> Shared[Value]:
        file, path = tempfile.mkstemp(prefix="palaestra-", suffix=".shared")
        with os.fdopen(file, "wb") as stream:
            data, buffers = pack(value)
            pickle.dump((data, [buffer.nbytes for buffer in buffers]), stream)
            for buffer in buffers:
                stream.seek(_align(stream.tell()))
                stream.write(buffer)
        shared: _SharedFile[Value] = _SharedFile(path)
        weakref.finalize(shared, Path(path).unlink, missing_ok=True)
        return shared

    def share_variable(self, value: Value) -> SharedVariable[Value]:
        file, path = tempfile.mkstemp(prefix="palaestra-", suffix=".variable")
        os.close(file)
        variable: _VariableFile[Value] = _VariableFile(path)
        weakref.finalize(variable, Path(path).unlink, missing_ok=True)
        variable.set(value)
        return variable


class _VariableFile(SharedVariable[Value]):
    """A file with the pickle of the value, which is replaced as a whole. A worker reads it again if it is another file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: tuple[int, int] | None = None

    def __reduce__(self) -> tuple[type[_VariableFile[Value]], tuple[str]]:
        return _VariableFile, (self._path,)

    def set(self, value: Value) -> None:
        Path(f"{self._path}.new").write_bytes(pickle.dumps(value))
        os.replace(f"{self._path}.new", self._path)

    def get(self) -> Value:
        status = os.stat(self._path)
        if self._file != (status.st_ino, status.st_mtime_ns):
            self._value: Value = pickle.loads(Path(self._path).read_bytes())
            self._file = status.st_ino, status.st_mtime_ns
        return self._value


class _SharedFile(Shared[Value]):
    """A file: the pickle with the lengths of its buffers, then the buffers. Workers map it into their memory."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> tuple[type[_SharedFile[Value]], tuple[str]]:
        return _SharedFile, (self._path,)

    def get(self) -> Value:
        try:
            file = open(self._path, "rb")  # noqa: SIM115
        except FileNotFoundError:
            raise ExecutorError(RELEASED) from None
        with file:
            data, lengths = pickle.load(file)
            buffers, end = [], file.tell()
            memory = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        for length in lengths:
            start = _align(end)
            end = start + length
            buffers.append(memory[start:end])
        value: Value = unpack(data, buffers)
        return value

    def release(self) -> None:
        Path(self._path).unlink(missing_ok=True)


def _align(position: int) -> int:
    """The next multiple of 64, the alignment that tensors need at most."""
    return -(-position // 64) * 64


class _ProcessWorker(Worker[State]):
    def __init__(self, make_state: Callable[[], State], threads: int) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(1, mp_context=spawn, initializer=_initialize, initargs=(threads,))
        self._make_state = make_state
        self._pid: int | None = None

    def start(self) -> Future[object]:
        self._pool.submit(os.getpid).add_done_callback(self._set_pid)
        return translate_errors(self._pool.submit(call, _make, self._make_state), _describe_loss)

    def submit(self, function: Callable[[State, Item], object], item: Item) -> Future[object]:
        try:
            future = self._pool.submit(call, _apply, function, item)
        except BrokenProcessPool as error:
            future = Future()
            future.set_exception(error)
        return translate_errors(future, _describe_loss)

    def stop(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)

    def _set_pid(self, future: Future[int]) -> None:
        if not future.cancelled() and future.exception() is None:
            self._pid = future.result()


def _initialize(threads: int) -> None:
    """Ignore Ctrl-C, exit with the parent, and limit the number of threads."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    hide_progress_bars()
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    os._exit(1)


def _make(make_state: Callable[[], object]) -> None:
    _STATE[:] = [make_state()]


def _apply(function: Callable[..., object], item: object) -> object:
    return function(_STATE[0], item)


def _describe_loss(error: BaseException | None) -> str:
    lost = error is None or isinstance(error, BrokenProcessPool)
    return "its process ended; it was killed or ran out of memory" if lost else ""
