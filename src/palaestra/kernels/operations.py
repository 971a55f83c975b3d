"""Operations on logits and activations: sampling, log-probs of given tokens, rotary positions, SwiGLU, rows of a table.

Those of a training pass have gradients, and Triton kernels on a GPU. On other devices they are computed with plain torch.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import silu

try:
    import triton  # type: ignore[import-not-found]
    import triton.language as tl  # type: ignore[import-not-found]
except ImportError:  # Builds of torch for CPUs have no Triton.
    triton = None

MAX_LOGITS = 1 << 28
"""Maximum number of logits that exist at once: 0.5 GB in bfloat16."""
_BLOCK = 1024
_SEARCH_BLOCK = 64
"""Tokens per block of the search."""
CHUNK = 512
"""Number of rows of logits that a CPU computes at once."""


def sample_tokens(
    logits_SV: torch.Tensor, uniform_S: torch.Tensor, temperature: float = 1.0, legal_SV: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sample by inverting the cumulative distribution; returns tokens, log-probs and entropies.

    One exponential per logit is enough for all three. Illegal tokens are never sampled.
    """
    if temperature != 1.0:
        logits_SV = logits_SV / temperature
    if legal_SV is not None:
        logits_SV = logits_SV.masked_fill(~legal_SV, float("-inf"))
    shifted_SV = logits_SV - logits_SV.amax(-1, keepdim=True)
    weight_SV = shifted_SV.exp()
    chosen_S, total_S = _sample_index(weight_SV, uniform_S.to(weight_SV.dtype))
    log_total_S = total_S.log()
    logprobs_S = shifted_SV.gather(-1, chosen_S[:, None])[:, 0] - log_total_S
    finite_SV = shifted_SV if legal_SV is None else shifted_SV.masked_fill(~legal_SV, 0.0)
    entropy_S = log_total_S - (weight_SV * finite_SV).sum(-1) / total_S
    return chosen_S, logprobs_S, entropy_S


def filter_logits(logits_BV: torch.Tensor, top_p_B1: torch.Tensor, top_k_B1: torch.Tensor) -> torch.Tensor:
    """Set the logits that top-k and top-p exclude to minus infinity. The most likely token is always kept."""
    if bool((top_p_B1 >= 1).all()) and bool((top_k_B1 == 0).all()):
        return logits_BV
    sorted_BV, order_BV = logits_BV.sort(stable=True, dim=-1, descending=True)
    probability_BV = sorted_BV.softmax(-1)
    before_BV = probability_BV.cumsum(-1) - probability_BV
    rank_1V = torch.arange(logits_BV.shape[-1], device=logits_BV.device)[None]
    out_BV = (before_BV >= top_p_B1) | ((top_k_B1 > 0) & (rank_1V >= top_k_B1))
    out_BV[:, 0] = False
    return logits_BV.masked_fill(torch.zeros_like(out_BV).scatter(-1, order_BV, out_BV), float("-inf"))


