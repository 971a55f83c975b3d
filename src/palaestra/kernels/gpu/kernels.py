"""Triton kernels of the decoding step, and the same computations in plain torch for other devices."""
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

from __future__ import annotations

import torch

from palaestra.kernels.gpu.attention import AttentionLimits
from palaestra.kernels.gpu.attention import attend as attend_batch
from palaestra.kernels.operations import rotate

try:
    import triton  # type: ignore[import-not-found]
    import triton.language as tl  # type: ignore[import-not-found]
except ImportError:  # Builds of torch for CPUs have no Triton.
    triton = None


def attend(
    query_NHD: torch.Tensor,
    keys_RKPD: torch.Tensor,
    values_RKPD: torch.Tensor,
    row_N: torch.Tensor,
    position_N: torch.Tensor,
    limits: AttentionLimits,
) -> torch.Tensor:
    """Attend from each query to the positions of its row up to its own. Returns `[queries, heads * width]`."""
    scale, window, softcap, sinks_H = limits
    queries, heads, width = query_NHD.shape
    _, shared, room, _ = keys_RKPD.shape
    if not query_NHD.is_cuda:
        place_P = torch.arange(room, device=query_NHD.device)
        mask_NP = place_P <= position_N[:, None]
        if window:
            mask_NP &= place_P > position_N[:, None] - window
        query, mask_N11P = query_NHD.view(queries, shared, heads // shared, width), mask_NP[:, None, None]
        sinks_KG = None if sinks_H is None else sinks_H.view(shared, -1)
        keys, values = keys_RKPD[row_N], values_RKPD[row_N]
        return attend_batch(query, keys, values, mask_N11P, scale, softcap, sinks_KG).reshape(queries, -1)
    mixed_NHD = torch.empty_like(query_NHD)
    tensors = query_NHD, keys_RKPD, values_RKPD, mixed_NHD, row_N, position_N
    padded_width, exact = max(16, triton.next_power_of_2(width)), query_NHD.dtype == torch.float32
    shape = {"SHARED": shared, "GROUP": heads // shared, "WIDTH": width, "WIDTH_2": padded_width}
    shape |= {"WINDOW": window, "SOFTCAP": softcap, "HAS_SINKS": sinks_H is not None}
    sinks = query_NHD if sinks_H is None else sinks_H
    _attend[queries, shared](*tensors, sinks, scale, query_NHD.stride(0), room, **shape, EXACT=exact, num_warps=4)
    return mixed_NHD.view(queries, -1)


def rotate_and_store(
    projected_ND: torch.Tensor,
    cos_PD: torch.Tensor,
    sin_PD: torch.Tensor,
    keys_RKPD: torch.Tensor,
    values_RKPD: torch.Tensor,
    row_N: torch.Tensor,
    position_N: torch.Tensor,
    heads: int,
) -> torch.Tensor:
    """Rotate queries and keys by their positions, and write keys and values to the cache.

    Arguments:
        projected_ND: query, key and value of every token, `[queries, (heads + 2 * shared) * width]`.
        cos_PD, sin_PD: by position, `[positions, width]`.

    Returns:
        The rotated queries, `[queries, heads, width]`.
    """
    queries = len(projected_ND)
    _, shared, room, width = keys_RKPD.shape
    if not projected_ND.is_cuda:
        heads_NHD = projected_ND.view(queries, -1, width)
        rotary = rotate(heads_NHD[:, : heads + shared], cos_PD[position_N], sin_PD[position_N])
        keys_RKPD[row_N, :, position_N] = rotary[:, heads:]
        values_RKPD[row_N, :, position_N] = heads_NHD[:, heads + shared :]
        return rotary[:, :heads].contiguous()
    query_NHD = projected_ND.new_empty((queries, heads, width))
    tensors = projected_ND, cos_PD, sin_PD, query_NHD, keys_RKPD, values_RKPD, row_N, position_N
    shape = {"HEADS": heads, "SHARED": shared, "HALF": width // 2, "HALF_2": triton.next_power_of_2(width // 2)}
    _rotate_and_store[queries, heads + 2 * shared](*tensors, room, **shape, num_warps=1)
    return query_NHD


if triton is not None:

    @triton.jit
    def _attend(
        query,
        keys,
        values,
        mixed,
        rows,
        positions,
        sinks,
        scale,
        stride,
        room,
        SHARED: tl.constexpr,
        GROUP: tl.constexpr,
        WIDTH: tl.constexpr,
        WIDTH_2: tl.constexpr,
        WINDOW: tl.constexpr,
        SOFTCAP: tl.constexpr,
        HAS_SINKS: tl.constexpr,
        EXACT: tl.constexpr,
    ):
        n, head = tl.program_id(0), tl.program_id(1)
        row, length = tl.load(rows + n), tl.load(positions + n) + 1
        group, width = tl.arange(0, 16), tl.arange(0, WIDTH_2)
        inside = (group < GROUP)[:, None] & (width < WIDTH)[None]
        place = n * stride + (head * GROUP + group)[:, None] * WIDTH + width[None]
        precision: tl.constexpr = "ieee" if EXACT else "tf32"
        q = tl.load(query + place, mask=inside, other=0.0)
        best = tl.full([16], float("-inf"), tl.float32)
        total = tl.zeros([16], tl.float32)
        if HAS_SINKS:
            best = tl.load(sinks + head * GROUP + group, mask=group < GROUP, other=0.0).to(tl.float32)
            total = total + 1.0
        sums = tl.zeros([16, WIDTH_2], tl.float32)
        first = tl.maximum(length - WINDOW, 0) if WINDOW else 0
        base = (row.to(tl.int64) * SHARED + head) * room * WIDTH
        for start in range(first // 64 * 64, length, 64):
            at = start + tl.arange(0, 64)
            seen = (at < length) & (at >= first)
            known = seen[:, None] & (width < WIDTH)[None]
            k = tl.load(keys + base + at[:, None] * WIDTH + width[None], mask=known, other=0.0)
            v = tl.load(values + base + at[:, None] * WIDTH + width[None], mask=known, other=0.0)
            scores = tl.dot(q, tl.trans(k), input_precision=precision) * scale
            if SOFTCAP:
                scores = SOFTCAP * (2 / (1 + tl.exp(-2 * scores / SOFTCAP)) - 1)
            scores = tl.where(seen[None], scores, float("-inf"))
            higher = tl.maximum(best, tl.max(scores, 1))
            weight, fade = tl.exp(scores - higher[:, None]), tl.exp(best - higher)
            total = total * fade + tl.sum(weight, 1)
            sums = sums * fade[:, None] + tl.dot(weight.to(v.dtype), v, input_precision=precision)
            best = higher
        tl.store(mixed + place, (sums / total[:, None]).to(q.dtype), mask=inside)

    @triton.jit
    def _rotate_and_store(
        projected,
        cos,
        sin,
        query,
        keys,
        values,
        rows,
        positions,
        room,
        HEADS: tl.constexpr,
        SHARED: tl.constexpr,
        HALF: tl.constexpr,
        HALF_2: tl.constexpr,
    ):
        n, head = tl.program_id(0), tl.program_id(1)
        row, position = tl.load(rows + n).to(tl.int64), tl.load(positions + n)
        width = tl.arange(0, HALF_2)
        inside = width < HALF
        source = projected + (n * (HEADS + 2 * SHARED) + head) * 2 * HALF
        first, second = tl.load(source + width, mask=inside), tl.load(source + HALF + width, mask=inside)
        if head < HEADS + SHARED:
            angle = position * 2 * HALF + width
            c1, c2 = tl.load(cos + angle, mask=inside), tl.load(cos + angle + HALF, mask=inside)
            s1, s2 = tl.load(sin + angle, mask=inside), tl.load(sin + angle + HALF, mask=inside)
            a, b = first.to(tl.float32), second.to(tl.float32)
            first, second = (a * c1 - b * s1).to(first.dtype), (b * c2 + a * s2).to(second.dtype)
        if head < HEADS:
            target = query + (n * HEADS + head) * 2 * HALF
        elif head < HEADS + SHARED:
            target = keys + ((row * SHARED + head - HEADS) * room + position) * 2 * HALF
        else:
            target = values + ((row * SHARED + head - HEADS - SHARED) * room + position) * 2 * HALF
        tl.store(target + width, first, mask=inside)
        tl.store(target + HALF + width, second, mask=inside)
