"""The forward pass of the Llama and GPT-2 architectures over prompts and responses, with gradients.

On a CPU a pass is compute-bound, so this one does as little arithmetic as possible. Matrix products contain no
padding. A prompt that several responses share is computed once. In the last layer a prompt needs only its keys, its
values and its last position.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import layer_norm, rms_norm, scaled_dot_product_attention, silu

from palaestra.engines.cpu import find_architecture
from palaestra.engines.cpu.kernels import gelu_tanh

TokenIds = tuple[int, ...]


def make_fast_forward(model: Any) -> FastForward | None:
    """The fast forward pass of a causal language model or its body, or `None` if there is none for its architecture."""
    architecture = find_architecture(model)
    if architecture is None:
        return None
    return LlamaForward(model.base_model) if architecture == "llama" else Gpt2Forward(model.base_model)


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
        layout = _Layout(prompts, responses, width, include_end)
        hidden_UD, hidden_RD = self._run_blocks(layout)
        return torch.cat([hidden_UD.index_select(0, layout.source_B), hidden_RD]), layout.rows_N

    def _run_blocks(self, layout: _Layout) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden states after each distinct prompt, and after each token of the responses."""
        hidden = self.embed(layout.ids_N, layout.positions_N)
        rotary = self.rotary(layout.positions_N)
        sizes = [layout.prompt_tokens, layout.response_tokens]
        last = len(self.blocks) - 1
        for k, block in enumerate(self.blocks):
            normed = self.attention_norm(block, hidden)
            keys, values = self.key_value(block, normed, rotary)
            query_input, query_rotary = normed, rotary
            if k == last:
                # From here on a prompt needs only its last position.
                hidden, query_input = layout.drop_prompts(hidden), layout.drop_prompts(normed)
                if rotary is not None:
                    query_rotary = (layout.drop_prompts(rotary[0]), layout.drop_prompts(rotary[1]))
                sizes = [layout.prompts, layout.response_tokens]
            queries = self.query(block, query_input, query_rotary)
            attention = self._attend(layout, torch.split(queries, sizes), keys, values, last_only=k == last)
            hidden = self.finish_block(block, hidden, attention)
        hidden_UD, hidden_RD = torch.split(self.final_norm(hidden), sizes)
        return hidden_UD, hidden_RD

    def _attend(
        self,
        layout: _Layout,
        queries: Sequence[torch.Tensor],
        keys: torch.Tensor,
        values: torch.Tensor,
        last_only: bool,
    ) -> torch.Tensor:
        sizes = [layout.prompt_tokens, layout.response_tokens]
        prompt_keys, response_keys = torch.split(keys, sizes)
        prompt_values, response_values = torch.split(values, sizes)
        keys_UP, values_UP = layout.prompt_padding.pad(prompt_keys), layout.prompt_padding.pad(prompt_values)
        if last_only:
            outputs = [self._attention(queries[0][:, None], keys_UP, values_UP, layout.prompt_mask)[:, 0]]
        else:
            queries_UP = layout.prompt_padding.pad(queries[0])
            outputs = [layout.prompt_padding.unpad(self._attention(queries_UP, keys_UP, values_UP, None))]
        if layout.response_tokens:
            source = layout.source_B
            keys_BL = torch.cat([keys_UP.index_select(0, source), layout.response_padding.pad(response_keys)], 1)
            values_BL = torch.cat([values_UP.index_select(0, source), layout.response_padding.pad(response_values)], 1)
            queries_BR = layout.response_padding.pad(queries[1])
            attention_BR = self._attention(queries_BR, keys_BL, values_BL, layout.response_mask)
            outputs.append(layout.response_padding.unpad(attention_BR))
        else:
            outputs.append(queries[1].flatten(1))
        return torch.cat(outputs)

    def _attention(
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
        output = scaled_dot_product_attention(
            queries, keys_BLHD.transpose(1, 2), values_BLHD.transpose(1, 2), attn_mask=mask, scale=self.scale,
            is_causal=mask is None and length > 1,
        )  # fmt: skip
        if group == 1:
            return output.transpose(1, 2).reshape(count, length, heads * width)
        output = output.view(count, heads, group, length, width).permute(0, 3, 1, 2, 4)
        return output.reshape(count, length, heads * group * width)


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
        return nn.functional.embedding(ids_N, self.body.embed_tokens.weight)

    def rotary(self, positions_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        example = torch.zeros(1, dtype=self.body.embed_tokens.weight.dtype, device=positions_N.device)
        cos, sin = self.body.rotary_emb(example, positions_N[None])
        return cos[0], sin[0]

    def attention_norm(self, block: Any, hidden_ND: torch.Tensor) -> torch.Tensor:
        return rms_norm(hidden_ND, hidden_ND.shape[1:], block.input_layernorm.weight, self.epsilon)

    def query(self, block: Any, normed_ND: torch.Tensor, rotary: Any) -> torch.Tensor:
        queries = block.self_attn.q_proj(normed_ND).view(len(normed_ND), self.heads, self.group, self.width)
        return _rotate(queries, rotary[0][:, None, None], rotary[1][:, None, None])

    def key_value(self, block: Any, normed_ND: torch.Tensor, rotary: Any) -> tuple[torch.Tensor, torch.Tensor]:
        keys = block.self_attn.k_proj(normed_ND).view(len(normed_ND), self.heads, self.width)
        values = block.self_attn.v_proj(normed_ND).view(len(normed_ND), self.heads, self.width)
        return _rotate(keys, rotary[0][:, None], rotary[1][:, None]), values

    def finish_block(self, block: Any, hidden_ND: torch.Tensor, attention_ND: torch.Tensor) -> torch.Tensor:
        hidden_ND = hidden_ND + block.self_attn.o_proj(attention_ND)
        normed = rms_norm(hidden_ND, hidden_ND.shape[1:], block.post_attention_layernorm.weight, self.epsilon)
        mlp = block.mlp
        result: torch.Tensor = hidden_ND + mlp.down_proj(silu(mlp.gate_proj(normed)) * mlp.up_proj(normed))
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
        return embedding(ids_N, self.body.wte.weight) + embedding(positions_N, self.body.wpe.weight)

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
        inner = gelu_tanh(_conv1d(block.mlp.c_fc, _layer_norm(block.ln_2, hidden_ND)))
        return hidden_ND + _conv1d(block.mlp.c_proj, inner)

    def final_norm(self, hidden_ND: torch.Tensor) -> torch.Tensor:
        return _layer_norm(self.body.ln_f, hidden_ND)


class _Layout:
    """The layout of the tokens of a batch: all distinct prompts, then all responses."""

    def __init__(
        self, prompts: Sequence[TokenIds], responses: Sequence[TokenIds], width: int, include_end: bool
    ) -> None:
        unique: dict[TokenIds, int] = {}
        source = [unique.setdefault(prompt, len(unique)) for prompt in prompts]
        inputs = [ids[: min(len(ids) + include_end, width) - 1] for ids in responses]
        prompt_lengths, response_lengths = [len(ids) for ids in unique], [len(ids) for ids in inputs]
        self.prompts, self.prompt_tokens, self.response_tokens = len(unique), sum(prompt_lengths), sum(response_lengths)
        self.ids_N = torch.tensor([*chain.from_iterable(unique), *chain.from_iterable(inputs)])
        positions = [np.arange(n) for n in prompt_lengths]
        positions += [prompt_lengths[u] + np.arange(n) for u, n in zip(source, response_lengths, strict=True)]
        self.positions_N = torch.from_numpy(np.concatenate(positions))
        self.source_B = torch.tensor(source)
        self._prompt_last_U = torch.from_numpy(np.cumsum(prompt_lengths) - 1)
        self.prompt_padding, self.response_padding = _Padding(prompt_lengths), _Padding(response_lengths)
        starts = np.arange(len(responses)) * width
        following = [start + 1 + np.arange(n) for start, n in zip(starts, response_lengths, strict=True)]
        self.rows_N = torch.from_numpy(np.concatenate([starts, *following]))
        self.prompt_mask, self.response_mask = self._masks(prompt_lengths)

    def _masks(self, prompt_lengths: list[int]) -> tuple[torch.Tensor | None, torch.Tensor]:
        """Additive attention masks of prompts (`None` if no prompt is padded) and of responses."""
        max_prompt, max_response = self.prompt_padding.shape[1], self.response_padding.shape[1]
        causal_11RR = _causal_mask(max_response, self.ids_N.device)
        if self.prompt_padding.rows_N is None:
            return None, torch.cat([torch.zeros(1, 1, max_response, max_prompt), causal_11RR], -1)
        is_token_UP = torch.arange(max_prompt)[None] < torch.tensor(prompt_lengths)[:, None]
        padding_U11P = torch.zeros(self.prompts, 1, 1, max_prompt)
        padding_U11P = padding_U11P.masked_fill(~is_token_UP[:, None, None], float("-inf"))
        padding_B1RP = padding_U11P[self.source_B].expand(-1, -1, max_response, -1)
        return padding_U11P, torch.cat([padding_B1RP, causal_11RR.expand(len(self.source_B), -1, -1, -1)], -1)

    def drop_prompts(self, x_N: torch.Tensor) -> torch.Tensor:
        """Keep the last position of each prompt, and the responses."""
        prompts, responses = torch.split(x_N, [self.prompt_tokens, self.response_tokens])
        return torch.cat([prompts.index_select(0, self._prompt_last_U), responses])


class _Padding:
    """Pads concatenated sequences to a table `[sequences, longest]`, and removes the padding again.

    `rows_N` are the rows of the flattened table that contain tokens; `None` if nothing is padded.
    """

    def __init__(self, lengths: list[int]) -> None:
        width = max(lengths)
        self.shape, self.rows_N = (len(lengths), width), None
        if min(lengths) < width:
            rows = [k * width + np.arange(n) for k, n in enumerate(lengths)]
            self.rows_N = torch.from_numpy(np.concatenate(rows))

    def pad(self, x_N: torch.Tensor) -> torch.Tensor:
        if self.rows_N is not None:
            size = self.shape[0] * self.shape[1]
            flat: torch.Tensor = _Scatter.apply(x_N.flatten(1), self.rows_N, size)  # type: ignore[no-untyped-call]
            return flat.view(*self.shape, *x_N.shape[1:])
        return x_N.view(*self.shape, *x_N.shape[1:])

    def unpad(self, x_BL: torch.Tensor) -> torch.Tensor:
        flat = x_BL.flatten(0, 1)
        if self.rows_N is not None:
            flat = _Gather.apply(flat, self.rows_N)  # type: ignore[no-untyped-call]
        return flat


class _Scatter(torch.autograd.Function):
    """Copy rows into a larger table. No two rows have the same target, so the backward pass is a selection."""

    @staticmethod
    def forward(ctx: Any, x_NF: torch.Tensor, rows_N: torch.Tensor, size: int) -> torch.Tensor:
        ctx.save_for_backward(rows_N)
        return x_NF.new_zeros(size, x_NF.shape[1]).index_copy_(0, rows_N, x_NF)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (rows_N,) = ctx.saved_tensors
        return grads[0].index_select(0, rows_N), None, None


class _Gather(torch.autograd.Function):
    """Select distinct rows of a table, so that the backward pass is a copy."""

    @staticmethod
    def forward(ctx: Any, x_MF: torch.Tensor, rows_N: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(rows_N)
        ctx.size = len(x_MF)
        return x_MF.index_select(0, rows_N)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (rows_N,) = ctx.saved_tensors
        return grads[0].new_zeros(ctx.size, grads[0].shape[1]).index_copy_(0, rows_N, grads[0]), None


def _causal_mask(width: int, device: torch.device) -> torch.Tensor:
    return torch.full((1, 1, width, width), float("-inf"), device=device).triu(1)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


def _layer_norm(norm: Any, x_ND: torch.Tensor) -> torch.Tensor:
    return layer_norm(x_ND, x_ND.shape[1:], norm.weight, norm.bias, norm.eps)


def _conv1d(layer: Any, x_ND: torch.Tensor) -> torch.Tensor:
    return torch.addmm(layer.bias, x_ND, layer.weight)
