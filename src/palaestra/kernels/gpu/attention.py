"""Attention over packed sequences, with gradients and without padding."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

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


def attend(
    query_BHQD: torch.Tensor,
    key_BHLD: torch.Tensor,
    value_BHLD: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    softcap: float = 0.0,
    sinks_HQ: torch.Tensor | None = None,
    is_causal: bool = False,
) -> torch.Tensor:
    """Attention of a batch by torch's kernels, or in plain torch with soft-capped scores or sinks.

    Arguments:
        mask: boolean, or to be added to the scores.
        softcap: the limit of scores; 0 for none.
        sinks_HQ: the score of a key without a value, by head and query.
    """
    if not softcap and sinks_HQ is None:
        return scaled_dot_product_attention(
            query_BHQD, key_BHLD, value_BHLD, attn_mask=mask, scale=scale, is_causal=is_causal
        )
    scores = query_BHQD @ key_BHLD.transpose(-1, -2) * scale
    if softcap:
        scores = (scores / softcap).tanh() * softcap
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    if sinks_HQ is not None:
        scores = torch.cat([scores, sinks_HQ[None, :, :, None].expand(len(scores), -1, -1, 1)], -1)
    weights = scores.softmax(-1, dtype=torch.float32).to(value_BHLD.dtype)
    return weights[..., : key_BHLD.shape[2]] @ value_BHLD


def attend_packed(
    query_NHD: torch.Tensor,
    key_MKD: torch.Tensor,
    value_MKD: torch.Tensor,
    segments: SegmentLengths,
    scale: float,
    window: int = 0,
) -> torch.Tensor:
    """Causal attention within each sequence. Query heads may share keys. Returns `[queries, heads, width]`.

    On a GPU this is torch's FlashAttention for 16-bit values and its memory-efficient attention for others, which has no
    window. Elsewhere it computes one sequence at a time.
    """
    if not query_NHD.is_cuda:
        return _attend_in_turn(query_NHD, key_MKD, value_MKD, segments, scale, window)
    longest = max(segments.query_lengths), max(segments.key_lengths)
    layout = segments.query_starts, segments.key_starts, *longest
    flash = _find_flash_attention()
    if flash is not None and takes_flash(query_NHD.dtype, query_NHD.shape[-1]):
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


def takes_flash(dtype: torch.dtype, width: int) -> bool:
    """Whether `attend_packed` uses FlashAttention on a GPU for heads of this dtype and width."""
    is_half = dtype in (torch.bfloat16, torch.float16)
    return is_half and width <= _MAX_FLASH_WIDTH and width % 8 == 0 and _find_flash_attention() is not None


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


def _attend_in_turn(
    query_NHD: torch.Tensor,
    key_MKD: torch.Tensor,
    value_MKD: torch.Tensor,
    segments: SegmentLengths,
    scale: float,
    window: int,
) -> torch.Tensor:
    keys, values = (
        torch.split(x.transpose(0, 1), segments.key_lengths, 1) for x in _repeat_heads(query_NHD, key_MKD, value_MKD)
    )
    mixed = []
    for query_HQD, key_HLD, value_HLD in zip(
        torch.split(query_NHD.transpose(0, 1), segments.query_lengths, 1), keys, values, strict=True
    ):
        queries, length = query_HQD.shape[1], key_HLD.shape[1]
        mask_QL = torch.ones(queries, length, dtype=torch.bool, device=query_NHD.device).tril(length - queries)
        if window:
            mask_QL = mask_QL.triu(length - queries - window + 1)
        mixed.append(
            scaled_dot_product_attention(
                query_HQD[None], key_HLD[None], value_HLD[None], attn_mask=mask_QL, scale=scale
            )[0]
        )
    return torch.cat(mixed, 1).transpose(0, 1)
