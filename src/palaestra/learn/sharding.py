"""Fully sharded data parallel (FSDP2): every process stores a part of each parameter, gradient and optimizer moment.

A pass with gradients gathers one block of the model at a time, so all processes must compute at once. For sampling and every
other pass without gradients the whole weights are gathered (`gather_weights`), and processes compute independently: a decoding
step needs all weights, and gathering them for each token would dominate it. The bare weights therefore have to fit into
the memory of one device; gradients and optimizer moments, several times as large, do not. An engine that samples has its own
copy and receives the weights one tensor at a time (`gather_tensor`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from palaestra.engines.adapters import unwrap_adapter
from palaestra.learn.distributed import rank, world_size


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


def list_gathered_weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """The state dict of a sharded model within `gather_weights`; empty for any other model.

    `model.state_dict()` would shard the model again.
    """
    from torch.distributed.fsdp import FSDPModule

    if not isinstance(model, FSDPModule):
        return {}
    tensors: dict[str, Any] = dict(model.named_parameters(remove_duplicate=False))
    for prefix, module in model.named_modules():
        kept = module._buffers.keys() - module._non_persistent_buffers_set
        tensors |= {f"{prefix}.{name}": module._buffers[name] for name in kept}
    return tensors


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
    """This process's part of a whole tensor, sharded like another one; `whole` itself if that is not sharded."""
    if not is_sharded(like):
        return whole
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = like.device_mesh, like.placements  # type: ignore[attr-defined]
    return distribute_tensor(whole.to(like.device, like.dtype), mesh, placements, src_data_rank=None)
