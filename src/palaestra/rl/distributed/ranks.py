"""Processes of one training run, and the models that they shard."""

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
from torch import nn
from torch.distributed import PrefixStore, rendezvous  # type: ignore[attr-defined]

from palaestra.core.errors import RankError, SettingsError
from palaestra.core.process import read_launch_rank, read_launch_size, read_restarts
from palaestra.models.families import unwrap_adapter

T = TypeVar("T")
_TIMEOUT = timedelta(hours=1)
"""How long a process waits for the others. A killed process is noticed at once; this limit is for one that hangs."""
_MAX_BUCKET = 1 << 25
"""Maximum number of gradients that are summed in one operation."""
_LOST_PEER = ("gloo", "NCCL", "Connection closed by peer", "Connection reset by peer", "Socket Timeout")
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
            store, number, size = next(rendezvous("env://", timeout=_TIMEOUT))
            # torchrun's store may have the addresses of processes that it has replaced.
            store = PrefixStore(f"restart-{read_restarts()[0]}", store)
            backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
            dist.init_process_group(backend, store=store, rank=number, world_size=size, timeout=_TIMEOUT)
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
        if not isinstance(error, dist.DistError) and not any(part in str(error) for part in _LOST_PEER):
            raise
        raise RankError(
            f"rank {number} lost the connection to another of the {count} processes, which ended or did not answer "
            f"within {_TIMEOUT.total_seconds():.0f} s; the run can be resumed from its last checkpoint"
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
        if last or sum(g.numel() for g in bucket) >= _MAX_BUCKET or gradients[k + 1].dtype != gradient.dtype:
            flat = torch.cat([g.reshape(-1) for g in bucket])
            dist.all_reduce(flat)
            for g, summed in zip(bucket, torch.split(flat, [g.numel() for g in bucket]), strict=True):
                g.copy_(summed.view_as(g))
            bucket = []


def shard_policy(policy: Any) -> None:
    """Shard the model, the value head and the critic of a language model policy over all processes, in place.

    Call this before the optimizer is made.
    """
    device = policy.model.device
    _shard_model(policy.model, device)
    forwards = [policy.sequence_forward]
    if policy.value_head is not None:
        _shard(policy.value_head, device)
    if policy.critic is not None:
        _shard_model(policy.critic.body, device)
        _shard(policy.critic.head, device)
        forwards.append(policy.critic.sequence_forward)
    for forward in forwards:
        forward.fast = None  # It reads the weights of single layers.
        forward.share_prompts = False  # The number of passes must not depend on the prompts of a process.


def _shard_model(model: Any, device: torch.device) -> None:
    """Shard every block of a model of transformers, then the rest: the embeddings and the output layer."""
    base = unwrap_adapter(model)
    blocks = set(getattr(base, "_no_split_modules", None) or ())
    for module in model.modules():
        if type(module).__name__ in blocks:
            _shard(module, device)
    _shard(model, device)


def _shard(module: nn.Module, device: torch.device) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    sharded = fully_shard(module, mesh=init_device_mesh(device.type, (world_size(),)), reshard_after_forward=True)
    # Losses are divided by the counts of all processes, so gradients are summed and not averaged.
    sharded.set_gradient_divide_factor(1.0)
    sharded.set_force_sum_reduction_for_comms(True)


@contextmanager
def gather_weights(policy: nn.Module) -> Iterator[None]:
    """Within the context, every process has the whole weights and can compute without the others, without gradients.

    All processes must enter the context. It does nothing for a policy that is not sharded.
    """
    from torch.distributed.fsdp import FSDPModule

    sharded = [module for module in policy.modules() if isinstance(module, FSDPModule)] if world_size() > 1 else []
    for module in sharded:
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    try:
        yield
    finally:
        for module in sharded:
            module.set_reshard_after_forward(True, recurse=False)
            module.reshard()


def gather_state_dict(model: nn.Module) -> dict[str, torch.Tensor]:
    """The whole state dict of a sharded model, in main memory of rank 0; empty for any other model.

    All processes must call this. They gather one tensor at a time, and a tied weight once.
    """
    from torch.distributed.fsdp import FSDPModule

    if not isinstance(model, FSDPModule):
        return {}
    tensors: dict[str, Any] = dict(model.named_parameters(remove_duplicate=False))
    for prefix, module in model.named_modules():
        kept = module._buffers.keys() - module._non_persistent_buffers_set
        tensors |= {f"{prefix}.{name}": module._buffers[name] for name in kept}
    whole = {id(tensor): to_whole(tensor) for tensor in {id(tensor): tensor for tensor in tensors.values()}.values()}
    return {name: whole[id(tensor)] for name, tensor in tensors.items()}


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether a tensor is distributed over the processes."""
    if world_size() == 1:
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def gather_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The whole of a sharded tensor, in all processes; any other tensor itself."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def to_whole(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a whole tensor. One that is sharded is gathered by all processes; rank 0 gets it, in main memory."""
    if not is_sharded(tensor):
        return tensor.detach().contiguous().clone()
    whole = gather_tensor(tensor.detach())
    return whole.cpu() if rank() == 0 else torch.empty(0)


def to_share(whole: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """This process's part of a whole tensor, sharded like another one; `whole` itself if that is not, or if it is sharded."""
    if not is_sharded(like) or is_sharded(whole):
        return whole
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = like.device_mesh, like.placements  # type: ignore[attr-defined]
    return distribute_tensor(whole.to(like.device, like.dtype), mesh, placements, src_data_rank=None)