def _sample_index(weight_SV: torch.Tensor, uniform_S: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The index at which the cumulative weight passes `uniform_S` times the total; and the total.

    It searches for a block of tokens first, then for the token in it. A cumulative sum over the whole vocabulary would
    cost more than everything else here.
    """
    count, width = weight_SV.shape
    blocks_SNK = nn.functional.pad(weight_SV, (0, -width % _SEARCH_BLOCK)).view(count, -1, _SEARCH_BLOCK)
    ends_SN = blocks_SNK.sum(-1).cumsum(-1)
    total_S = ends_SN[:, -1]
    # Slightly below the total, so that rounding never selects a token after the last one with weight.
    target_S1 = (uniform_S * (1 - 2**-22) * total_S)[:, None]
    block_S1 = torch.searchsorted(ends_SN, target_S1, right=True).clamp(max=ends_SN.shape[1] - 1)
    inside_SK = blocks_SNK.gather(1, block_S1[:, :, None].expand(-1, -1, _SEARCH_BLOCK))[:, 0].cumsum(-1)
    before_S1 = ends_SN.gather(1, block_S1) - inside_SK[:, -1:]
    # The same sum in another order may differ in its last bit: stay within the block.
    left_S1 = torch.minimum((target_S1 - before_S1).clamp(min=0.0), inside_SK[:, -1:] * (1 - 2**-22))
    place_S1 = torch.searchsorted(inside_SK, left_S1, right=True)
    return (block_S1 * _SEARCH_BLOCK + place_S1)[:, 0].clamp(max=width - 1), total_S


def compute_token_logprobs(
    hidden_ND: torch.Tensor, output_VD: torch.Tensor, tokens_N: torch.Tensor, temperature: float = 1.0
) -> torch.Tensor:
    """Output layer, softmax and selection of one token in one operation, with gradients.

    A CPU keeps one table of `[positions, vocabulary]` for the backward pass. A GPU keeps none and computes the logits again.
    """
    compute = recompute_token_logprobs if hidden_ND.is_cuda else _TokenLogProbs.apply
    logprobs_N: torch.Tensor = compute(hidden_ND, output_VD, tokens_N, temperature)
    return logprobs_N


class _TokenLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_ND: torch.Tensor, output_VD: torch.Tensor, tokens_N: torch.Tensor, temperature: float
    ) -> torch.Tensor:
        count, vocabulary = len(hidden_ND), len(output_VD)
        needs_grad = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        weight_NV = hidden_ND.new_empty(count if needs_grad else min(count, CHUNK), vocabulary)
        total_N, logits_N = hidden_ND.new_empty(count), hidden_ND.new_empty(count)
        for start in range(0, count, CHUNK):
            rows = slice(start, min(start + CHUNK, count))
            logits = weight_NV[rows] if needs_grad else weight_NV[: rows.stop - rows.start]
            torch.mm(hidden_ND[rows], output_VD.t(), out=logits)
            if temperature != 1.0:
                logits.div_(temperature)
            logits.sub_(logits.amax(-1, keepdim=True))
            logits_N[rows] = logits.gather(-1, tokens_N[rows, None])[:, 0]
            total_N[rows] = logits.exp_().sum(-1)
        if needs_grad:
            ctx.save_for_backward(hidden_ND, output_VD, tokens_N, weight_NV, total_N)
            ctx.temperature = temperature
        return logits_N - total_N.log()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        hidden_ND, output_VD, tokens_N, weight_NV, total_N = ctx.saved_tensors
        grad_N = grads[0] / ctx.temperature
        hidden_grad, output_grad = torch.empty_like(hidden_ND), torch.zeros_like(output_VD)
        for start in range(0, len(hidden_ND), CHUNK):
            rows = slice(start, start + CHUNK)
            grad_C1 = grad_N[rows, None]
            logits_grad = weight_NV[rows] * (-grad_C1 / total_N[rows, None])
            logits_grad.scatter_add_(1, tokens_N[rows, None], grad_C1)
            torch.mm(logits_grad, output_VD, out=hidden_grad[rows])
            output_grad.addmm_(logits_grad.t(), hidden_ND[rows])
        return hidden_grad, output_grad, None, None


def rotate(x_NHD: torch.Tensor, cos_ND: torch.Tensor, sin_ND: torch.Tensor) -> torch.Tensor:
    """Rotate the two halves of each head by the angles of its position."""
    if x_NHD.is_cuda:
        rotated: torch.Tensor = _Rotate.apply(x_NHD, cos_ND, sin_ND)
        return rotated
    half = x_NHD.shape[-1] // 2
    swapped = torch.cat([-x_NHD[..., half:], x_NHD[..., :half]], -1)
    return torch.addcmul(x_NHD * cos_ND[:, None], swapped, sin_ND[:, None])


def swiglu(gate_NI: torch.Tensor, up_NI: torch.Tensor) -> torch.Tensor:
    """`silu(gate) * up`."""
    if gate_NI.is_cuda:
        gated: torch.Tensor = _SwiGLU.apply(gate_NI, up_NI)
        return gated
    return silu(gate_NI) * up_NI


def recompute_token_logprobs(
    hidden_ND: torch.Tensor, output_VD: torch.Tensor, tokens_N: torch.Tensor, temperature: float = 1.0
) -> torch.Tensor:
    """The log-prob of one token at each position, in float32. The logits of a part of the positions exist at a time.

    The backward pass computes the logits again.
    """
    result: torch.Tensor = _RecomputedLogProbs.apply(hidden_ND, output_VD, tokens_N, temperature)
    return result


class _RecomputedLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_ND: torch.Tensor, output_VD: torch.Tensor, tokens_N: torch.Tensor, temperature: float
    ) -> torch.Tensor:
        count = len(hidden_ND)
        total_N, chosen_N = (torch.empty(count, device=hidden_ND.device) for _ in range(2))
        for rows in _parts(count, len(output_VD)):
            logits_CV = hidden_ND[rows] @ output_VD.t()
            total_N[rows] = _logsumexp(logits_CV, temperature)
            chosen_N[rows] = logits_CV.gather(-1, tokens_N[rows, None])[:, 0].float() / temperature
        ctx.save_for_backward(hidden_ND, output_VD, tokens_N, total_N)
        ctx.temperature = temperature
        return chosen_N - total_N

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        hidden_ND, output_VD, tokens_N, total_N = ctx.saved_tensors
        needs_hidden, needs_output = ctx.needs_input_grad[:2]
        hidden_grad = torch.empty_like(hidden_ND) if needs_hidden else None
        output_grad = torch.zeros(output_VD.shape, device=output_VD.device) if needs_output else None
        for rows in _parts(len(hidden_ND), len(output_VD)):
            logits_CV = hidden_ND[rows] @ output_VD.t()
            _to_gradient(logits_CV, total_N[rows], tokens_N[rows], grads[0][rows], ctx.temperature)
            if hidden_grad is not None:
                torch.mm(logits_CV, output_VD, out=hidden_grad[rows])
            if output_grad is not None:
                output_grad += logits_CV.t() @ hidden_ND[rows]
        return hidden_grad, None if output_grad is None else output_grad.to(output_VD.dtype), None, None


def _parts(count: int, vocabulary: int) -> list[slice]:
    size = max(1, MAX_LOGITS // vocabulary)
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def _logsumexp(logits_NV: torch.Tensor, temperature: float) -> torch.Tensor:
    """The logarithm of the sum of the exponentials of each row, in float32."""
    if not logits_NV.is_cuda:
        return (logits_NV.float() / temperature).logsumexp(-1)
    total_N = torch.empty(len(logits_NV), device=logits_NV.device)
    _logsumexp_rows[len(logits_NV),](logits_NV, total_N, logits_NV.shape[1], 1 / temperature, BLOCK=4096, num_warps=8)
    return total_N


def _to_gradient(
    logits_NV: torch.Tensor, total_N: torch.Tensor, tokens_N: torch.Tensor, grad_N: torch.Tensor, temperature: float
) -> None:
    """Replace logits by the gradient of the log-prob of `tokens_N` with respect to them."""
    if not logits_NV.is_cuda:
        slope_N1 = (grad_N / temperature)[:, None]
        gradient_NV = -slope_N1 * (logits_NV.float() / temperature - total_N[:, None]).exp()
        gradient_NV.scatter_add_(1, tokens_N[:, None], slope_N1)
        logits_NV.copy_(gradient_NV)
        return
    width = logits_NV.shape[1]
    _logits_gradient[len(logits_NV), triton.cdiv(width, 4096)](
        logits_NV, total_N, tokens_N, grad_N.contiguous(), width, 1 / temperature, BLOCK=4096, num_warps=8
    )


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_NHD: torch.Tensor, cos_ND: torch.Tensor, sin_ND: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(cos_ND, sin_ND)
        return _launch_rotate(x_NHD, cos_ND, sin_ND, backward=False)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        cos_ND, sin_ND = ctx.saved_tensors
        return _launch_rotate(grads[0], cos_ND, sin_ND, backward=True), None, None


def _launch_rotate(x_NHD: torch.Tensor, cos_ND: torch.Tensor, sin_ND: torch.Tensor, backward: bool) -> torch.Tensor:
    x_NHD = x_NHD.contiguous()
    count, heads, width = x_NHD.shape
    rotated = torch.empty_like(x_NHD)
    tensors, half = (x_NHD, rotated, cos_ND.contiguous(), sin_ND.contiguous()), width // 2
    shape = {
        "HEADS": heads,
        "HEADS_2": triton.next_power_of_2(heads),
        "HALF": half,
        "HALF_2": triton.next_power_of_2(half),
    }
    _rotate_heads[count,](*tensors, **shape, BACKWARD=backward, num_warps=2)
    return rotated


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        if gate.stride() != up.stride() or gate.stride(1) != 1:  # The halves of a joint projection are not copied.
            gate, up = gate.contiguous(), up.contiguous()
        ctx.save_for_backward(gate, up)
        gated, width = gate.new_empty(gate.shape), gate.shape[1]
        _swiglu[len(gate), triton.cdiv(width, _BLOCK)](gate, up, gated, width, gate.stride(0), BLOCK=_BLOCK)
        return gated

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        gate, up = (x.contiguous() for x in ctx.saved_tensors)
        gate_grad, up_grad = torch.empty_like(gate), torch.empty_like(up)
        _swiglu_backward[triton.cdiv(gate.numel(), _BLOCK),](
            gate, up, grads[0].contiguous(), gate_grad, up_grad, gate.numel(), BLOCK=_BLOCK
        )
        return gate_grad, up_grad


if triton is not None:

    @triton.jit
    def _logsumexp_rows(logits, totals, width, inverse_temperature, BLOCK: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        at = tl.arange(0, BLOCK)
        highest = tl.full([BLOCK], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK], tl.float32)
        for start in range(0, width, BLOCK):
            x = tl.load(logits + row * width + start + at, mask=start + at < width, other=float("-inf")).to(tl.float32)
            x = x * inverse_temperature
            new = tl.maximum(highest, x)
            # Lanes that have seen no value yet are at minus infinity.
            kept = tl.where(highest == float("-inf"), 0.0, total * tl.exp(highest - new))
            total = kept + tl.where(x == float("-inf"), 0.0, tl.exp(x - new))
            highest = new
        top = tl.max(highest, 0)
        total = tl.sum(tl.where(highest == float("-inf"), 0.0, total * tl.exp(highest - top)), 0)
        tl.store(totals + row, top + tl.log(total))

    @triton.jit
    def _logits_gradient(logits, totals, tokens, grads, width, inverse_temperature, BLOCK: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = at < width
        x = tl.load(logits + row * width + at, mask=inside, other=float("-inf")).to(tl.float32)
        slope = tl.load(grads + row) * inverse_temperature
        probability = tl.exp(x * inverse_temperature - tl.load(totals + row))
        gradient = slope * (tl.where(at == tl.load(tokens + row), 1.0, 0.0) - probability)
        tl.store(logits + row * width + at, gradient.to(logits.dtype.element_ty), mask=inside)

    @triton.jit
    def _rotate_heads(
        x,
        rotated,
        cos,
        sin,
        HEADS: tl.constexpr,
        HEADS_2: tl.constexpr,
        HALF: tl.constexpr,
        HALF_2: tl.constexpr,
        BACKWARD: tl.constexpr,
    ):
        n = tl.program_id(0).to(tl.int64)
        head, width = tl.arange(0, HEADS_2)[:, None], tl.arange(0, HALF_2)[None]
        in_width = width < HALF
        inside = (head < HEADS) & in_width
        angle = n * 2 * HALF + width
        c1, c2 = tl.load(cos + angle, mask=in_width), tl.load(cos + angle + HALF, mask=in_width)
        s1, s2 = tl.load(sin + angle, mask=in_width), tl.load(sin + angle + HALF, mask=in_width)
        at = (n * HEADS + head) * 2 * HALF + width
        a, b = tl.load(x + at, mask=inside), tl.load(x + at + HALF, mask=inside)
        kind = a.dtype
        a, b = a.to(tl.float32), b.to(tl.float32)
        c1, c2, s1, s2 = c1.to(tl.float32), c2.to(tl.float32), s1.to(tl.float32), s2.to(tl.float32)
        if BACKWARD:
            first, second = a * c1 + b * s2, b * c2 - a * s1
        else:
            first, second = a * c1 - b * s1, b * c2 + a * s2
        tl.store(rotated + at, first.to(kind), mask=inside)
        tl.store(rotated + at + HALF, second.to(kind), mask=inside)

    @triton.jit
    def _swiglu(gates, ups, gated, width, stride, BLOCK: tl.constexpr):
        row, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside, place = at < width, row * stride + at
        gate, up = tl.load(gates + place, mask=inside, other=0.0), tl.load(ups + place, mask=inside, other=0.0)
        x = gate.to(tl.float32)
        tl.store(gated + row * width + at, (x * tl.sigmoid(x) * up.to(tl.float32)).to(gate.dtype), mask=inside)

    @triton.jit
    def _swiglu_backward(gates, ups, grads, gate_grads, up_grads, count, BLOCK: tl.constexpr):
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = at < count
        gate, up = tl.load(gates + at, mask=inside, other=0.0), tl.load(ups + at, mask=inside, other=0.0)
        x, y = gate.to(tl.float32), up.to(tl.float32)
        grad, sigmoid = tl.load(grads + at, mask=inside, other=0.0).to(tl.float32), tl.sigmoid(x)
        slope = sigmoid * (1 + x * (1 - sigmoid))
        tl.store(gate_grads + at, (grad * y * slope).to(gate.dtype), mask=inside)
        tl.store(up_grads + at, (grad * x * sigmoid).to(gate.dtype), mask=inside)


def gather_rows(x_NF: torch.Tensor, rows_M: torch.Tensor) -> torch.Tensor:
    """Select rows of a table, some of them several times. Their gradients are summed in float32."""
    rows: torch.Tensor = _GatherRows.apply(x_NF, rows_M)
    return rows


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_NF: torch.Tensor, rows_M: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(rows_M)
        ctx.size = len(x_NF)
        return x_NF.index_select(0, rows_M)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (rows_M,) = ctx.saved_tensors
        total = torch.zeros((ctx.size, *grads[0].shape[1:]), dtype=torch.float32, device=grads[0].device)
        return total.index_add_(0, rows_M, grads[0].float()).to(grads[0].dtype), None
