"""Operations of a training pass on a GPU, each with its gradient: rotary positions, SwiGLU and the output layer.

On other devices they are computed with plain torch.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import silu

try:
    import triton  # type: ignore[import-not-found]
    import triton.language as tl  # type: ignore[import-not-found]
except ImportError:  # Builds of torch for CPUs have no Triton.
    triton = None

MAX_LOGITS = 1 << 28
"""Maximum number of logits that exist at once: 0.5 GB in bfloat16."""
_BLOCK = 1024


def rotate(x_NHD: torch.Tensor, cos_ND: torch.Tensor, sin_ND: torch.Tensor) -> torch.Tensor:
    """Rotate the two halves of each head by the angles of its position."""
    if x_NHD.is_cuda:
        rotated: torch.Tensor = _Rotate.apply(x_NHD, cos_ND, sin_ND)
        return rotated
    half = x_NHD.shape[-1] // 2
    swapped = torch.cat([-x_NHD[..., half:], x_NHD[..., :half]], -1)
    return x_NHD * cos_ND[:, None] + swapped * sin_ND[:, None]


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
        gate, up = gate.contiguous(), up.contiguous()
        ctx.save_for_backward(gate, up)
        gated = torch.empty_like(gate)
        _swiglu[triton.cdiv(gate.numel(), _BLOCK),](gate, up, gated, gate.numel(), BLOCK=_BLOCK)
        return gated

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        gate, up = ctx.saved_tensors
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
    def _swiglu(gates, ups, gated, count, BLOCK: tl.constexpr):
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = at < count
        gate, up = tl.load(gates + at, mask=inside, other=0.0), tl.load(ups + at, mask=inside, other=0.0)
        x = gate.to(tl.float32)
        tl.store(gated + at, (x * tl.sigmoid(x) * up.to(tl.float32)).to(gate.dtype), mask=inside)

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
