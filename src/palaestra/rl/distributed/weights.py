"""Publish the weights of several learners to samplers; see `palaestra.executors.broadcast`."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from math import prod

import torch

from palaestra.core.access import find_own_address
from palaestra.executors.broadcast import SharedWeights, WeightSender
from palaestra.executors.meeting import LOCAL_HOST, open_meeting
from palaestra.executors.weight_parts import Piece
from palaestra.rl.distributed.ranks import broadcast, gather, is_sharded, rank, world_size


class WeightPublisher:
    """Sends the weights of a policy from all learners. All processes must make it and call its methods.

    Arguments:
        host: the address at which samplers reach rank 0.
        backend: `gloo` or `nccl`.
    """

    def __init__(self, host: str, backend: str) -> None:
        if len(set(gather(socket.gethostname()))) > 1 and host == LOCAL_HOST:
            host = find_own_address()
        opened = open_meeting(host, world_size(), backend) if rank() == 0 else None
        self._store: object = opened and opened[1]  # Served as long as it is referred to.
        meeting = broadcast(opened and opened[0])
        assert meeting is not None
        self._sender = WeightSender(meeting, rank())

    def publish(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> SharedWeights | None:
        """Send the weights after `version` updates. Returns their handle in rank 0.

        No process gathers them: each sends its shard of a sharded tensor, and its share of the elements of any other.
        """
        parts = [_cut_share(name, tensor) for name, tensor in weights]
        checksums = gather(self._sender.store_part(parts))
        return self._sender.publish(version, checksums) if rank() == 0 else None

    def close(self) -> None:
        self._sender.close()
        self._store = None


def _cut_share(name: str, tensor: torch.Tensor) -> tuple[Piece, torch.Tensor]:
    """The elements of a tensor that this process sends."""
    size, shape, processes = tensor.numel(), tuple(tensor.shape), world_size()
    if is_sharded(tensor):  # In rows, as evenly as `torch.chunk` divides them.
        flat = tensor.to_local().detach().reshape(-1)  # type: ignore[attr-defined]
        rows = -(-shape[0] // processes)
        start = min(rank() * rows, shape[0]) * prod(shape[1:])
    else:
        start, end = (size * k // processes for k in (rank(), rank() + 1))
        flat = tensor.detach().reshape(-1)[start:end]
    return Piece(name, str(tensor.dtype).removeprefix("torch."), shape, start, flat.numel()), flat
