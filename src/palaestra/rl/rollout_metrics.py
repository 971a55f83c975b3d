"""Metrics of a rollout, and the values of its tokens that runs store."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise

import numpy as np
import torch

from palaestra.core.records import Segment, Trajectory
from palaestra.kernels.cpu import select_matmul_kernels
from palaestra.rl.distributed.ranks import gather_weights
from palaestra.rl.losses import kl_k3, mean_where
from palaestra.rl.policies.language_model import (
    MAX_MICROBATCH_LOGITS,
    LanguageModelPolicy,
    mask_illegal,
    outputs_at_actions,
)
from palaestra.rl.rollouts import Rollout, TokenInputs
from palaestra.rl.turns import TurnEpisode

_DIGITS = 5
"""Significant digits of the stored values."""
Alternatives = tuple[tuple[int, float], ...]


def measure_completions(rollout: Rollout, cut: Sequence[bool]) -> dict[str, float]:
    """Measure the rewards and the lengths of a rollout.

    Arguments:
        cut: by episode, whether its last message was cut at a limit.
    """
    valid = rollout.valid_B.tolist()
    lengths = [length for length, known in zip(rollout.mask_BT.sum(-1).tolist(), valid, strict=True) if known]
    if not lengths:
        return {}
    metrics = {
        "completions/mean_length": float(np.mean(lengths)),
        "completions/min_length": float(min(lengths)),
        "completions/max_length": float(max(lengths)),
        "completions/clipped_ratio": float(np.mean([c for c, known in zip(cut, valid, strict=True) if known])),
    }
    if len(rollout.stats.returns) > 1:
        metrics["reward_std"] = float(np.std(rollout.stats.returns, ddof=1))
    return metrics


def measure_reward_parts(responses: Sequence[object]) -> dict[str, float]:
    """The mean and the standard deviation of each reward function, under TRL's names, and the metrics that they log."""
    parts = [getattr(response, "reward_parts", {}) for response in responses]
    logged = [getattr(response, "metrics", {}) for response in responses]
    metrics = {
        name: float(np.mean([entries[name] for entries in logged if name in entries]))
        for name in dict.fromkeys(name for entries in logged for name in entries)
    }
    for name in dict.fromkeys(name for part in parts for name in part):
        values = [part[name] for part in parts if name in part]
        metrics[f"rewards/{name}/mean"] = float(np.mean(values))
        metrics[f"rewards/{name}/std"] = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return metrics


def measure_kl(rollout: Rollout, reference_BT: torch.Tensor) -> float:
    """Measure the divergence from the reference per token, at the weights that sampled the rollout."""
    return float(mean_where(kl_k3(rollout.logprobs_BT, reference_BT), rollout.valid_BT))


def count_tokens(rollout: Rollout) -> int:
    """Count the tokens of the prompts and the sampled tokens. Messages of tools and users are not counted."""
    decided_B = rollout.mask_BT.any(-1).tolist()
    prompts = sum(len(p) for p, decided in zip(rollout.inputs.prompts, decided_B, strict=True) if decided)
    return prompts + rollout.num_actions


def measure_calls(episodes: Sequence[TurnEpisode]) -> dict[str, float]:
    """Measure the tool calls: calls per episode, and the fraction that failed.

    `tools/malformed` is the number of calls that could not be read; TRL has no such metric.
    """
    calls = sum(episode.calls for episode in episodes)
    return {
        "tools/call_frequency": calls / max(1, len(episodes)),
        "tools/failure_frequency": sum(episode.failed_calls for episode in episodes) / max(1, calls),
        "tools/malformed": float(sum(episode.malformed_calls for episode in episodes)),
    }


@dataclass(frozen=True, slots=True)
class TokenDetails:
    """Values of the sampled tokens of one sequence, in order; see `Segment`. Empty where they are not known."""

    advantages: tuple[float, ...] = ()
    entropies: tuple[float, ...] = ()
    reference_logprobs: tuple[float, ...] = ()
    alternatives: tuple[Alternatives, ...] = ()


