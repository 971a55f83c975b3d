"""Turn values into bytes and buffers. Arrays and tensors become buffers and are not copied."""

from __future__ import annotations

import copyreg
import io
import pickle
import sys
import warnings
from collections.abc import Iterable
from typing import Any


def pack(value: Any) -> tuple[bytes, list[memoryview]]:
    """Pickle a value. The data of NumPy arrays and torch tensors is returned separately, as flat views of it."""
    stream, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
    pickler = pickle.Pickler(stream, protocol=5, buffer_callback=buffers.append)
    pickler.dispatch_table = copyreg.dispatch_table.copy()
    if "torch" in sys.modules:  # Torch itself would copy tensors into the pickle.
        pickler.dispatch_table[sys.modules["torch"].Tensor] = _reduce_tensor
    pickler.dump(value)
    return stream.getvalue(), [buffer.raw() for buffer in buffers]


def unpack(data: bytes, buffers: Iterable[Any]) -> Any:
    """The value that `pack` packed. Its arrays and tensors use the memory of `buffers`."""
    return pickle.loads(data, buffers=buffers)


def _reduce_tensor(tensor: Any) -> Any:
    import torch

    if tensor.layout is not torch.strided or tensor.is_quantized:
        return tensor.__reduce_ex__(5)
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return _build_tensor, (pickle.PickleBuffer(flat.view(torch.uint8).numpy()), tensor.dtype, tuple(tensor.shape))


def _build_tensor(buffer: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    import torch

    if not memoryview(buffer).nbytes:
        return torch.empty(shape, dtype=dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given buffer is not writable")
        return torch.frombuffer(buffer, dtype=dtype).reshape(shape)
