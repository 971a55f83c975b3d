"""One decoding step of the Llama and GPT-2 architectures: the model's own computation with a third of the calls.

At CPU batch sizes, module overhead dominates a step. Here the projections of the same input are one matrix product, and
residuals are added within the products.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import layer_norm, rms_norm, scaled_dot_product_attention, silu

from palaestra.engines.cpu import find_architecture
from palaestra.engines.cpu.kernels import gelu_tanh

MAX_PARAMETERS = 200_000_000
"""Larger models spend their time in matrix products, so a second copy of their weights is not worth the memory."""


def make_decode_step(model: Any) -> DecodeStep | None:
    """The fast decoding step of a causal language model, or `None` if there is none for its architecture."""
    if model.device.type != "cpu" or model.dtype != torch.float32:
        return None
    architecture = find_architecture(model)  # `None` for peft's wrapper, whose adapter is not implemented.
    if architecture is None or sum(p.numel() for p in model.parameters()) > MAX_PARAMETERS:
        return None
    if getattr(model.config, "attention_bias", False) or getattr(model.config, "mlp_bias", False):
        return None  # Biases of the output projection and of the MLP are not implemented.
    return LlamaDecodeStep(model) if architecture == "llama" else Gpt2DecodeStep(model)


class DecodeStep:
    """Feeds one token to every row of a batch: writes its key and value to the cache and returns the logits.

    Arguments:
        model: its weights are copied, laid out for products with few rows. Call `refresh` after they change.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.refresh()

    def refresh(self) -> None:
        raise NotImplementedError

    def __call__(
        self, ids_R: torch.Tensor, positions_R: torch.Tensor, mask_R11W: torch.Tensor | None, cache: Any
    ) -> torch.Tensor:
        raise NotImplementedError


def _attend(
    query_RHGD: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    layer: Any,
    scale: float,
) -> torch.Tensor:
    """Write the new key and value, then attend. Query heads that share keys are computed as one head with several queries."""
    keys, values = layer.write(key, value)
    rows = query_RHGD.shape[0]
    mixed_RHGD = scaled_dot_product_attention(query_RHGD, keys, values, attn_mask=mask, scale=scale)
    return mixed_RHGD.reshape(rows, -1)


class LlamaDecodeStep(DecodeStep):
    """RMSNorm, rotary positions, grouped-query attention and SwiGLU, with or without biases of the projections."""

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
        self, ids_R: torch.Tensor, positions_R: torch.Tensor, mask_R11W: torch.Tensor | None, cache: Any
    ) -> torch.Tensor:
        rows, width = len(ids_R), self.width
        hidden = self.embed[ids_R]
        cos, sin = self.model.model.rotary_emb(hidden, positions_R[:, None])
        cos, sin = cos.transpose(0, 1)[0][:, None], sin.transpose(0, 1)[0][:, None]
        half, num_rotary = width // 2, self.heads + self.key_value_heads
        shape, scale = hidden.shape[1:], width**-0.5
        for layer, (norm1, joint, bias, out, norm2, gate_up, down) in zip(cache.layers, self.layers, strict=True):
            normed = rms_norm(hidden, shape, norm1, self.epsilon)
            projected = normed @ joint if bias is None else torch.addmm(bias, normed, joint)
            heads_RHD = projected.view(rows, -1, width)
            rotary = heads_RHD[:, :num_rotary]
            swapped = torch.cat([-rotary[..., half:], rotary[..., :half]], -1)
            rotary = rotary * cos + swapped * sin
            query = rotary[:, : self.heads].view(rows, self.key_value_heads, -1, width)
            mixed = _attend(query, rotary[:, self.heads :], heads_RHD[:, num_rotary:], mask_R11W, layer, scale)
            hidden = torch.addmm(hidden, mixed, out)
            gate, up = (rms_norm(hidden, shape, norm2, self.epsilon) @ gate_up).chunk(2, -1)
            hidden = torch.addmm(hidden, silu(gate) * up, down)
        logits: torch.Tensor = rms_norm(hidden, shape, self.norm, self.epsilon) @ self.head
        return logits


class Gpt2DecodeStep(DecodeStep):
    """LayerNorm, learned positions, one projection for query, key and value, and GELU."""

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
        self, ids_R: torch.Tensor, positions_R: torch.Tensor, mask_R11W: torch.Tensor | None, cache: Any
    ) -> torch.Tensor:
        rows = len(ids_R)
        hidden = self.embed[ids_R] + self.position_embed[positions_R]
        shape = hidden.shape[1:]
        for layer, (pairs, epsilon) in zip(cache.layers, self.layers, strict=True):
            norm1, joint, out, norm2, up, down = pairs
            normed = layer_norm(hidden, shape, *norm1, epsilon)
            query_key_value = torch.addmm(joint[1], normed, joint[0]).view(rows, 3, self.heads, self.width)
            mixed = _attend(
                query_key_value[:, 0][:, :, None],
                query_key_value[:, 1],
                query_key_value[:, 2],
                mask_R11W,
                layer,
                self.scale,
            )
            hidden = hidden + torch.addmm(out[1], mixed, out[0])
            normed = layer_norm(hidden, shape, *norm2, epsilon)
            inner = gelu_tanh(torch.addmm(up[1], normed, up[0]))
            hidden = hidden + torch.addmm(down[1], inner, down[0])
        logits: torch.Tensor = layer_norm(hidden, shape, self.norm.weight, self.norm.bias, self.norm.eps) @ self.head
        return logits
