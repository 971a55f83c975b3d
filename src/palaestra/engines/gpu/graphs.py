"""Captured CUDA graphs: a fixed sequence of kernels that one call launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


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
