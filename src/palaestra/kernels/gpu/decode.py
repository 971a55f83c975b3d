"""One pass of the Llama architecture over packed tokens, with a static cache.

A token is described by its id, the row of its sequence in the cache and its position. Its key and value are written to the
cache first, then it attends to its row up to its own position. Next tokens of many sequences and whole prompts are the
same computation, without padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import linear, rms_norm

from palaestra.kernels.gpu.kernels import attend, gate, rotate_and_store
from palaestra.models.families import PROJECTIONS, adapts_projections_only, find_architecture, unwrap_adapter

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_ROTARY = {"default", "linear", "llama3", "yarn"}
"""Rotary embeddings whose angles depend on the position only."""


def takes_packed(model: PreTrainedModel) -> bool:
    """Whether `PackedLlama` computes a model of transformers, or peft's wrapper of one."""
    config, model = model.config, unwrap_adapter(model)
    if find_architecture(model) != "llama":
        return False
    if getattr(config, "attention_bias", False) or getattr(config, "mlp_bias", False):
        return False  # Biases of the output projection and of the MLP are not implemented.
    if not adapts_projections_only(model):
        return False
    layers = (layer for name, layer in model.named_modules() if name.rpartition(".")[2] in PROJECTIONS)
    if not all(_takes_adapter(layer) for layer in layers):
        return False
    return getattr(model.model.rotary_emb, "rope_type", "default") in _ROTARY


class PackedLlama:
    """RMSNorm, rotary positions, grouped-query attention and SwiGLU, with or without biases of the projections.

    Arguments:
        model: a model for which `takes_packed` is true. The projections of the same input are copied into one matrix; call
            `refresh` after its weights change.
    """

    def __init__(self, model: PreTrainedModel) -> None:
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


def _takes_adapter(layer: Any) -> bool:
    """Whether `_JointProjection` computes a linear layer as it is, or as peft has wrapped it."""
    if not hasattr(layer, "base_layer"):
        return type(layer) is torch.nn.Linear
    from peft.tuners.lora import Linear

    if type(layer) is not Linear or type(layer.base_layer) is not torch.nn.Linear:
        return False
    return not (layer.lora_variant or any(layer.lora_bias.values())) and len(layer.active_adapters) <= 1


class _JointProjection:
    """The product of an input with the weights of several layers, whose outputs follow each other.

    An adapter of rank R adds a product with its `[R, D]` matrix and one with its `[K, R]` matrix, in the dtype of the weights.

    Arguments:
        layers: layers for which `_takes_adapter` is true. The weights of several layers are copied; call `refresh` after they
            change. The copies keep their place in memory, which captured graphs refer to.
    """

    def __init__(self, layers: Sequence[Any]) -> None:
        self._layers = layers
        self.weight_KD, self.bias_K = self._read_weights()
        self._down_RD, self._up_KR = self._read_adapters()

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the weights again."""
        weight_KD, bias_K = self._read_weights()
        if len(self._layers) == 1:
            self.weight_KD, self.bias_K = weight_KD, bias_K
        for old, new in zip(
            (self.weight_KD, self.bias_K, self._down_RD, self._up_KR),
            (weight_KD, bias_K, *self._read_adapters()),
            strict=True,
        ):
            if old is not None and new is not None and old is not new:
                old.copy_(new)

    def __call__(self, inputs_ND: torch.Tensor, onto_NK: torch.Tensor | None = None) -> torch.Tensor:
        """Project the inputs, and add the result to `onto_NK` if it is given."""
        if onto_NK is None:
            outputs_NK = linear(inputs_ND, self.weight_KD, self.bias_K)
        else:
            outputs_NK = torch.addmm(onto_NK, inputs_ND, self.weight_KD.t())
        if self._down_RD is None or self._up_KR is None:
            return outputs_NK
        return torch.addmm(outputs_NK, linear(inputs_ND, self._down_RD), self._up_KR.t())

    def _read_weights(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        plain = [getattr(layer, "base_layer", layer) for layer in self._layers]
        if len(plain) == 1:
            return plain[0].weight.detach(), plain[0].bias
        bias = torch.cat([layer.bias for layer in plain]) if plain[0].bias is not None else None
        return torch.cat([layer.weight.detach() for layer in plain]), bias

    @torch.no_grad()
    def _read_adapters(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """The adapters of all layers, one below the other; a layer without one adds nothing."""
        down, up = [], []
        for layer in self._layers:
            weight = getattr(layer, "base_layer", layer).weight
            down_RD, up_KR = weight.new_zeros((0, weight.shape[1])), weight.new_zeros((weight.shape[0], 0))
            for name in getattr(layer, "lora_A", {}):
                used = name in layer.active_adapters and not (layer.merged or layer.disable_adapters)
                scale = layer.scaling[name] if used else 0.0
                down_RD = torch.cat([down_RD, layer.lora_A[name].weight.to(weight.dtype)])
                up_KR = torch.cat([up_KR, (layer.lora_B[name].weight * scale).to(weight.dtype)], 1)
            down.append(down_RD)
            up.append(up_KR)
        if not any(map(len, down)):
            return None, None
        return torch.cat(down), torch.block_diag(*up)  # type: ignore[no-untyped-call]


def _join_projections(a: Any, m: Any) -> tuple[_JointProjection, ...]:
    """The projections of a block: query, key and value; output; gate and up; down."""
    layers = ([a.q_proj, a.k_proj, a.v_proj], [a.o_proj], [m.gate_proj, m.up_proj], [m.down_proj])
    return tuple(_JointProjection(joint) for joint in layers)
