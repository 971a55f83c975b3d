"""The packed pass: sequences of several lengths in one row, without padding."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn
from torch.nn.functional import gelu, layer_norm, rms_norm, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from palaestra.kernels.cpu import gelu_tanh
from palaestra.kernels.gpu.attention import SegmentLengths, attend_packed
from palaestra.kernels.operations import gather_rows, rotate, swiglu
from palaestra.models.families import adapts_projections_only, find_architecture, unwrap_adapter

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.modeling_layers import GradientCheckpointingLayer
    from transformers.pytorch_utils import Conv1D

TokenIds = tuple[int, ...]
Rotary = tuple[torch.Tensor, ...]


class _Layout:
    """The layout of the tokens of a batch: all distinct prompts, then all responses."""

    def __init__(
        self,
        prompts: Sequence[TokenIds],
        responses: Sequence[TokenIds],
        width: int,
        include_end: bool,
        device: torch.device,
    ) -> None:
        unique: dict[TokenIds, int] = {}
        self.source = [unique.setdefault(prompt, len(unique)) for prompt in prompts]
        inputs = [ids[: min(len(ids) + include_end, width) - 1] for ids in responses]
        self.prompt_lengths, self.response_lengths = [len(ids) for ids in unique], [len(ids) for ids in inputs]
        self.prompts = len(unique)
        self.prompt_tokens, self.response_tokens = sum(self.prompt_lengths), sum(self.response_lengths)
        self.ids_N = torch.tensor([*chain.from_iterable(unique), *chain.from_iterable(inputs)]).to(device)
        positions = [np.arange(n) for n in self.prompt_lengths]
        positions += [
            self.prompt_lengths[u] + np.arange(n) for u, n in zip(self.source, self.response_lengths, strict=True)
        ]
        self.positions_N = torch.from_numpy(np.concatenate(positions)).to(device)
        self.source_B = torch.tensor(self.source).to(device)
        self._prompt_last_U = torch.from_numpy(np.cumsum(self.prompt_lengths) - 1).to(device)
        starts = np.arange(len(responses)) * width
        following = [start + 1 + np.arange(n) for start, n in zip(starts, self.response_lengths, strict=True)]
        self.rows_N = torch.from_numpy(np.concatenate([starts, *following])).to(device)

    def drop_prompts(self, x_N: torch.Tensor) -> torch.Tensor:
        """Keep the last position of each prompt, and the responses."""
        prompts, responses = torch.split(x_N, [self.prompt_tokens, self.response_tokens])
        return torch.cat([prompts.index_select(0, self._prompt_last_U), responses])


class _PackedAttention:
    """Attention of the prompts and responses in a layout, without padding.

    Arguments:
        scale: of the products of queries and keys.
    """

    def __init__(self, layout: _Layout, scale: float) -> None:
        self.scale = scale
        prompts, responses, source = layout.prompt_lengths, layout.response_lengths, layout.source
        present = [k for k, length in enumerate(responses) if length]
        own = [responses[k] for k in present]
        prompt_starts = np.cumsum([0, *prompts])
        response_starts = layout.prompt_tokens + np.cumsum([0, *responses])
        rows = [np.arange(layout.prompt_tokens)]
        for k in present:
            first = prompt_starts[source[k]]
            rows += [first + np.arange(prompts[source[k]]), response_starts[k] + np.arange(responses[k])]
        device = layout.ids_N.device
        self._rows_M = torch.from_numpy(np.concatenate(rows)).to(device)
        keys = [*prompts, *(prompts[source[k]] + responses[k] for k in present)]
        self._every = SegmentLengths.make([*prompts, *own], keys, device)
        self._last = SegmentLengths.make([*[1] * len(prompts), *own], keys, device)

    def __call__(
        self, queries_NHGD: torch.Tensor, keys_NHD: torch.Tensor, values_NHD: torch.Tensor, last_only: bool = False
    ) -> torch.Tensor:
        """Return `[queries, heads * group * width]`.

        Arguments:
            queries_NHGD: the queries of all tokens, with the query heads that share keys on an axis of their own.
            last_only: a prompt has only one query, of its last token.
        """
        keys_MHD, values_MHD = gather_rows(keys_NHD, self._rows_M), gather_rows(values_NHD, self._rows_M)
        segments = self._last if last_only else self._every
        return attend_packed(queries_NHGD.flatten(1, 2), keys_MHD, values_MHD, segments, self.scale).flatten(1)


class _PaddedAttention:
    """The same as `_PackedAttention`, over prompts and responses that are padded to tables."""

    def __init__(self, layout: _Layout, scale: float) -> None:
        self.layout, self.scale = layout, scale
        device = layout.ids_N.device
        self.prompts, self.responses = (
            _Padding(lengths, device) for lengths in (layout.prompt_lengths, layout.response_lengths)
        )
        max_prompt, max_response = self.prompts.shape[1], self.responses.shape[1]
        causal_11RR = _causal_mask(max_response, device)
        self._prompt_mask: torch.Tensor | None = None
        if self.prompts.rows_N is None:
            nothing = torch.zeros(1, 1, max_response, max_prompt, device=device)
            self._response_mask = torch.cat([nothing, causal_11RR], -1)
        else:
            length_U1 = torch.tensor(layout.prompt_lengths, device=device)[:, None]
            is_token_UP = torch.arange(max_prompt, device=device)[None] < length_U1
            padding_U11P = torch.zeros(layout.prompts, 1, 1, max_prompt, device=device)
            self._prompt_mask = padding_U11P.masked_fill(~is_token_UP[:, None, None], float("-inf"))
            padding_B1RP = self._prompt_mask[layout.source_B].expand(-1, -1, max_response, -1)
            causal_B1RR = causal_11RR.expand(len(layout.source_B), -1, -1, -1)
            self._response_mask = torch.cat([padding_B1RP, causal_B1RR], -1)

    def __call__(
        self, queries_NHGD: torch.Tensor, keys_NHD: torch.Tensor, values_NHD: torch.Tensor, last_only: bool = False
    ) -> torch.Tensor:
        layout = self.layout
        sizes = [layout.prompt_tokens, layout.response_tokens]
        queries = torch.split(queries_NHGD, [layout.prompts if last_only else sizes[0], sizes[1]])
        prompt_keys, response_keys = torch.split(keys_NHD, sizes)
        prompt_values, response_values = torch.split(values_NHD, sizes)
        keys_UP, values_UP = self.prompts.pad(prompt_keys), self.prompts.pad(prompt_values)
        if last_only:
            outputs = [self._attend(queries[0][:, None], keys_UP, values_UP, self._prompt_mask)[:, 0]]
        else:
            outputs = [self.prompts.unpad(self._attend(self.prompts.pad(queries[0]), keys_UP, values_UP, None))]
        if layout.response_tokens:
            source = layout.source_B
            keys_BL = torch.cat([keys_UP.index_select(0, source), self.responses.pad(response_keys)], 1)
            values_BL = torch.cat([values_UP.index_select(0, source), self.responses.pad(response_values)], 1)
            attention_BR = self._attend(self.responses.pad(queries[1]), keys_BL, values_BL, self._response_mask)
            outputs.append(self.responses.unpad(attention_BR))
        else:
            outputs.append(queries[1].flatten(1))
        return torch.cat(outputs)

    def _attend(
        self, queries_BQHGD: torch.Tensor, keys_BLHD: torch.Tensor, values_BLHD: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Attention over padded sequences. Query heads that share keys are computed as one head with several queries.

        Without a mask attention is causal; a single query attends to all keys.
        """
        count, length, heads, group, width = queries_BQHGD.shape
        if group == 1:
            queries = queries_BQHGD[:, :, :, 0].transpose(1, 2)
        else:
            queries = queries_BQHGD.permute(0, 2, 3, 1, 4).reshape(count, heads, group * length, width)
            if mask is None and length > 1:
                mask = _causal_mask(length, queries.device)
            if mask is not None:
                mask = mask.repeat(1, 1, group, 1)
        keys_BHLD, values_BHLD, causal = (
            keys_BLHD.transpose(1, 2),
            values_BLHD.transpose(1, 2),
            mask is None and length > 1,
        )
        output = scaled_dot_product_attention(
            queries, keys_BHLD, values_BHLD, attn_mask=mask, scale=self.scale, is_causal=causal
        )
        if group == 1:
            return output.transpose(1, 2).reshape(count, length, heads * width)
        output = output.view(count, heads, group, length, width).permute(0, 3, 1, 2, 4)
        return output.reshape(count, length, heads * group * width)


