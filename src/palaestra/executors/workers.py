"""Workers, what they need, and what they share."""

from __future__ import annotations

import os
import pickle
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar

from palaestra.core.errors import ExecutorError

State = TypeVar("State")
Item = TypeVar("Item")
Result = TypeVar("Result")
Value = TypeVar("Value")


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


class Shared(ABC, Generic[Value]):
    """A value that workers read, see `Executor.share`."""

    @abstractmethod
    def get(self) -> Value:
        """Return the value. It may be in memory that several workers share: do not change it.

        Raises:
            ExecutorError: the value was released.
        """

    @abstractmethod
    def release(self) -> None:
        """Free the value."""


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception of a function. `trace` is its traceback in another process."""

    error: Exception
    trace: str = ""

    def throw(self) -> NoReturn:
        if self.trace:
            self.error.add_note(f"In a worker:\n{self.trace}")
        raise self.error


def hide_progress_bars() -> None:
    """Hide the progress bars of Hugging Face in this worker. They would break the driver's display."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def make_released_error() -> ExecutorError:
    return ExecutorError("the shared value was released; share it again")


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
