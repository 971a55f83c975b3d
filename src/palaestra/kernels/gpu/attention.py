"""Attention over packed sequences, with gradients and without padding."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

_MAX_FLASH_WIDTH = 256
"""Maximum size of a head in FlashAttention."""
_CAUSAL_FROM_BOTTOM_RIGHT = 2
"""The mask of memory-efficient attention in which the last query attends to all keys."""


@dataclass(frozen=True, slots=True)
class SegmentLengths:
    """Lengths of packed queries and keys. The queries of a sequence are the last of its positions.

    Arguments:
        query_lengths, key_lengths: by sequence; no length is 0.
        query_starts, key_starts: the places at which sequences start, and the total, on the device of the queries.
    """

    query_lengths: list[int]
    key_lengths: list[int]
    query_starts: torch.Tensor
    key_starts: torch.Tensor

    @classmethod
    def make(cls, query_lengths: Sequence[int], key_lengths: Sequence[int], device: torch.device) -> SegmentLengths:
        starts = [
            torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)).to(device)
            for lengths in (query_lengths, key_lengths)
        ]
        return cls(list(query_lengths), list(key_lengths), *starts)


class AttentionLimits(NamedTuple):
    """The numbers of a layer's attention.

    Arguments:
        scale: of the products of queries and keys.
        window: the number of keys to which a query attends; 0 for all.
        softcap: the limit of scores; 0 for none.
        sinks_H: the score of a key without a value, by head.
    """

    scale: float
    window: int = 0
    softcap: float = 0.0
    sinks_H: torch.Tensor | None = None


def attend(
    query_BHQD: torch.Tensor,
    key_BHLD: torch.Tensor,
    value_BHLD: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    softcap: float = 0.0,
    sinks_HQ: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of a batch by torch's kernels, or in plain torch with soft-capped scores or sinks.

    Arguments:
        mask: the keys that each query attends to.
        softcap: the limit of scores; 0 for none.
        sinks_HQ: the score of a key without a value, by head and query.
    """
    if not softcap and sinks_HQ is None:
        return scaled_dot_product_attention(query_BHQD, key_BHLD, value_BHLD, attn_mask=mask, scale=scale)
    scores = query_BHQD @ key_BHLD.transpose(-1, -2) * scale
    if softcap:
        scores = (scores / softcap).tanh() * softcap
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    if sinks_HQ is not None:
        scores = torch.cat([scores, sinks_HQ[None, :, :, None].expand(len(scores), -1, -1, 1)], -1)
    weights = scores.softmax(-1, dtype=torch.float32).to(value_BHLD.dtype)
    return weights[..., : key_BHLD.shape[2]] @ value_BHLD


def attend_packed(
    query_NHD: torch.Tensor,
    key_MKD: torch.Tensor,
    value_MKD: torch.Tensor,
    segments: SegmentLengths,
    limits: AttentionLimits,
) -> torch.Tensor:
    """Causal attention within each sequence. Query heads may share keys. Returns `[queries, heads, width]`.

    On a GPU this is torch's FlashAttention for 16-bit values and its memory-efficient attention for others. Where those have
    no window, soft-capping or sinks, sequences are padded. Elsewhere it computes one sequence at a time.
    """
    longest = max(segments.query_lengths), max(segments.key_lengths)
    limits = limits._replace(window=limits.window if limits.window < longest[1] else 0)
    if not query_NHD.is_cuda:
        return _attend_in_turn(query_NHD, key_MKD, value_MKD, segments, limits)
    scale, window, softcap, sinks_H = limits
    layout = segments.query_starts, segments.key_starts, *longest
    flash, width = _find_flash_attention(), query_NHD.shape[-1]
    takes_flash = query_NHD.dtype in (torch.bfloat16, torch.float16) and width <= _MAX_FLASH_WIDTH and width % 8 == 0
    if softcap or sinks_H is not None or (window and not (flash and takes_flash)):
        return attend_padded(query_NHD, key_MKD, value_MKD, segments, limits)
    if flash is not None and takes_flash:
        attend, shares_keys = flash
        if not shares_keys:
            key_MKD, value_MKD = _repeat_heads(query_NHD, key_MKD, value_MKD)
        options = {"enable_gqa": True} if shares_keys else {}
        mixed_NHD: torch.Tensor = attend(
            query_NHD, key_MKD, value_MKD, *layout, scale=scale, window_size=(window - 1, 0), **options
        )
        return mixed_NHD
    key_MKD, value_MKD = _repeat_heads(query_NHD, key_MKD, value_MKD)
    batch = query_NHD[None], key_MKD[None], value_MKD[None], None
    mixed_1NHD: torch.Tensor = torch.ops.aten._efficient_attention_forward(
        *batch, *layout, 0.0, _CAUSAL_FROM_BOTTOM_RIGHT, compute_log_sumexp=True, scale=scale
    )[0]
    return mixed_1NHD[0]