class _Padding:
    """Pads concatenated sequences to a table `[sequences, longest]`, and removes the padding again.

    `rows_N` are the rows of the flattened table that contain tokens; `None` if nothing is padded.
    """

    def __init__(self, lengths: list[int], device: torch.device) -> None:
        width = max(lengths)
        self.shape, self.rows_N = (len(lengths), width), None
        if min(lengths) < width:
            rows = [k * width + np.arange(n) for k, n in enumerate(lengths)]
            self.rows_N = torch.from_numpy(np.concatenate(rows)).to(device)

    def pad(self, x_N: torch.Tensor) -> torch.Tensor:
        if self.rows_N is not None:
            table = x_N.new_zeros(self.shape[0] * self.shape[1], *x_N.shape[1:])
            x_N = table.index_copy_(0, self.rows_N, x_N)
        return x_N.view(*self.shape, *x_N.shape[1:])

    def unpad(self, x_BL: torch.Tensor) -> torch.Tensor:
        flat = x_BL.flatten(0, 1)
        if self.rows_N is not None:
            flat = gather_rows(flat, self.rows_N)
        return flat


def _causal_mask(width: int, device: torch.device) -> torch.Tensor:
    return torch.full((1, 1, width, width), float("-inf"), device=device).triu(1)


_Attend = _PackedAttention | _PaddedAttention


