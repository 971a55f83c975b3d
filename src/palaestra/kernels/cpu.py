"""Fast paths for language models on a CPU: the choice of matrix kernels, GPT-2's activation, and the decoding step.

On ARM, torch sends products with a transposed weight to oneDNN. With several threads oneDNN is faster for large
matrices. With one thread plain BLAS was faster at every size measured, and for the matrices of a control policy oneDNN
costs up to a millisecond per call. Where torch does not use oneDNN (float32 on x86) the choice has no effect.

The decoding step of the Llama and GPT-2 architectures is the model's own computation with a third of the calls. At CPU
batch sizes, module overhead dominates a step. Here the projections of the same input are one matrix product, and
residuals are added within the products.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.functional import layer_norm, rms_norm, scaled_dot_product_attention, silu

from palaestra.kernels.operations import rotate
from palaestra.models.families import fast_paths_enabled, find_architecture

if TYPE_CHECKING:
    from transformers import Cache, PreTrainedModel

_MAX_PARAMETERS = 200_000_000
"""Larger models spend their time in matrix products, so a second copy of their weights is not worth the memory."""


@contextmanager
def select_matmul_kernels(small: bool = False) -> Iterator[None]:
    """Within the context, use the fastest matrix kernels for the number of threads.

    Arguments:
        small: the networks have only a few thousand weights.
    """
    if not fast_paths_enabled() or not (small or torch.get_num_threads() == 1):
        yield
        return
    with _onednn(False):
        yield


_LOCK = threading.Lock()
_CHOICES: list[tuple[object, bool]] = []
"""The choices of the contexts that are open in any thread, below them the flag from before the first."""


@contextmanager
def _onednn(enabled: bool) -> Iterator[None]:
    """Enable or disable oneDNN for the process. Contexts of several threads may overlap: the last one restores the flag."""
    choice = (object(), enabled)
    with _LOCK:
        if not _CHOICES:
            _CHOICES.append((None, bool(torch.backends.mkldnn.enabled)))
        _CHOICES.append(choice)
        torch.backends.mkldnn.set_flags(enabled)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        with _LOCK:
            _CHOICES.remove(choice)
            torch.backends.mkldnn.set_flags(_CHOICES[-1][1])  # type: ignore[no-untyped-call]
            if len(_CHOICES) == 1:
                _CHOICES.clear()


def fuse_activations(model: nn.Module) -> None:
    """Replace GPT-2's activation, eight operations in transformers, with torch's fused kernel."""
    from transformers.activations import NewGELUActivation

    if not fast_paths_enabled():
        return
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, NewGELUActivation):
                setattr(module, name, nn.GELU(approximate="tanh"))


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    """GPT-2's activation.

    Without gradients this is oneDNN's kernel, three times as fast on ARM as torch's own. With gradients it is
    `x * sigmoid(2 u)`, which equals `x * (1 + tanh(u)) / 2`: an exponential costs a third of a tanh, and the backward
    pass reuses it.
    """
    if not torch.is_grad_enabled():
        with _onednn(True):
            return torch.nn.functional.gelu(x, approximate="tanh")
    result: torch.Tensor = _Gelu.apply(x)  # type: ignore[no-untyped-call]
    return result


_LINEAR = 2 * (2 / torch.pi) ** 0.5
_CUBIC = 0.044715 * _LINEAR


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        gate = (x * x).mul_(_CUBIC).add_(_LINEAR).mul_(x).sigmoid_()
        ctx.save_for_backward(x, gate)
        return x * gate

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, gate = ctx.saved_tensors
        slope = (x * x).mul_(3 * _CUBIC).add_(_LINEAR).mul_(x)
        return slope.addcmul_(slope, gate, value=-1).add_(1).mul_(gate).mul_(grads[0])


def make_decode_step(model: PreTrainedModel) -> LlamaDecodeStep | Gpt2DecodeStep | None:
    """The fast decoding step of a causal language model, or `None` if there is none for its architecture."""
    if model.device.type != "cpu" or model.dtype != torch.float32:
        return None
    architecture = find_architecture(model)  # `None` for peft's wrapper, whose adapter is not implemented.
    if architecture is None or sum(p.numel() for p in model.parameters()) > _MAX_PARAMETERS:
        return None
    if getattr(model.config, "attention_bias", False) or getattr(model.config, "mlp_bias", False):
        return None  # Biases of the output projection and of the MLP are not implemented.
    return LlamaDecodeStep(model) if architecture == "llama" else Gpt2DecodeStep(model)


class LlamaDecodeStep:
    """Feeds one token to every row of a batch: writes its key and value to the cache and returns the logits.

    RMSNorm, rotary positions, grouped-query attention and SwiGLU, with or without biases of the projections.

    Arguments:
        model: its weights are copied, laid out for products with few rows. Call `refresh` after they change.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.refresh()

    def refresh(self) -> None:
        body, config = self.model.model, self.model.config
        self.epsilon = float(config.rms_norm_eps)
        self.heads, self.key_value_heads = int(config.num_attention_heads), int(config.num_key_value_heads)
        self.width = int(getattr(config, "head_dim", None) or config.hidden_size // self.heads)
        self.layers = []
        for block in body.layers:
            a, m = block.self_attn, block.mlp
            joint = [a.q_proj, a.k_proj, a.v_proj]
            self.layers.append(
                (
                    block.input_layernorm.weight,
                    torch.cat([p.weight for p in joint]).t().contiguous(),
                    torch.cat([p.bias for p in joint]) if a.q_proj.bias is not None else None,
                    a.o_proj.weight.t().contiguous(),
                    block.post_attention_layernorm.weight,
                    torch.cat([m.gate_proj.weight, m.up_proj.weight]).t().contiguous(),
                    m.down_proj.weight.t().contiguous(),
                )
            )
        self.embed, self.norm = body.embed_tokens.weight, body.norm.weight
        self.head = self.model.lm_head.weight.t().contiguous()

    def __call__(
        self, ids_R: torch.Tensor, positions_R: torch.Tensor, mask_R11W: torch.Tensor | None, cache: Cache
    ) -> torch.Tensor:
        rows, width = len(ids_R), self.width
        hidden = self.embed[ids_R]
        cos, sin = self.model.model.rotary_emb(hidden, positions_R[:, None])
        cos, sin = cos.transpose(0, 1)[0], sin.transpose(0, 1)[0]
        num_rotary = self.heads + self.key_value_heads
        shape, scale = hidden.shape[1:], width**-0.5
        for layer, (norm1, joint, bias, out, norm2, gate_up, down) in zip(cache.layers, self.layers, strict=True):
            normed = rms_norm(hidden, shape, norm1, self.epsilon)
            projected = normed @ joint if bias is None else torch.addmm(bias, normed, joint)
            heads_RHD = projected.view(rows, -1, width)
            rotary = rotate(heads_RHD[:, :num_rotary], cos, sin)
            query = rotary[:, : self.heads].view(rows, self.key_value_heads, -1, width)
            # Query heads that share keys are computed as one head with several queries.
            keys, values = layer.write(rotary[:, self.heads :], heads_RHD[:, num_rotary:])
            mixed = scaled_dot_product_attention(query, keys, values, attn_mask=mask_R11W, scale=scale)
            hidden = torch.addmm(hidden, mixed.reshape(rows, -1), out)
            gate, up = (rms_norm(hidden, shape, norm2, self.epsilon) @ gate_up).chunk(2, -1)
            hidden = torch.addmm(hidden, silu(gate) * up, down)
        logits: torch.Tensor = rms_norm(hidden, shape, self.norm, self.epsilon) @ self.head
        return logits


class Gpt2DecodeStep:
    """The same with LayerNorm, learned positions, one projection for query, key and value, and GELU."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.refresh()

    def refresh(self) -> None:
        body, config = self.model.transformer, self.model.config
        self.heads, self.width = int(config.num_attention_heads), int(config.hidden_size // config.num_attention_heads)
        self.scale = self.width**-0.5 if config.scale_attn_weights else 1.0
        self.layers = []
        for block in body.h:
            a, m = block.attn, block.mlp
            pairs = [(p.weight, p.bias) for p in (block.ln_1, a.c_attn, a.c_proj, block.ln_2, m.c_fc, m.c_proj)]
            self.layers.append((pairs, block.ln_1.eps))
        self.embed, self.position_embed, self.norm = body.wte.weight, body.wpe.weight, body.ln_f
        self.head = self.model.lm_head.weight.t().contiguous()

    def __call__(
        self, ids_R: torch.Tensor, positions_R: torch.Tensor, mask_R11W: torch.Tensor | None, cache: Cache
    ) -> torch.Tensor:
        rows = len(ids_R)
        hidden = self.embed[ids_R] + self.position_embed[positions_R]
        shape = hidden.shape[1:]
        for layer, (pairs, epsilon) in zip(cache.layers, self.layers, strict=True):
            norm1, joint, out, norm2, up, down = pairs
            normed = layer_norm(hidden, shape, *norm1, epsilon)
            query, key, value = torch.addmm(joint[1], normed, joint[0]).view(rows, 3, self.heads, self.width).unbind(1)
            keys, values = layer.write(key, value)
            mixed = scaled_dot_product_attention(query[:, :, None], keys, values, attn_mask=mask_R11W, scale=self.scale)
            hidden = hidden + torch.addmm(out[1], mixed.reshape(rows, -1), out[0])
            normed = layer_norm(hidden, shape, *norm2, epsilon)
            inner = gelu_tanh(torch.addmm(up[1], normed, up[0]))
            hidden = hidden + torch.addmm(down[1], inner, down[0])
        logits: torch.Tensor = layer_norm(hidden, shape, self.norm.weight, self.norm.bias, self.norm.eps) @ self.head
        return logits
