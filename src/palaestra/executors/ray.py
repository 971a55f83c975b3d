"""Workers that are actors of a Ray cluster."""

from __future__ import annotations

import atexit
import os
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from palaestra.core.errors import ExecutorError, MissingExtraError
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

if TYPE_CHECKING:
    from ray import ObjectRef

_ASK_SECONDS = 0.2
"""Seconds between two questions of a worker for the value of a variable."""


class RayExecutor(Executor):
    """Runs items in actors of a Ray cluster. Ray places the actors by the resources that they need.

    Every node needs the same version of Palaestra, and the files in the settings (models, plugins, data) at the same path.
    Ray does not restart the actors: a restarted actor would wait for resources, and its item with it. Instead, `map`
    gives the item to a running actor and starts a new one.

    Arguments:
        argument: the address of the cluster. Empty: `RAY_ADDRESS` or the cluster of this machine; if there is none, a
            new one on this machine.
    """

    def __init__(self, argument: str = "") -> None:
        try:
            import ray
        except ImportError:
            raise MissingExtraError("ray", "ray", "the executor 'ray'") from None
        self._ray = ray
        self._connected = not ray.is_initialized()
        os.environ.setdefault("RAY_TQDM_PATCH_PRINT", "0")  # Ray would replace the built-in `print` for good.
        try:
            _check_reachable(argument)
            if self._connected:
                ray.init(address=argument or None, logging_level="warning")
        except (OSError, RuntimeError, ValueError) as error:
            where = f"at {argument}" if argument else "of this machine"
            raise ExecutorError(f"cannot use the Ray cluster {where}: {_first_line(error)}") from error
        self._head = ray.get_runtime_context().gcs_address
        super().__init__(max(1, int(ray.cluster_resources().get("CPU", 1))))

    def count_workers(self, resources: Resources) -> int:
        """The number of workers that the cluster has room for.

        Raises:
            ExecutorError: there is no room for a worker.
        """
        room = self._ray.cluster_resources()
        wanted = {"CPU": resources.cpus, "GPU": resources.gpus, "memory": resources.memory}
        count = min(int(room.get(name, 0) / amount) for name, amount in wanted.items() if amount)
        if not count:
            listing = ", ".join(f"{name} {room.get(name, 0):g}" for name in wanted)
            raise ExecutorError(f"the Ray cluster has no room for a worker with {resources}; it has {listing}")
        return count

    def check_connection(self) -> None:
        try:
            _check_reachable(self._head)
        except OSError as error:
            raise ExecutorError(
                f"the head of the Ray cluster at {self._head} is lost ({error}); "
                "continue on another one: palaestra resume RUN --executor ray:ADDRESS"
            ) from None

    def make_worker(self, make_state: Callable[[], State], resources: Resources) -> Worker[State]:
        return _RayWorker(self._ray, make_state, resources)

    def make_shared(self, value: Value) -> Shared[Value]:
        data, buffers = pack(value)
        arrays = [np.frombuffer(buffer, np.uint8) for buffer in buffers]
        return _SharedObject(self._ray.put((data, arrays)))

    def share_variable(self, value: Value) -> SharedVariable[Value]:
        holder = self._ray.remote(_Holder).options(num_cpus=0).remote(value)
        return _VariableActor(holder, value)

    def close(self) -> None:
        super().close()
        if not self._connected:
            return
        try:
            self.check_connection()
        except ExecutorError:
            # Without a head, Ray's shutdown and its handler of errors wait for a minute and then kill this process; a
            # normal exit without the shutdown crashes.
            atexit.unregister(self._ray.shutdown)
            atexit.register(_exit_at_once)
            sys.excepthook = sys.__excepthook__
        else:
            self._ray.shutdown()


def _exit_at_once() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(2)  # the exit code of errors that a user can act on


def _check_reachable(address: str) -> None:
    """Raise `OSError` if nothing listens at `host:port`. Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=10).close()


class _SharedObject(Shared[Value]):
    """An object in Ray's object store, on the node of this process. Ray copies it to other nodes when they ask for it."""

    def __init__(self, reference: ObjectRef) -> None:
        self._reference: ObjectRef | None = reference

    def get(self) -> Value:
        import ray

        if self._reference is None:
            raise ExecutorError(RELEASED)
        try:
            value: Value = unpack(*ray.get(self._reference))
        except ray.exceptions.RayError as error:
            raise ExecutorError(f"a shared value is lost: {type(error).__name__}") from error
        return value

    def release(self) -> None:
        self._reference = None


class _Holder:
    """An actor that holds the value of a variable."""

    def __init__(self, value: object) -> None:
        self.set(value)

    def set(self, value: object) -> None:
        self._value = value

    def get(self) -> object:
        return self._value


class _VariableActor(SharedVariable[Value]):
    """Asks the holder for the value a few times per second, in the background."""

    def __init__(self, holder: Any, value: Value) -> None:
        self._holder, self._value = holder, value
        self._answer: ObjectRef | None = None
        self._asked = 0.0

    def __reduce__(self) -> tuple[type[_VariableActor[Value]], tuple[Any, Value]]:
        return _VariableActor, (self._holder, self._value)

    def set(self, value: Value) -> None:
        self._value = value
        self._holder.set.remote(value)

    def get(self) -> Value:
        import ray

        if self._answer is None:
            if time.monotonic() - self._asked > _ASK_SECONDS:
                self._asked, self._answer = time.monotonic(), self._holder.get.remote()
        elif ray.wait([self._answer], timeout=0)[0]:
            self._value, self._answer = ray.get(self._answer), None
        return self._value


class _Actor:
    """An actor: stores a state and calls functions with it."""

    def start(self, make_state: Callable[[], object]) -> object:
        def make() -> None:
            hide_progress_bars()
            self._state = make_state()

        return call(make)

    def apply(self, function: Callable[..., object], item: object) -> object:
        return call(function, self._state, item)


class _RayWorker(Worker[State]):
    def __init__(self, ray: ModuleType, make_state: Callable[[], State], resources: Resources) -> None:
        self._ray, self._make_state = ray, make_state
        memory = {"memory": resources.memory} if resources.memory else {}
        options = {"num_cpus": resources.cpus, "num_gpus": resources.gpus, "max_restarts": 0, **memory}
        self._actor = ray.remote(_Actor).options(**options).remote()

    def start(self) -> Future[object]:
        return translate_errors(self._actor.start.remote(self._make_state).future(), _describe_loss)

    def submit(self, function: Callable[[State, Item], object], item: Item) -> Future[object]:
        return translate_errors(self._actor.apply.remote(function, item).future(), _describe_loss)

    def stop(self) -> None:
        self._ray.kill(self._actor)


def _describe_loss(error: BaseException | None) -> str:
    """Every error of Ray means that the worker is lost; exceptions of the function are results."""
    return f"{type(error).__name__}: {_first_line(error)}"


def _first_line(error: BaseException | None) -> str:
    return str(error).strip().split("\n")[0]
