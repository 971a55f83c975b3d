"""The share of the episodes that a process plays, and the rollout of all processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from itertools import accumulate
from typing import Any

import torch

from palaestra.core.errors import SettingsError
from palaestra.learn.distributed import gather, rank, world_size
from palaestra.learn.rollouts import Rollout, TokenInputs


def split_episodes(first: int, episodes: int, group_size: int = 1) -> tuple[int, int]:
    """The number of the first episode that this process plays, and how many it plays. Groups stay whole.

    Raises:
        SettingsError: there are fewer groups than processes.
    """
    groups, count, number = -(-episodes // group_size), world_size(), rank()
    if groups < count:
        raise SettingsError(f"expected at least one group of episodes for each of {count} processes; got {groups}")
    begin, end = (min(groups * k // count * group_size, episodes) for k in (number, number + 1))
    return first + begin, end - begin


def gather_rollout(rollout: Rollout) -> Rollout:
    """The episodes of all processes as one rollout, which equals that of a single process."""
    return rollout if world_size() == 1 else join_rollouts(gather(rollout))


def join_rollouts(parts: Sequence[Rollout]) -> Rollout:
    """Join rollouts of a language model in order. Tables are padded to the longest sequence."""
    joined = {f.name: _join([getattr(part, f.name) for part in parts]) for f in fields(Rollout)}
    joined["inputs"] = _join_inputs([part.inputs for part in parts])
    joined["metrics"] = _join_metrics(parts)
    joined["limit"] = max(part.limit for part in parts)
    numbers = [part.episode_B for part in parts if part.episode_B is not None]
    if numbers:
        firsts = accumulate((len(part.first_sequences) for part in parts), initial=0)
        joined["episode_B"] = torch.cat([part_B + first for part_B, first in zip(numbers, firsts, strict=False)])
    return Rollout(**joined)


def _join(values: Sequence[Any]) -> Any:
    """Join the values of one field: tensors along their first axis, lists, dictionaries."""
    first = values[0]
    if isinstance(first, torch.Tensor):
        if first.dim() == 1:
            return torch.cat(list(values))
        width = max(value.shape[1] for value in values)
        return torch.cat([torch.nn.functional.pad(value, (0, width - value.shape[1])) for value in values])
    if isinstance(first, list):
        return [item for value in values for item in value]
    return first


def _join_inputs(parts: Sequence[TokenInputs]) -> TokenInputs:
    restricted = any(part.legal for part in parts)
    return TokenInputs(
        _join([part.prompts for part in parts]),
        _join([part.responses for part in parts]),
        # A sequence without an entry was never restricted.
        _join([part.legal or [[] for _ in part.prompts] for part in parts]) if restricted else [],
        _join([part.chosen for part in parts]),
    )


def _join_metrics(parts: Sequence[Rollout]) -> dict[str, float]:
    """Times and maxima are those of the slowest or largest part; other metrics are means over all sequences."""
    total = sum(part.num_sequences for part in parts)
    metrics = {}
    for name in parts[0].metrics:
        if name.startswith("seconds_") or name.endswith("_max"):
            metrics[name] = max(part.metrics[name] for part in parts)
        else:
            metrics[name] = sum(part.metrics[name] * part.num_sequences for part in parts) / total
    return metrics
