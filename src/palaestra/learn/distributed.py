"""Several processes that train one policy: their ranks, and the collective operations of `torch.distributed`.

Every process plays its share of the episodes, or workers of rank 0 play all of them. The rollouts are then gathered
(`palaestra.learn.shares`) or broadcast, so every process has all decisions and rewards: advantages, minibatches and
normalisations are those of a single process. A process computes the loss of its share of each minibatch
(`palaestra.learn.rollouts.split_microbatches`), and the gradients are summed before each step
(`Optimizer.reduce_gradients`).

Gradients are summed once per step and not by `DistributedDataParallel`. Its hooks run in the forward pass of a wrapped
module, which the CPU fast paths do not call, and it would reduce them in every microbatch.

In a single process all functions return their argument unchanged.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from palaestra.core.errors import RankError, SettingsError
from palaestra.core.ranks import read_launch_rank, read_launch_size

T = TypeVar("T")
TIMEOUT = timedelta(hours=1)
"""How long a process waits for the others. A killed process is noticed at once; this limit is for one that hangs."""
BUCKET = 1 << 25
"""Maximum number of gradients that are summed in one operation."""
LOST_PEER = ("gloo", "NCCL", "Connection closed by peer", "Connection reset by peer", "Socket Timeout")
"""Parts of the messages of errors that mean that another process has ended or does not answer."""


def rank() -> int:
    """The number of this process; 0 is the one that writes the run folder."""
    return dist.get_rank() if _is_joined() else 0


def world_size() -> int:
    """The number of processes that train the policy."""
    return dist.get_world_size() if _is_joined() else 1


def _is_joined() -> bool:
    return dist.is_available() and dist.is_initialized()


@contextmanager
def join_processes(device: str = "") -> Iterator[None]:
    """Within the context, be one of the processes that torchrun has started. Does nothing in any other process.

    Every process uses the GPU with its local rank, if there are GPUs. A process group that exists is used as it is.

    Arguments:
        device: the setting `device`; `"cpu"` ignores GPUs.

    Raises:
        RankError: another process has ended or does not answer.
        SettingsError: `device` names a single GPU.
    """
    if _is_joined() or read_launch_size() == 1:
        with _explain_lost_peer():
            yield
        return
    if device not in ("", "cpu", "cuda"):
        raise SettingsError(f"setting 'device': several processes cannot share '{device}'; expected cuda or cpu")
    on_gpu = device != "cpu" and torch.cuda.is_available()
    if on_gpu:
        local_rank, count = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if local_rank >= count:
            raise SettingsError(
                f"expected at most {count} processes on this machine, one per GPU; see --nproc-per-node"
            )
        torch.cuda.set_device(local_rank)
    with _explain_lost_peer():
        with _default_sigterm():
            dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=TIMEOUT)
        yield
    # After an error the group is left alone: closing it would wait for the other processes.
    dist.destroy_process_group()


@contextmanager
def _default_sigterm() -> Iterator[None]:
    """Within the context SIGTERM ends the process at once: torch does not run Python's handlers while it waits."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, handler)


@contextmanager
def _explain_lost_peer() -> Iterator[None]:
    """Turn the error of a collective operation whose other side is gone into a `RankError` of one line."""
    number, count = read_launch_rank(), read_launch_size()
    try:
        yield
    except (dist.DistError, RuntimeError) as error:
        if not isinstance(error, dist.DistError) and not any(part in str(error) for part in LOST_PEER):
            raise
        raise RankError(
            f"rank {number} lost the connection to another of the {count} processes, which ended or did not answer "
            f"within {TIMEOUT.total_seconds():.0f} s; the run can be resumed from its last checkpoint"
        ) from error


def broadcast(value: T) -> T:
    """The value of rank 0, in every process."""
    if world_size() == 1:
        return value
    values: list[Any] = [value]
    dist.broadcast_object_list(values, src=0)
    received: T = values[0]
    return received


def gather(value: T) -> list[T]:
    """The values of all processes, by rank."""
    if world_size() == 1:
        return [value]
    values: list[Any] = [None] * world_size()
    dist.all_gather_object(values, value)
    return values


def sum_over_ranks(tensor: torch.Tensor) -> torch.Tensor:
    """Sum a tensor over all processes, in place."""
    if world_size() > 1:
        dist.all_reduce(tensor)
    return tensor


def sum_gradients(parameters: Sequence[torch.nn.Parameter]) -> None:
    """Sum the gradients of some parameters over all processes, in a few operations on long tensors."""
    if world_size() == 1:
        return
    bucket: list[torch.Tensor] = []
    gradients = [p.grad for p in parameters if p.grad is not None]
    for k, gradient in enumerate(gradients):
        bucket.append(gradient)
        last = k + 1 == len(gradients)
        if last or sum(g.numel() for g in bucket) >= BUCKET or gradients[k + 1].dtype != gradient.dtype:
            flat = torch.cat([g.reshape(-1) for g in bucket])
            dist.all_reduce(flat)
            for g, summed in zip(bucket, torch.split(flat, [g.numel() for g in bucket]), strict=True):
                g.copy_(summed.view_as(g))
            bucket = []