def select_stored_sequences(rollout: Rollout, group_size: int, wanted: int) -> list[int]:
    """Select the sequences for the store: whole groups, about `wanted` episodes and at least one group.

    The groups are spread evenly, and one whose returns differ is preferred to its neighbours: the policy learns nothing
    from the others. Without groups, evenly spaced sequences are selected.
    """
    if group_size == 1 or rollout.episodes is None or not wanted:
        return _select_evenly(rollout.num_sequences, wanted)
    returns_B = rollout.returns_B
    returns: dict[int, set[float]] = {}
    for sequence, group in enumerate(rollout.episodes.group_B.tolist()):
        is_valid = bool(rollout.valid_B[sequence])
        returns.setdefault(group, set()).update({float(returns_B[sequence])} if is_valid else ())
    groups = list(returns)
    starts = _select_evenly(len(groups), max(1, wanted // group_size))
    stored = set()
    for start, end in pairwise([*starts, len(groups)]):
        stored.add(next((group for group in groups[start:end] if len(returns[group]) > 1), groups[start]))
    return [sequence for sequence, group in enumerate(rollout.episodes.group_B.tolist()) if group in stored]


def _select_evenly(count: int, wanted: int) -> list[int]:
    """Select evenly spaced indices.

    >>> _select_evenly(16, 4)
    [0, 4, 8, 12]
    """
    wanted = min(count, wanted)
    return [k * count // wanted for k in range(wanted)]


@torch.no_grad()
def find_alternatives(
    policy: LanguageModelPolicy, rollout: Rollout, sequences: Sequence[int], count: int
) -> dict[int, TokenDetails]:
    """Compute the entropy and the `count` most likely tokens at each action of some sequences.

    One forward pass with the policy's current weights. All processes of a sharded model must call it.
    """
    inputs: TokenInputs = rollout.inputs
    forward, details = policy.sequence_forward, {sequence: TokenDetails() for sequence in sequences}
    lengths = {sequence: int(rollout.mask_BT[sequence].sum()) for sequence in sequences}
    played = sorted((sequence for sequence in sequences if lengths[sequence]), key=lambda sequence: lengths[sequence])
    size, step = policy.max_microbatch_size(rollout), max(1, MAX_MICROBATCH_LOGITS // policy.rows)
    policy.model.eval()
    with select_matmul_kernels(), gather_weights(policy):
        for start in range(0, len(played), size):
            part = played[start : start + size]
            width, is_fast = max(lengths[sequence] for sequence in part), forward.fast is not None
            # The logits of all tokens may not fit into memory: they are computed from the hidden states in parts.
            outputs = outputs_at_actions(forward, inputs, part, width, hidden=is_fast, logits=not is_fast)
            legal = [inputs.legal[sequence] for sequence in part] if inputs.legal else []
            states_N = outputs.hidden_ND if outputs.logits_NV is None else outputs.logits_NV
            assert states_N is not None
            rows_N = torch.arange(len(states_N)) if outputs.rows_N is None else outputs.rows_N.cpu()
            values: dict[tuple[int, int], tuple[float, Alternatives]] = {}
            for first in range(0, len(rows_N), step):
                block = slice(first, first + step)
                logits_NV = states_N[block]
                if outputs.logits_NV is None:
                    logits_NV = forward.compute_logits(logits_NV)
                logits_NV = logits_NV[:, : policy.vocabulary].float() / policy.temperature
                if legal:
                    logits_NV = mask_illegal(logits_NV, rows_N[block], legal, width)
                for row, value in zip(rows_N[block].tolist(), _describe_rows(logits_NV, count), strict=True):
                    values[divmod(row, width)] = value
            for k, sequence in enumerate(part):
                own = [values[k, place] for place in range(lengths[sequence])]
                details[sequence] = TokenDetails(
                    entropies=tuple(entropy for entropy, _ in own), alternatives=tuple(best for _, best in own)
                )
    return details


def _describe_rows(logits_NV: torch.Tensor, count: int) -> list[tuple[float, Alternatives]]:
    """The entropy and the most likely tokens of each distribution."""
    logp_NV = logits_NV.log_softmax(-1)
    entropy_N = -(logp_NV.exp() * logp_NV.masked_fill(logp_NV == float("-inf"), 0.0)).sum(-1)
    best_NK, ids_NK = logp_NV.topk(min(count, logp_NV.shape[-1]), dim=-1)
    return [
        (
            _round_value(entropy),
            tuple((id_, _round_value(p)) for id_, p in zip(ids, best, strict=True) if math.isfinite(p)),
        )
        for entropy, ids, best in zip(entropy_N.tolist(), ids_NK.tolist(), best_NK.tolist(), strict=True)
    ]


def add_token_details(
    trajectory: Trajectory, rollout: Rollout, sequence: int, advantages_BT: torch.Tensor | None, details: TokenDetails
) -> Trajectory:
    """Add the values of a sequence's actions to the segments of its trajectory.

    Arguments:
        advantages_BT: of all actions, if the algorithm has them. A failed episode has none: it is not in the loss.
        details: what is known already.
    """
    is_valid = bool(rollout.valid_B[sequence])
    details = replace(
        details,
        advantages=read_action_values(advantages_BT if is_valid else None, rollout, sequence),
        reference_logprobs=read_action_values(rollout.reference_BT, rollout, sequence),
    )
    segments, start = [], 0
    for segment in trajectory.segments:
        end = start + sum(segment.chosen)
        segments.append(_add_to_segment(segment, details, start, end) if end > start else segment)
        start = end
    return replace(trajectory, segments=tuple(segments))


def read_action_values(values_BT: torch.Tensor | None, rollout: Rollout, sequence: int) -> tuple[float, ...]:
    """The values of a sequence's actions; empty without values, or if one of them is not finite."""
    if values_BT is None:
        return ()
    values = values_BT[sequence, : int(rollout.mask_BT[sequence].sum())].tolist()
    return tuple(map(_round_value, values)) if all(map(math.isfinite, values)) else ()


def _add_to_segment(segment: Segment, details: TokenDetails, start: int, end: int) -> Segment:
    """Add the actions from `start` to `end`, which are all tokens of the segment."""
    return replace(segment, **{field.name: getattr(details, field.name)[start:end] for field in fields(details)})


def _round_value(value: float) -> float:
    """Round to the digits that are stored.

    >>> _round_value(-0.123456789)
    -0.12346
    """
    return float(f"{value:.{_DIGITS}g}")
