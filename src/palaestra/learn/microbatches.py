"""Backward passes over the microbatches of a minibatch, with recovery from an out-of-memory error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from palaestra.core.errors import ModelError
from palaestra.learn.algorithms import MetricMeans
from palaestra.learn.distributed import world_size
from palaestra.learn.optimizers import Optimizer
from palaestra.learn.rollouts import Rollout, Selection, split_microbatches

Result = TypeVar("Result")


def backward_in_microbatches(
    backward: Callable[[Selection, torch.Tensor | slice], Result],
    minibatch: Selection,
    policy: Any,
    rollout: Rollout,
    optimizer: Optimizer,
    metrics: MetricMeans,
) -> list[Result]:
    """Call `backward` with each microbatch of this process and its rows in the minibatch; returns the results.

    If a GPU has too little memory, the gradient and the metrics of the minibatch are discarded and all of it is computed again
    in microbatches of half the size. The policy keeps that size.

    Raises:
        ModelError: a single sequence does not fit into memory, or several processes train together.
    """
    while True:
        size = policy.max_microbatch_size(rollout)
        parts = split_microbatches(minibatch, size)
        kept = metrics.copy()
        try:
            return [backward(microbatch, rows) for microbatch, rows in parts]
        except torch.OutOfMemoryError as error:
            largest = max(len(microbatch) for microbatch, _ in parts)
            if largest == 1 or not minibatch.by_sequence or world_size() > 1:
                raise ModelError(_explain(error, largest, rollout)) from error
        # Outside of the handler: the error refers to the tensors of the failed pass.
        optimizer.zero_grad()
        metrics.restore(kept)
        torch.cuda.empty_cache()
        policy.microbatch_size = max(1, largest // 2)


def _explain(error: torch.OutOfMemoryError, sequences: int, rollout: Rollout) -> str:
    tokens = int(rollout.mask_BT.sum(-1).max())
    reason = ". ".join(str(error).split(". ")[:2])
    return (
        f"the GPU has too little memory for a microbatch of {sequences} sequences with up to {tokens} decisions ({reason}); "
        "set --microbatch-size to less, set --gradient-checkpointing, train an adapter (--method lora), or lower "
        "--max-tokens or --num-envs"
    )
