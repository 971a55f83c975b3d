"""Captured CUDA graphs, and the memory of a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from palaestra.core.errors import ModelError

if TYPE_CHECKING:
    from transformers import PretrainedConfig


class Graph:
    """A computation that is captured if it runs on a GPU. Inputs and outputs are tensors in fixed places.

    Arguments:
        compute: reads and writes tensors that stay where they are. Its result stays valid until the next call.
        capture: false computes it anew in every call, on any device.
    """

    def __init__(self, compute: Callable[[], Any], capture: bool) -> None:
        self._compute, self._graph, self._result = compute, None, None
        if not capture:
            return
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):  # These runs compile kernels and allocate their work space.
                compute()
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._result = compute()

    def __call__(self) -> Any:
        if self._graph is None:
            return self._compute()
        self._graph.replay()
        return self._result


def count_free_bytes(device: torch.device) -> int:
    """Bytes that can be allocated on a GPU, with what torch holds and does not use."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def allocate_cache(
    shape: Sequence[int], dtype: torch.dtype, device: torch.device, rows: int, room: int
) -> torch.Tensor:
    """Zeros for a key-value cache.

    Raises:
        ModelError: it does not fit into memory.
    """
    try:
        return torch.zeros(tuple(shape), dtype=dtype, device=device)
    except torch.OutOfMemoryError as error:
        size = torch.Size(shape).numel() * dtype.itemsize / 1e9
        raise ModelError(
            f"a key-value cache of {rows} sequences with {room} tokens needs {size:.1f} GB, and {count_free_bytes(device) / 1e9:.1f} "
            "GB of the GPU are free; lower the number of sequences (--num-envs, or the engine's batch_size) or their length (--max-tokens)"
        ) from error


def count_cache_rows(config: PretrainedConfig, dtype: torch.dtype, device: torch.device, positions: int) -> int:
    """Number of sequences whose keys and values fit into half of the free memory.

    Arguments:
        config: the configuration of the model.
        positions: the length of a sequence.
    """
    text = config.get_text_config()
    heads = int(getattr(text, "num_key_value_heads", None) or text.num_attention_heads)
    width = int(getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads)
    row = 2 * int(text.num_hidden_layers) * heads * width * positions * dtype.itemsize
    return max(1, count_free_bytes(device) // 2 // row)
