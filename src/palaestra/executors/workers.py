"""Workers, what they need, and how values reach them."""

from __future__ import annotations

import copyreg
import io
import os
import pickle
import sys
import traceback
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from palaestra.core.errors import ExecutorError

if TYPE_CHECKING:
    import torch

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
    def start(self) -> Future[object]:
        """Start making the state. The future is done when the worker is ready."""

    @abstractmethod
    def submit(self, function: Callable[[State, Item], object], item: Item) -> Future[object]:
        """Run `function(state, item)`. The future returns the result of `call`, or raises `WorkerLost`."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the worker at once."""


RELEASED = "the shared value was released; share it again"


class Shared(ABC, Generic[Value]):
    """A value that workers read, see `Executor.share`."""

    @abstractmethod
    def get(self) -> Value:
        """Return the value. It may be in memory that several workers share: do not change it.

        Raises:
            ExecutorError: the value was released.
        """

    @property
    def is_readable(self) -> bool:
        """Whether the driver can read the value, too."""
        return True

    def read(self) -> Value:
        """Return the value in the driver. Raises like `get`."""
        return self.get()

    @abstractmethod
    def release(self) -> None:
        """Free the value."""


class SharedVariable(ABC, Generic[Value]):
    """A small value that the driver replaces while workers run items; see `Executor.share_variable`."""

    @abstractmethod
    def set(self, value: Value) -> None:
        """Replace the value. Called by the driver."""

    @abstractmethod
    def get(self) -> Value:
        """Return a recent value, without waiting. Called by workers, as often as they like."""


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


def call(function: Callable[..., object], *arguments: object) -> object:
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


def translate_errors(future: Future[Any], describe_loss: Callable[[BaseException | None], str]) -> Future[object]:
    """Return a future like the given one that raises `WorkerLost` where the worker died.

    Arguments:
        describe_loss: why the worker is lost, by the exception of the future (`None`: it was cancelled); empty if the
            exception is not about the worker.
    """
    translated: Future[object] = Future()

    def finish(ended: Future[Any]) -> None:
        error = None if ended.cancelled() else ended.exception()
        if error is None and not ended.cancelled():
            translated.set_result(ended.result())
        elif loss := describe_loss(error):
            translated.set_exception(WorkerLost(loss))
        else:
            translated.set_exception(error)

    future.add_done_callback(finish)
    return translated


def pack(value: object) -> tuple[bytes, list[memoryview]]:
    """Pickle a value. The data of NumPy arrays and torch tensors is returned separately, as flat views of it."""
    stream, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
    pickler = pickle.Pickler(stream, protocol=5, buffer_callback=buffers.append)
    pickler.dispatch_table = copyreg.dispatch_table.copy()
    if "torch" in sys.modules:  # Torch itself would copy tensors into the pickle.
        pickler.dispatch_table[sys.modules["torch"].Tensor] = _reduce_tensor
    pickler.dump(value)
    return stream.getvalue(), [buffer.raw() for buffer in buffers]


def unpack(data: bytes, buffers: Iterable[memoryview]) -> Any:
    """The value that `pack` packed. Its arrays and tensors use the memory of `buffers`."""
    return pickle.loads(data, buffers=buffers)


def _reduce_tensor(tensor: Any) -> Any:
    import torch

    if tensor.layout is not torch.strided or tensor.is_quantized:
        return tensor.__reduce_ex__(5)
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return _build_tensor, (pickle.PickleBuffer(flat.view(torch.uint8).numpy()), tensor.dtype, tuple(tensor.shape))


def _build_tensor(buffer: pickle.PickleBuffer, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    import torch

    if not memoryview(buffer).nbytes:
        return torch.empty(shape, dtype=dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given buffer is not writable")
        return torch.frombuffer(buffer, dtype=dtype).reshape(shape)
