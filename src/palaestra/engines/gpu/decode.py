"""One pass of the Llama architecture over packed tokens, with a static cache.

A token is described by its id, the row of its sequence in the cache and its position. Its key and value are written to the
cache first, then it attends to its row up to its own position. Next tokens of many sequences and whole prompts are the
same computation, without padding.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import rms_norm

from palaestra.engines.adapters import PROJECTIONS, adapts_projections_only, unwrap_adapter
from palaestra.engines.families import sliding_window
from palaestra.engines.gpu.kernels import attend, gate, rotate_and_store
from palaestra.engines.gpu.projections import JointProjection, takes_adapter

LLAMA = {f"{name}ForCausalLM" for name in ("Llama", "Mistral", "Qwen2")}
ROTARY = {"default", "linear", "llama3", "yarn"}
"""Rotary embeddings whose angles depend on the position only."""


def takes_packed(model: Any) -> bool:
    """Whether `PackedLlama` computes a model of transformers, or peft's wrapper of one."""
    config, model = model.config, unwrap_adapter(model)
    if type(model).__name__ not in LLAMA or config.hidden_act not in ("silu", "swish") or sliding_window(config):
        return False
    if getattr(config, "attention_bias", False) or getattr(config, "mlp_bias", False):
        return False  # Biases of the output projection and of the MLP are not implemented.
    if not adapts_projections_only(model):
        return False
    layers = (layer for name, layer in model.named_modules() if name.rpartition(".")[2] in PROJECTIONS)
    if not all(takes_adapter(layer) for layer in layers):
        return False
    return getattr(model.model.rotary_emb, "rope_type", "default") in ROTARY


class PackedLlama:
    """RMSNorm, rotary positions, grouped-query attention and SwiGLU, with or without biases of the projections.

    Arguments:
        model: a model for which `takes_packed` is true. The projections of the same input are copied into one matrix; call
            `refresh` after its weights change.
    """

    def __init__(self, model: Any) -> None:
        self.model = model = unwrap_adapter(model)
        config = model.config
        self.epsilon = float(config.rms_norm_eps)
        self.heads, self.shared_heads = int(config.num_attention_heads), int(config.num_key_value_heads)
        self.width = int(getattr(config, "head_dim", None) or config.hidden_size // self.heads)
        self.num_layers, self.outputs = int(config.num_hidden_layers), int(model.lm_head.weight.shape[0])
        self._projections = [_join_projections(block.self_attn, block.mlp) for block in model.model.layers]

    def refresh(self) -> None:
        """Copy the weights again."""
        for block in self._projections:
            for projection in block:
                projection.refresh()

    def compute_angles(self, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines by position, `[positions, width]`."""
        model = self.model
        place_1P = torch.arange(positions, device=model.device)[None]
        like = torch.empty(0, device=model.device, dtype=model.dtype)
        cos, sin = model.model.rotary_emb(like, place_1P)
        return cos[0].contiguous(), sin[0].contiguous()

    def __call__(
        self,
        ids_N: torch.Tensor,
        row_N: torch.Tensor,
        position_N: torch.Tensor,
        last_M: torch.Tensor,
        cache: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor],
        logits_MV: torch.Tensor,
    ) -> None:
        """Write all tokens to the cache, and the logits after the tokens `last_M` to `logits_MV`.

        Arguments:
            cache: keys and values, `[2, layers, rows, heads, positions, width]`.
            angles: from `compute_angles`.
        """
        body, epsilon, scale = self.model.model, self.epsilon, self.width**-0.5
        hidden = body.embed_tokens.weight[ids_N]
        shape = hidden.shape[1:]
        for index, (block, (joint, output, gate_up, down)) in enumerate(
            zip(body.layers, self._projections, strict=True)
        ):
            keys, values = cache[0, index], cache[1, index]
            projected = joint(rms_norm(hidden, shape, block.input_layernorm.weight, epsilon))
            query_NHD = rotate_and_store(projected, *angles, keys, values, row_N, position_N, self.heads)
            hidden = output(attend(query_NHD, keys, values, row_N, position_N, scale), hidden)
            projected = gate_up(rms_norm(hidden, shape, block.post_attention_layernorm.weight, epsilon))
            hidden = down(gate(projected), hidden)
        normed = rms_norm(hidden[last_M], shape, body.norm.weight, epsilon)
        torch.mm(normed, self.model.lm_head.weight.t(), out=logits_MV)


def _join_projections(a: Any, m: Any) -> tuple[JointProjection, ...]:
    """The projections of a block: query, key and value; output; gate and up; down."""
    layers = ([a.q_proj, a.k_proj, a.v_proj], [a.o_proj], [m.gate_proj, m.up_proj], [m.down_proj])
    return tuple(JointProjection(joint) for joint in layers)
