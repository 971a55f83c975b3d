"""The forward pass of the Llama and GPT-2 architectures over packed prompts and responses, with gradients.

It does as little arithmetic as possible. Matrix products contain no padding. A prompt that several responses share is
computed once. In the last layer a prompt needs only its keys, its values and its last position.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.functional import gelu, layer_norm, rms_norm
from torch.utils.checkpoint import checkpoint

from palaestra.engines.adapters import adapts_projections_only, unwrap_adapter
from palaestra.engines.cpu import find_architecture
from palaestra.engines.cpu.kernels import gelu_tanh
from palaestra.engines.gpu.training import rotate, swiglu
from palaestra.engines.packed_layout import Attention, Layout, PackedAttention, PaddedAttention, TokenIds


def make_fast_forward(model: Any) -> FastForward | None:
    """The packed forward pass of a causal language model or its body, or `None` if there is none for its architecture.

    Arguments:
        model: a model of transformers, or peft's wrapper of one.
    """
    inner = unwrap_adapter(model)
    architecture = find_architecture(inner)
    if architecture is None or model.device.type not in ("cpu", "cuda"):
        return None
    if model.device.type == "cpu" and model.dtype != torch.float32:
        return None  # Kernels of other dtypes are slow on CPUs.
    if inner is not model and (architecture != "llama" or not adapts_projections_only(inner)):
        return None  # `LlamaForward` calls the projections, and reads the weights of all other layers.
    return (LlamaForward if architecture == "llama" else Gpt2Forward)(inner.base_model)


class FastForward(ABC):
    """The forward pass over prompts and responses, with the parameters of the model itself.

    Arguments:
        body: the model without its output layer.
    """

    heads: int
    """Number of key-value heads."""
    width: int
    """Size of a head."""
    scale: float
    blocks: Sequence[Any]

    def __init__(self, body: Any) -> None:
        self.body = body
        self.packs_attention = body.device.type == "cuda"
        """Whether attention computes packed sequences instead of padded ones."""
        self.recomputes = False
        """Whether the backward pass computes each block again, instead of keeping its intermediate results."""

    @abstractmethod
    def embed(self, ids_N: torch.Tensor, positions_N: torch.Tensor) -> torch.Tensor:
        """The input of the first block."""

    @abstractmethod
    def attention_norm(self, block: Any, hidden_ND: torch.Tensor) -> torch.Tensor:
        """Normalise the input of a block's attention."""

    @abstractmethod
    def query(self, block: Any, normed_ND: torch.Tensor, rotary: Any) -> torch.Tensor:
        """Queries `[N, heads, queries per head, width]`."""

    @abstractmethod
    def key_value(self, block: Any, normed_ND: torch.Tensor, rotary: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values `[N, heads, width]`."""

    @abstractmethod
    def finish_block(self, block: Any, hidden_ND: torch.Tensor, attention_ND: torch.Tensor) -> torch.Tensor:
        """The output of a block, from its input and the result of its attention: projection, residuals and MLP."""

    @abstractmethod
    def final_norm(self, hidden_ND: torch.Tensor) -> torch.Tensor:
        """The norm before the output layer."""

    def rotary(self, positions_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Cosines and sines of rotary positions; `None` for an architecture without them."""
        return None

    def __call__(
        self, prompts: Sequence[TokenIds], responses: Sequence[TokenIds], width: int, include_end: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Last hidden states after the prompt and after each token of the responses.

        Arguments:
            width: maximum number of positions per sequence.
            include_end: also return the position after the last token of a response.

        Returns:
            Hidden states `[N, D]`, and the row of each in the flattened table `[sequences, width]`.
        """
        layout = Layout(prompts, responses, width, include_end, self.body.device)
        attend: Attention = (PackedAttention if self.packs_attention else PaddedAttention)(layout, self.scale)
        hidden_UD, hidden_RD = self._run_blocks(layout, attend)
        return torch.cat([hidden_UD.index_select(0, layout.source_B), hidden_RD]), layout.rows_N

    def _run_blocks(self, layout: Layout, attend: Attention) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden states after each distinct prompt, and after each token of the responses."""
        hidden = self.embed(layout.ids_N, layout.positions_N)
        rotary = self.rotary(layout.positions_N)
        for block in self.blocks[:-1]:
            if self.recomputes and torch.is_grad_enabled():
                hidden = checkpoint(self._run_block, block, hidden, rotary, attend, use_reentrant=False)
            else:
                hidden = self._run_block(block, hidden, rotary, attend)
        hidden = self._run_last_block(layout, self.blocks[-1], hidden, rotary, attend)
        hidden_UD, hidden_RD = torch.split(self.final_norm(hidden), [layout.prompts, layout.response_tokens])
        return hidden_UD, hidden_RD

    def _run_block(self, block: Any, hidden: torch.Tensor, rotary: Any, attend: Attention) -> torch.Tensor:
        normed = self.attention_norm(block, hidden)
        keys, values = self.key_value(block, normed, rotary)
        attention = attend(self.query(block, normed, rotary), keys, values)
        return self.finish_block(block, hidden, attention)

    def _run_last_block(
        self, layout: Layout, block: Any, hidden: torch.Tensor, rotary: Any, attend: Attention
    ) -> torch.Tensor:
        normed = self.attention_norm(block, hidden)
        keys, values = self.key_value(block, normed, rotary)
        # From here on a prompt needs only its last position.
        hidden, normed = layout.drop_prompts(hidden), layout.drop_prompts(normed)
        if rotary is not None:
            rotary = tuple(layout.drop_prompts(angles) for angles in rotary)
        attention = attend(self.query(block, normed, rotary), keys, values, last_only=True)
        return self.finish_block(block, hidden, attention)


class LlamaForward(FastForward):
    """RMSNorm, rotary positions, grouped-query attention and SwiGLU, with or without biases."""

    def __init__(self, body: Any) -> None:
        super().__init__(body)
        config = body.config
        self.blocks, self.epsilon = self.body.layers, float(config.rms_norm_eps)
        self.heads = int(config.num_key_value_heads)
        self.group = int(config.num_attention_heads) // self.heads
        self.width = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
        self.scale = self.width**-0.5

    def embed(self, ids_N: torch.Tensor, positions_N: torch.Tensor) -> torch.Tensor:
        # The row of the padding token has no gradient.
        return nn.functional.embedding(ids_N, self.body.embed_tokens.weight, self.body.embed_tokens.padding_idx)

    def rotary(self, positions_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        example = torch.zeros(1, dtype=self.body.embed_tokens.weight.dtype, device=positions_N.device)
        cos, sin = self.body.rotary_emb(example, positions_N[None])
        return cos[0], sin[0]

    def attention_norm(self, block: Any, hidden_ND: torch.Tensor) -> torch.Tensor:
        return rms_norm(hidden_ND, hidden_ND.shape[1:], block.input_layernorm.weight, self.epsilon)

    def query(self, block: Any, normed_ND: torch.Tensor, rotary: Any) -> torch.Tensor:
        queries = block.self_attn.q_proj(normed_ND).view(len(normed_ND), self.heads * self.group, self.width)
        return rotate(queries, *rotary).view(len(normed_ND), self.heads, self.group, self.width)

    def key_value(self, block: Any, normed_ND: torch.Tensor, rotary: Any) -> tuple[torch.Tensor, torch.Tensor]:
        keys = block.self_attn.k_proj(normed_ND).view(len(normed_ND), self.heads, self.width)
        values = block.self_attn.v_proj(normed_ND).view(len(normed_ND), self.heads, self.width)
        return rotate(keys, *rotary), values

    def finish_block(self, block: Any, hidden_ND: torch.Tensor, attention_ND: torch.Tensor) -> torch.Tensor:
        hidden_ND = hidden_ND + block.self_attn.o_proj(attention_ND)
        normed = rms_norm(hidden_ND, hidden_ND.shape[1:], block.post_attention_layernorm.weight, self.epsilon)
        mlp = block.mlp
        result: torch.Tensor = hidden_ND + mlp.down_proj(swiglu(mlp.gate_proj(normed), mlp.up_proj(normed)))
        return result

    def final_norm(self, hidden_ND: torch.Tensor) -> torch.Tensor:
        return rms_norm(hidden_ND, hidden_ND.shape[1:], self.body.norm.weight, self.epsilon)


class Gpt2Forward(FastForward):
    """LayerNorm, learned positions, one projection for query, key and value, and GELU."""

    def __init__(self, body: Any) -> None:
        super().__init__(body)
        config = body.config
        self.blocks, self.heads = self.body.h, int(config.num_attention_heads)
        self.width = int(config.hidden_size) // self.heads
        self.scale = self.width**-0.5 if config.scale_attn_weights else 1.0

    def embed(self, ids_N: torch.Tensor, positions_N: torch.Tensor) -> torch.Tensor:
        embedding = nn.functional.embedding
        return embedding(ids_N, self.body.wte.weight, self.body.wte.padding_idx) + embedding(
            positions_N, self.body.wpe.weight
        )

    def attention_norm(self, block: Any, hidden_ND: torch.Tensor) -> torch.Tensor:
        return _layer_norm(block.ln_1, hidden_ND)

    def query(self, block: Any, normed_ND: torch.Tensor, rotary: Any) -> torch.Tensor:
        joint, size = block.attn.c_attn, self.heads * self.width
        queries = torch.addmm(joint.bias[:size], normed_ND, joint.weight[:, :size])
        return queries.view(len(normed_ND), self.heads, 1, self.width)

    def key_value(self, block: Any, normed_ND: torch.Tensor, rotary: Any) -> tuple[torch.Tensor, torch.Tensor]:
        joint, size = block.attn.c_attn, self.heads * self.width
        both = torch.addmm(joint.bias[size:], normed_ND, joint.weight[:, size:])
        keys, values = both.view(len(normed_ND), 2, self.heads, self.width).unbind(1)
        return keys, values

    def finish_block(self, block: Any, hidden_ND: torch.Tensor, attention_ND: torch.Tensor) -> torch.Tensor:
        hidden_ND = hidden_ND + _conv1d(block.attn.c_proj, attention_ND)
        inner = _conv1d(block.mlp.c_fc, _layer_norm(block.ln_2, hidden_ND))
        inner = gelu(inner, approximate="tanh") if inner.is_cuda else gelu_tanh(inner)
        return hidden_ND + _conv1d(block.mlp.c_proj, inner)

    def final_norm(self, hidden_ND: torch.Tensor) -> torch.Tensor:
        return _layer_norm(self.body.ln_f, hidden_ND)


def _layer_norm(norm: Any, x_ND: torch.Tensor) -> torch.Tensor:
    return layer_norm(x_ND, x_ND.shape[1:], norm.weight, norm.bias, norm.eps)


def _conv1d(layer: Any, x_ND: torch.Tensor) -> torch.Tensor:
    return torch.addmm(layer.bias, x_ND, layer.weight)
