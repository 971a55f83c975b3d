"""Triton kernels of the decoding step, and the same computations in plain torch for other devices."""
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention, silu

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
    scale: float,
) -> torch.Tensor:
    """Attend from each query to the positions of its row up to its own. Returns `[queries, heads * width]`."""
    queries, heads, width = query_NHD.shape
    _, shared, room, _ = keys_RKPD.shape
    if not query_NHD.is_cuda:
        place_P = torch.arange(room, device=query_NHD.device)
        mask_N11P = (place_P <= position_N[:, None])[:, None, None]
        query = query_NHD.view(queries, shared, heads // shared, width)
        mixed = scaled_dot_product_attention(
            query, keys_RKPD[row_N], values_RKPD[row_N], attn_mask=mask_N11P, scale=scale
        )
        return mixed.reshape(queries, -1)
    mixed_NHD = torch.empty_like(query_NHD)
    tensors = query_NHD, keys_RKPD, values_RKPD, mixed_NHD, row_N, position_N
    padded_width, exact = max(16, triton.next_power_of_2(width)), query_NHD.dtype == torch.float32
    shape = {"SHARED": shared, "GROUP": heads // shared, "WIDTH": width, "WIDTH_2": padded_width}
    _attend[queries, shared](*tensors, scale, query_NHD.stride(0), room, **shape, EXACT=exact, num_warps=4)
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


def gate(projected_ND: torch.Tensor) -> torch.Tensor:
    """SwiGLU: the SiLU of the first half times the second half."""
    width = projected_ND.shape[1] // 2
    if not projected_ND.is_cuda:
        return silu(projected_ND[:, :width]) * projected_ND[:, width:]
    gated_ND = projected_ND.new_empty((len(projected_ND), width))
    block = 1024
    _gate[len(projected_ND), triton.cdiv(width, block)](projected_ND, gated_ND, width, BLOCK=block, num_warps=4)
    return gated_ND


if triton is not None:

    @triton.jit
    def _attend(
        query,
        keys,
        values,
        mixed,
        rows,
        positions,
        scale,
        stride,
        room,
        SHARED: tl.constexpr,
        GROUP: tl.constexpr,
        WIDTH: tl.constexpr,
        WIDTH_2: tl.constexpr,
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
        sums = tl.zeros([16, WIDTH_2], tl.float32)
        base = (row.to(tl.int64) * SHARED + head) * room * WIDTH
        for start in range(0, length, 64):
            at = start + tl.arange(0, 64)
            known = (at < length)[:, None] & (width < WIDTH)[None]
            k = tl.load(keys + base + at[:, None] * WIDTH + width[None], mask=known, other=0.0)
            v = tl.load(values + base + at[:, None] * WIDTH + width[None], mask=known, other=0.0)
            scores = tl.dot(q, tl.trans(k), input_precision=precision) * scale
            scores = tl.where((at < length)[None], scores, float("-inf"))
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

    @triton.jit
    def _gate(projected, gated, width, BLOCK: tl.constexpr):
        n, at = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = at < width
        x = tl.load(projected + n * 2 * width + at, mask=inside, other=0.0).to(tl.float32)
        y = tl.load(projected + n * 2 * width + width + at, mask=inside, other=0.0)
        tl.store(gated + n * width + at, (x / (1 + tl.exp(-x))).to(y.dtype) * y, mask=inside)