@cache
def _find_flash_attention() -> tuple[Any, bool] | None:
    """Return torch's FlashAttention over packed sequences, and whether query heads may share keys."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    parameters = inspect.signature(varlen_attn).parameters
    return (varlen_attn, "enable_gqa" in parameters) if {"scale", "window_size"} <= {*parameters} else None


def _repeat_heads(
    query_NHD: torch.Tensor, key_MKD: torch.Tensor, value_MKD: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    group = query_NHD.shape[1] // key_MKD.shape[1]
    if group == 1:
        return key_MKD, value_MKD
    return key_MKD.repeat_interleave(group, 1), value_MKD.repeat_interleave(group, 1)


def attend_padded(
    query_NHD: torch.Tensor,
    key_MKD: torch.Tensor,
    value_MKD: torch.Tensor,
    segments: SegmentLengths,
    limits: AttentionLimits,
) -> torch.Tensor:
    """The same as `attend_packed`, over sequences that are padded to a table."""
    scale, window, softcap, sinks_H = limits
    count_B1, length_B1 = (starts.diff()[:, None] for starts in (segments.query_starts, segments.key_starts))
    place_1Q, place_1L = (
        torch.arange(max(lengths), device=query_NHD.device)[None]
        for lengths in (segments.query_lengths, segments.key_lengths)
    )
    query_BQHD = query_NHD[segments.query_starts[:-1, None] + place_1Q.minimum(count_B1 - 1)]
    rows_BL = segments.key_starts[:-1, None] + place_1L.minimum(length_B1 - 1)
    key_BLHD, value_BLHD = (x[rows_BL] for x in _repeat_heads(query_NHD, key_MKD, value_MKD))
    mask_BQL = _see(place_1Q + length_B1 - count_B1, place_1L, window)
    tables = query_BQHD.transpose(1, 2), key_BLHD.transpose(1, 2), value_BLHD.transpose(1, 2)
    sinks_HQ = None if sinks_H is None else sinks_H[:, None].expand(-1, place_1Q.shape[1])
    mixed_BHQD = attend(*tables, mask_BQL[:, None], scale, softcap, sinks_HQ)
    return mixed_BHQD.transpose(1, 2)[place_1Q < count_B1]


def _attend_in_turn(
    query_NHD: torch.Tensor,
    key_MKD: torch.Tensor,
    value_MKD: torch.Tensor,
    segments: SegmentLengths,
    limits: AttentionLimits,
) -> torch.Tensor:
    scale, window, softcap, sinks_H = limits
    (total, heads, width), shared = query_NHD.shape, key_MKD.shape[1]
    # Query heads that share keys are computed as one head with several queries.
    queries = torch.split(query_NHD.view(total, shared, -1, width).permute(1, 2, 0, 3), segments.query_lengths, 2)
    keys, values = (torch.split(x.transpose(0, 1), segments.key_lengths, 1) for x in (key_MKD, value_MKD))
    mixed = []
    for query_KGQD, key_KLD, value_KLD in zip(queries, keys, values, strict=True):
        count, length = query_KGQD.shape[2], key_KLD.shape[1]
        place_1L = torch.arange(length)[None]
        mask_QL = None if count == 1 and not window else _see(place_1L[:, length - count :], place_1L, window)[0]
        if mask_QL is not None and heads > shared:
            mask_QL = mask_QL.repeat(heads // shared, 1)
        sinks_KQ = None if sinks_H is None else sinks_H.view(shared, -1).repeat_interleave(count, 1)
        tables = query_KGQD.reshape(1, shared, -1, width), key_KLD[None], value_KLD[None]
        mixed.append(attend(*tables, mask_QL, scale, softcap, sinks_KQ)[0].view(shared, -1, count, width))
    return torch.cat(mixed, 2).permute(2, 0, 1, 3).reshape(total, heads, width)


def _see(queries_BQ: torch.Tensor, keys_BL: torch.Tensor, window: int) -> torch.Tensor:
    """Whether queries at some positions attend to keys at others."""
    distance_BQL = queries_BQ[:, :, None] - keys_BL[:, None]
    return (distance_BQL >= 0) & (distance_BQL < window) if window else distance_BQL >= 0