def make_fast_forward(model: PreTrainedModel) -> FastForward | None:
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
    return (LlamaForward if architecture == "llama" else _Gpt2Forward)(inner.base_model)


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
    blocks: Sequence[GradientCheckpointingLayer]

    def __init__(self, body: PreTrainedModel) -> None:
        self.body = body
        self.packs_attention = body.device.type == "cuda"
        """Whether attention computes packed sequences instead of padded ones."""
        self.recomputes = False
        """Whether the backward pass computes each block again, instead of keeping its intermediate results."""

    @abstractmethod
    def embed(self, ids_N: torch.Tensor, positions_N: torch.Tensor) -> torch.Tensor:
        """The input of the first block."""

    @abstractmethod
    def attention_norm(self, block: GradientCheckpointingLayer, hidden_ND: torch.Tensor) -> torch.Tensor:
        """Normalize the input of a block's attention."""

    @abstractmethod
    def query(self, block: GradientCheckpointingLayer, normed_ND: torch.Tensor, rotary: Rotary) -> torch.Tensor:
        """Queries `[N, heads, queries per head, width]`."""

    @abstractmethod
    def key_value(
        self, block: GradientCheckpointingLayer, normed_ND: torch.Tensor, rotary: Rotary
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values `[N, heads, width]`."""

    @abstractmethod
    def finish_block(
        self, block: GradientCheckpointingLayer, hidden_ND: torch.Tensor, attention_ND: torch.Tensor
    ) -> torch.Tensor:
        """The output of a block, from its input and the result of its attention: projection, residuals and MLP."""

    @abstractmethod
    def final_norm(self, hidden_ND: torch.Tensor) -> torch.Tensor:
        """The norm before the output layer."""

    def rotary(self, positions_N: torch.Tensor) -> Rotary:
        """Cosines and sines of rotary positions; empty for an architecture without them."""
        return ()

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
        layout = _Layout(prompts, responses, width, include_end, self.body.device)
        attend: _Attend = (_PackedAttention if self.packs_attention else _PaddedAttention)(layout, self.scale)
        hidden_UD, hidden_RD = self._run_blocks(layout, attend)
        return torch.cat([hidden_UD.index_select(0, layout.source_B), hidden_RD]), layout.rows_N

    def _run_blocks(self, layout: _Layout, attend: _Attend) -> tuple[torch.Tensor, torch.Tensor]:
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

    def _run_block(
        self, block: GradientCheckpointingLayer, hidden: torch.Tensor, rotary: Rotary, attend: _Attend
    ) -> torch.Tensor:
        normed = self.attention_norm(block, hidden)
        keys, values = self.key_value(block, normed, rotary)
        attention = attend(self.query(block, normed, rotary), keys, values)
        return self.finish_block(block, hidden, attention)

    def _run_last_block(
        self, layout: _Layout, block: GradientCheckpointingLayer, hidden: torch.Tensor, rotary: Rotary, attend: _Attend
    ) -> torch.Tensor:
        normed = self.attention_norm(block, hidden)
        keys, values = self.key_value(block, normed, rotary)
        # From here on a prompt needs only its last position.
        hidden, normed = layout.drop_prompts(hidden), layout.drop_prompts(normed)
        rotary = tuple(layout.drop_prompts(angles) for angles in rotary)
        attention = attend(self.query(block, normed, rotary), keys, values, last_only=True)
        return self.finish_block(block, hidden, attention)


class LlamaForward(FastForward):
    """RMSNorm, rotary positions, grouped-query attention and SwiGLU, with or without biases."""

    def __init__(self, body: PreTrainedModel) -> None:
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

    def rotary(self, positions_N: torch.Tensor) -> Rotary:
        example = torch.zeros(1, dtype=self.body.embed_tokens.weight.dtype, device=positions_N.device)
        cos, sin = self.body.rotary_emb(example, positions_N[None])
        return cos[0], sin[0]

    def attention_norm(self, block: GradientCheckpointingLayer, hidden_ND: torch.Tensor) -> torch.Tensor:
        return rms_norm(hidden_ND, hidden_ND.shape[1:], block.input_layernorm.weight, self.epsilon)

    def query(self, block: GradientCheckpointingLayer, normed_ND: torch.Tensor, rotary: Rotary) -> torch.Tensor:
        queries = block.self_attn.q_proj(normed_ND).view(len(normed_ND), self.heads * self.group, self.width)
        return rotate(queries, *rotary).view(len(normed_ND), self.heads, self.group, self.width)

    def key_value(
        self, block: GradientCheckpointingLayer, normed_ND: torch.Tensor, rotary: Rotary
    ) -> tuple[torch.Tensor, torch.Tensor]:
        keys = block.self_attn.k_proj(normed_ND).view(len(normed_ND), self.heads, self.width)
        values = block.self_attn.v_proj(normed_ND).view(len(normed_ND), self.heads, self.width)
        return rotate(keys, *rotary), values

    def finish_block(
        self, block: GradientCheckpointingLayer, hidden_ND: torch.Tensor, attention_ND: torch.Tensor
    ) -> torch.Tensor:
        hidden_ND = hidden_ND + block.self_attn.o_proj(attention_ND)
        normed = rms_norm(hidden_ND, hidden_ND.shape[1:], block.post_attention_layernorm.weight, self.epsilon)
        mlp = block.mlp
        result: torch.Tensor = hidden_ND + mlp.down_proj(swiglu(mlp.gate_proj(normed), mlp.up_proj(normed)))
        return result

    def final_norm(self, hidden_ND: torch.Tensor) -> torch.Tensor:
        return rms_norm(hidden_ND, hidden_ND.shape[1:], self.body.norm.weight, self.epsilon)


class _Gpt2Forward(FastForward):
    """LayerNorm, learned positions, one projection for query, key and value, and GELU."""

    def __init__(self, body: PreTrainedModel) -> None:
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

    def attention_norm(self, block: GradientCheckpointingLayer, hidden_ND: torch.Tensor) -> torch.Tensor:
        return _layer_norm(block.ln_1, hidden_ND)

    def query(self, block: GradientCheckpointingLayer, normed_ND: torch.Tensor, rotary: Rotary) -> torch.Tensor:
        joint, size = block.attn.c_attn, self.heads * self.width
        queries = torch.addmm(joint.bias[:size], normed_ND, joint.weight[:, :size])
        return queries.view(len(normed_ND), self.heads, 1, self.width)

    def key_value(
        self, block: GradientCheckpointingLayer, normed_ND: torch.Tensor, rotary: Rotary
    ) -> tuple[torch.Tensor, torch.Tensor]:
        joint, size = block.attn.c_attn, self.heads * self.width
        both = torch.addmm(joint.bias[size:], normed_ND, joint.weight[:, size:])
        keys, values = both.view(len(normed_ND), 2, self.heads, self.width).unbind(1)
        return keys, values

    def finish_block(
        self, block: GradientCheckpointingLayer, hidden_ND: torch.Tensor, attention_ND: torch.Tensor
    ) -> torch.Tensor:
        hidden_ND = hidden_ND + _conv1d(block.attn.c_proj, attention_ND)
        inner = _conv1d(block.mlp.c_fc, _layer_norm(block.ln_2, hidden_ND))
        inner = gelu(inner, approximate="tanh") if inner.is_cuda else gelu_tanh(inner)
        return hidden_ND + _conv1d(block.mlp.c_proj, inner)

    def final_norm(self, hidden_ND: torch.Tensor) -> torch.Tensor:
        return _layer_norm(self.body.ln_f, hidden_ND)


def _layer_norm(norm: nn.LayerNorm, x_ND: torch.Tensor) -> torch.Tensor:
    return layer_norm(x_ND, x_ND.shape[1:], norm.weight, norm.bias, norm.eps)


def _conv1d(layer: Conv1D, x_ND: torch.Tensor) -> torch.Tensor:
    return torch.addmm(layer.bias, x_ND, layer.weight)
