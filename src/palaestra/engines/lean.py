"""The decoding step of the two most common shapes, spelled out: what transformers computes, in a third of the calls.

At the batch sizes of a CPU a step is mostly the bookkeeping of modules. Here the projections that read the same
input are one product, residuals are added by the product itself, and nothing else happens. A shape that is not
known, an adapter, a GPU or a large model takes transformers' own way; and each model is checked once against it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch.nn.functional import layer_norm, rms_norm, scaled_dot_product_attention, silu

from palaestra.engines.families import sliding_window
from palaestra.engines.kernels import gelu_tanh

MOST_PARAMETERS = 200_000_000
"""Above this the step is all matrix products, and a second copy of the weights is not worth it."""
LLAMA = {f"{name}{part}" for name in ("Llama", "Mistral", "Qwen2") for part in ("ForCausalLM", "Model")}
GPT2 = {"GPT2LMHeadModel", "GPT2Model"}


def known_shape(model: Any) -> str:
    """`"llama"` or `"gpt2"` if `model`, or its body alone, is spelled out here and computes on a CPU; else empty."""
    if model.device.type != "cpu" or model.dtype != torch.float32 or hasattr(model, "get_base_model"):
        return ""
    config, name = model.config, type(model).__name__
    if name in LLAMA and config.hidden_act in ("silu", "swish") and not sliding_window(config):
        return "llama"
    plain = not (
        getattr(config, "scale_attn_by_inverse_layer_idx", False) or getattr(config, "add_cross_attention", False)
    )
    return "gpt2" if name in GPT2 and config.activation_function == "gelu_new" and plain else ""


def lean_step(model: Any) -> LeanStep | None:
    """The lean step of a causal language model, or `None` where there is none for it."""
    shape = known_shape(model)
    if not shape or sum(p.numel() for p in model.parameters()) > MOST_PARAMETERS:
        return None
    if getattr(model.config, "attention_bias", False) or getattr(model.config, "mlp_bias", False):
        return None  # Biases of the output projection and of the perceptron are not spelled out.
    return LlamaStep(model) if shape == "llama" else Gpt2Step(model)


class LeanStep(ABC):
    """One token for every row, given the cache's tensors.

    Arguments:
        model: whose weights are copied by `refresh`, which whoever changes them calls.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.refresh()

    @abstractmethod
    def refresh(self) -> None:
        """Copy the model's weights as they are now, laid out for products with few rows."""

    @abstractmethod
    def __call__(
        self, ids_R: torch.Tensor, positions_R: torch.Tensor, mask_R11W: torch.Tensor | None, cache: Any
    ) -> torch.Tensor:
        """Logits `[rows, vocabulary]`; the keys and values of the token are written to the cache."""


def _attend(
    query_RHGD: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, layer: Any, cache: Any
) -> torch.Tensor:
    """Write the new key and value, then attend; heads that share keys are asked as one head with several queries."""
    keys, values = layer.write(key, value)
    rows = query_RHGD.shape[0]
    mixed_RHGD = scaled_dot_product_attention(query_RHGD, keys, values, attn_mask=mask, scale=cache.scale)
    return mixed_RHGD.reshape(rows, -1)


class LlamaStep(LeanStep):
    """RMSNorm, rotary positions, grouped heads, SwiGLU; with or without biases of the projections."""

    def refresh(self) -> None:
        body, config = self.model.model, self.model.config
        self.epsilon = float(config.rms_norm_eps)
        self.heads, self.shared = int(config.num_attention_heads), int(config.num_key_value_heads)
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
        self, ids_R: torch.Tensor, positions_R: torch.Tensor, mask_R11W: torch.Tensor | None, cache: Any
    ) -> torch.Tensor:
        rows, width = len(ids_R), self.width
        hidden = self.embed[ids_R]
        cos, sin = self.model.model.rotary_emb(hidden, positions_R[:, None])
        cos, sin = cos.transpose(0, 1)[0][:, None], sin.transpose(0, 1)[0][:, None]
        half, turned = width // 2, self.heads + self.shared
        shape, cache.scale = hidden.shape[1:], width**-0.5
        for layer, (norm1, joint, bias, out, norm2, gate_up, down) in zip(cache.layers, self.layers, strict=True):
            normed = rms_norm(hidden, shape, norm1, self.epsilon)
            projected = normed @ joint if bias is None else torch.addmm(bias, normed, joint)
            heads_RHD = projected.view(rows, -1, width)
            both = heads_RHD[:, :turned]
            rotated = torch.cat([-both[..., half:], both[..., :half]], -1)
            both = both * cos + rotated * sin
            query = both[:, : self.heads].view(rows, self.shared, -1, width)
            mixed = _attend(query, both[:, self.heads :], heads_RHD[:, turned:], mask_R11W, layer, cache)
            hidden = torch.addmm(hidden, mixed, out)
            gate, up = (rms_norm(hidden, shape, norm2, self.epsilon) @ gate_up).chunk(2, -1)
            hidden = torch.addmm(hidden, silu(gate) * up, down)
        logits: torch.Tensor = rms_norm(hidden, shape, self.norm, self.epsilon) @ self.head
        return logits


class Gpt2Step(LeanStep):
    """LayerNorm, learned positions, one projection for query, key and value, GELU."""

    def refresh(self) -> None:
        body, config = self.model.transformer, self.model.config
        self.heads, self.width = int(config.num_attention_heads), int(config.hidden_size // config.num_attention_heads)
        self.scale = self.width**-0.5 if config.scale_attn_weights else 1.0
        self.layers = []
        for block in body.h:
            a, m = block.attn, block.mlp
            pairs = [(p.weight, p.bias) for p in (block.ln_1, a.c_attn, a.c_proj, block.ln_2, m.c_fc, m.c_proj)]
            self.layers.append((pairs, block.ln_1.eps))
        self.embed, self.places, self.norm = body.wte.weight, body.wpe.weight, body.ln_f
        self.head = self.model.lm_head.weight.t().contiguous()

    def __call__(
        self, ids_R: torch.Tensor, positions_R: torch.Tensor, mask_R11W: torch.Tensor | None, cache: Any
    ) -> torch.Tensor:
        rows = len(ids_R)
        hidden = self.embed[ids_R] + self.places[positions_R]
        shape, cache.scale = hidden.shape[1:], self.scale
        for layer, (pairs, epsilon) in zip(cache.layers, self.layers, strict=True):
            norm1, joint, out, norm2, up, down = pairs
            normed = layer_norm(hidden, shape, *norm1, epsilon)
            three = torch.addmm(joint[1], normed, joint[0]).view(rows, 3, self.heads, self.width)
            mixed = _attend(three[:, 0][:, :, None], three[:, 1], three[:, 2], mask_R11W, layer, cache)
            hidden = hidden + torch.addmm(out[1], mixed, out[0])
            normed = layer_norm(hidden, shape, *norm2, epsilon)
            inner = gelu_tanh(torch.addmm(up[1], normed, up[0]))
            hidden = hidden + torch.addmm(down[1], inner, down[0])
        logits: torch.Tensor = layer_norm(hidden, shape, self.norm.weight, self.norm.bias, self.norm.eps) @ self.head
        return logits
