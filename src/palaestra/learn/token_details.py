"""What a learner knows about each token of an episode that is stored: advantage, entropy, reference, alternatives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch

from palaestra.core.records import Segment, Trajectory
from palaestra.engines.cpu.kernels import select_matmul_kernels
from palaestra.learn.policies.language_model import (
    MICROBATCH_LOGITS,
    LanguageModelPolicy,
    mask_illegal,
    outputs_at_decisions,
)
from palaestra.learn.rollouts import Rollout, TokenInputs
from palaestra.learn.sharding import gather_weights

DIGITS = 5
"""Significant digits of the stored values."""
Alternatives = tuple[tuple[int, float], ...]


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
    if group_size == 1 or rollout.group_B is None or not wanted:
        return select_evenly(rollout.num_sequences, wanted)
    returns_B = (rollout.rewards_BT * rollout.mask_BT).sum(-1)
    returns: dict[int, set[float]] = {}
    for sequence, group in enumerate(rollout.group_B.tolist()):
        is_valid = rollout.valid_B is None or bool(rollout.valid_B[sequence])
        returns.setdefault(group, set()).update({float(returns_B[sequence])} if is_valid else ())
    groups = list(returns)
    starts = select_evenly(len(groups), max(1, wanted // group_size))
    stored = set()
    for start, end in pairwise([*starts, len(groups)]):
        stored.add(next((group for group in groups[start:end] if len(returns[group]) > 1), groups[start]))
    return [sequence for sequence, group in enumerate(rollout.group_B.tolist()) if group in stored]


def select_evenly(count: int, wanted: int) -> list[int]:
    """Select evenly spaced indices.

    >>> select_evenly(16, 4)
    [0, 4, 8, 12]
    """
    wanted = min(count, wanted)
    return [k * count // wanted for k in range(wanted)]


@torch.no_grad()
def find_alternatives(
    policy: LanguageModelPolicy, rollout: Rollout, sequences: Sequence[int], count: int
) -> dict[int, TokenDetails]:
    """Compute the entropy and the `count` most likely tokens at each decision of some sequences.

    One forward pass with the policy's current weights. All processes of a sharded model must call it.
    """
    inputs: TokenInputs = rollout.inputs
    forward, details = policy.sequence_forward, {sequence: TokenDetails() for sequence in sequences}
    lengths = {sequence: int(rollout.mask_BT[sequence].sum()) for sequence in sequences}
    played = sorted((sequence for sequence in sequences if lengths[sequence]), key=lambda sequence: lengths[sequence])
    size, step = policy.max_microbatch_size(rollout), max(1, MICROBATCH_LOGITS // policy.rows)
    policy.model.eval()
    with select_matmul_kernels(), gather_weights(policy):
        for start in range(0, len(played), size):
            part = played[start : start + size]
            width, is_fast = max(lengths[sequence] for sequence in part), forward.fast is not None
            # The logits of all tokens may not fit into memory: they are computed from the hidden states in parts.
            outputs = outputs_at_decisions(forward, inputs, part, width, hidden=is_fast, logits=not is_fast)
            legal = [inputs.legal[sequence] for sequence in part] if inputs.legal else []
            states_N = outputs.hidden_ND if outputs.logits_NV is None else outputs.logits_NV
            assert states_N is not None
            rows_N = torch.arange(len(states_N)) if outputs.rows_N is None else outputs.rows_N.cpu()
            values: dict[tuple[int, int], tuple[float, Alternatives]] = {}
            for first in range(0, len(rows_N), step):
                block = slice(first, first + step)
                logits_NV = states_N[block]
                if outputs.logits_NV is None:
                    layer = forward.output_layer
                    logits_NV = torch.nn.functional.linear(logits_NV, layer.weight, layer.bias)
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
        (round_value(entropy), tuple((id_, round_value(p)) for id_, p in zip(ids, best, strict=True) if math.isfinite(p)))
        for entropy, ids, best in zip(entropy_N.tolist(), ids_NK.tolist(), best_NK.tolist(), strict=True)
    ]  # fmt: skip


def add_token_details(
    trajectory: Trajectory, rollout: Rollout, sequence: int, advantages_BT: torch.Tensor | None, details: TokenDetails
) -> Trajectory:
    """Add the values of a sequence's decisions to the segments of its trajectory.

    Arguments:
        advantages_BT: of all decisions, if the algorithm has them. A failed episode has none: it is not in the loss.
        details: what is known already.
    """
    is_valid = rollout.valid_B is None or bool(rollout.valid_B[sequence])
    details = replace(
        details,
        advantages=read_decisions(advantages_BT if is_valid else None, rollout, sequence),
        reference_logprobs=read_decisions(rollout.reference_BT, rollout, sequence),
    )
    segments, start = [], 0
    for segment in trajectory.segments:
        end = start + sum(segment.chosen)
        segments.append(_add_to_segment(segment, details, start, end) if end > start else segment)
        start = end
    return replace(trajectory, segments=tuple(segments))


def read_decisions(values_BT: torch.Tensor | None, rollout: Rollout, sequence: int) -> tuple[float, ...]:
    """The values of a sequence's decisions; empty without values, or if one of them is not finite."""
    if values_BT is None:
        return ()
    values = values_BT[sequence, : int(rollout.mask_BT[sequence].sum())].tolist()
    return tuple(map(round_value, values)) if all(map(math.isfinite, values)) else ()


def _add_to_segment(segment: Segment, details: TokenDetails, start: int, end: int) -> Segment:
    """Add the decisions from `start` to `end`, which are all tokens of the segment."""
    values: dict[str, Any] = {
        "advantages": details.advantages, "entropies": details.entropies,
        "reference_logprobs": details.reference_logprobs, "alternatives": details.alternatives,
    }  # fmt: skip
    return replace(segment, **{name: own[start:end] for name, own in values.items()})


def round_value(value: float) -> float:
    """Round to the digits that are stored.

    >>> round_value(-0.123456789)
    -0.12346
    """
    return float(f"{value:.{DIGITS}g}")
