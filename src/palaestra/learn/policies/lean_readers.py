"""The two most common shapes of language models, spelled out for learning on a CPU.

There a pass is bound by its arithmetic, and this does no more of it than it must: nothing is padded in the matrix
products, a prompt that several responses share is read once, and of the last layer a prompt needs no more than its
keys, its values and its last position. Gradients flow through all of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import layer_norm, linear, rms_norm, scaled_dot_product_attention, silu

from palaestra.engines.lean import known_shape
from palaestra.learn.kernels import gelu_tanh
from palaestra.learn.policies.readers import Reading, distinct
from palaestra.learn.rollouts import TokenInputs


def lean_reader(model: Any) -> LeanReader | None:
    """The lean reader of a causal language model or of its body, or `None` where there is none for it."""
    shape = known_shape(model)
    return {"llama": LlamaReader, "gpt2": Gpt2Reader}[shape](model) if shape else None


class LeanReader(ABC):
    """Responses and their prompts without padding, spelled out.

    Arguments:
        model: a causal language model, or its body alone, whose own parameters are used.
    """

    heads: int
    """Heads with keys of their own."""
    width: int
    """Numbers of a head."""
    scale: float
    blocks: Sequence[Any]

    def __init__(self, model: Any) -> None:
        self.model, self.body = model, model.base_model
        self.output = model.get_output_embeddings() if model is not model.base_model else None

    @abstractmethod
    def embed(self, ids_N: torch.Tensor, positions_N: torch.Tensor) -> torch.Tensor:
        """The first hidden states."""

    @abstractmethod
    def enter(self, block: Any, hidden_ND: torch.Tensor) -> torch.Tensor:
        """What the attention of a block reads: hidden states, normed."""

    @abstractmethod
    def query(self, block: Any, normed_ND: torch.Tensor, turn: Any) -> torch.Tensor:
        """Queries `[N, heads, queries a head, width]`."""

    @abstractmethod
    def key_value(self, block: Any, normed_ND: torch.Tensor, turn: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values `[N, heads, width]`."""

    @abstractmethod
    def leave(self, block: Any, hidden_ND: torch.Tensor, mixed_ND: torch.Tensor) -> torch.Tensor:
        """Behind the block, from what was before it and what its attention found."""

    @abstractmethod
    def finish(self, hidden_ND: torch.Tensor) -> torch.Tensor:
        """The last norm."""

    def turns(self, positions_N: torch.Tensor) -> Any:
        """Whatever a position does to queries and keys; something that `_rows` can index, or `None`."""
        return None

    def read(
        self,
        inputs: TokenInputs,
        sequences: Sequence[int],
        width: int,
        hidden: bool,
        logits: bool,
        behind: bool = False,
    ) -> Reading:
        """Behind the prompt and behind each token of the responses, but for the last one unless `behind`."""
        layout = _Layout(inputs, sequences, width, behind)
        hidden_UD, hidden_RD = self._body(layout)
        hidden_ND = torch.cat([hidden_UD.index_select(0, layout.source_B), hidden_RD])
        logits_NV = None
        if logits and self.output is not None:
            logits_NV = linear(hidden_ND, self.output.weight, self.output.bias)
        return Reading(hidden_ND if hidden else None, logits_NV, layout.rows_N)

    def _body(self, layout: _Layout) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden states behind each distinct prompt, and behind each token of the responses."""
        hidden = self.embed(layout.ids_N, layout.positions_N)
        turn = self.turns(layout.positions_N)
        parts = [layout.prompt_tokens, layout.response_tokens]
        last = len(self.blocks) - 1
        for k, block in enumerate(self.blocks):
            normed = self.enter(block, hidden)
            keys, values = self.key_value(block, normed, turn)
            asking, asking_turn = normed, turn
            if k == last:
                # From here on only the last position of a prompt is asked for anything.
                hidden, asking = layout.needed(hidden), layout.needed(normed)
                asking_turn = None if turn is None else tuple(layout.needed(one) for one in turn)
                parts = [layout.prompts, layout.response_tokens]
            queries = self.query(block, asking, asking_turn)
            mixed = self._attend(layout, torch.split(queries, parts), keys, values, only_last=k == last)
            hidden = self.leave(block, hidden, mixed)
        found_UD, found_RD = torch.split(self.finish(hidden), parts)
        return found_UD, found_RD

    def _attend(
        self,
        layout: _Layout,
        queries: Sequence[torch.Tensor],
        keys: torch.Tensor,
        values: torch.Tensor,
        only_last: bool,
    ) -> torch.Tensor:
        both = [layout.prompt_tokens, layout.response_tokens]
        (prompt_keys, response_keys), (prompt_values, response_values) = (
            torch.split(keys, both),
            torch.split(values, both),
        )
        keys_UP, values_UP = layout.prompt_pad(prompt_keys), layout.prompt_pad(prompt_values)
        if only_last:
            mixed = [self._ask(queries[0][:, None], keys_UP, values_UP, layout.prompt_mask)[:, 0]]
        else:
            queries_UP = layout.prompt_pad(queries[0])
            mixed = [layout.prompt_unpad(self._ask(queries_UP, keys_UP, values_UP, None))]
        if layout.response_tokens:
            source = layout.source_B
            keys_BL = torch.cat([keys_UP.index_select(0, source), layout.response_pad(response_keys)], 1)
            values_BL = torch.cat([values_UP.index_select(0, source), layout.response_pad(response_values)], 1)
            queries_BR = layout.response_pad(queries[1])
            mixed.append(layout.response_unpad(self._ask(queries_BR, keys_BL, values_BL, layout.response_mask)))
        else:
            mixed.append(queries[1].flatten(1))
        return torch.cat(mixed)

    def _ask(
        self, queries_BQHGD: torch.Tensor, keys_BLHD: torch.Tensor, values_BLHD: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Attention over padded sequences; heads that share keys are asked as one head with several queries.

        Without a mask a query of many sees what stands before it, and a single one sees everything.
        """
        count, asked, heads, group, width = queries_BQHGD.shape
        if group == 1:
            queries = queries_BQHGD[:, :, :, 0].transpose(1, 2)
        else:
            queries = queries_BQHGD.permute(0, 2, 3, 1, 4).reshape(count, heads, group * asked, width)
            if mask is None and asked > 1:
                mask = _causal(asked, queries.device)
            if mask is not None:
                mask = mask.repeat(1, 1, group, 1)
        mixed = scaled_dot_product_attention(
            queries, keys_BLHD.transpose(1, 2), values_BLHD.transpose(1, 2), attn_mask=mask, scale=self.scale,
            is_causal=mask is None and asked > 1,
        )  # fmt: skip
        if group == 1:
            return mixed.transpose(1, 2).reshape(count, asked, heads * width)
        mixed = mixed.view(count, heads, group, asked, width).permute(0, 3, 1, 2, 4)
        return mixed.reshape(count, asked, heads * group * width)


class LlamaReader(LeanReader):
    """RMSNorm, rotary positions, grouped heads, SwiGLU; with or without biases."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        config = self.body.config
        self.blocks, self.epsilon = self.body.layers, float(config.rms_norm_eps)
        self.heads = int(config.num_key_value_heads)
        self.group = int(config.num_attention_heads) // self.heads
        self.width = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
        self.scale = self.width**-0.5

    def embed(self, ids_N: torch.Tensor, positions_N: torch.Tensor) -> torch.Tensor:
        return nn.functional.embedding(ids_N, self.body.embed_tokens.weight)

    def turns(self, positions_N: torch.Tensor) -> Any:
        example = torch.zeros(1, dtype=self.body.embed_tokens.weight.dtype, device=positions_N.device)
        cos, sin = self.body.rotary_emb(example, positions_N[None])
        return cos[0], sin[0]

    def enter(self, block: Any, hidden_ND: torch.Tensor) -> torch.Tensor:
        return rms_norm(hidden_ND, hidden_ND.shape[1:], block.input_layernorm.weight, self.epsilon)

    def query(self, block: Any, normed_ND: torch.Tensor, turn: Any) -> torch.Tensor:
        found = block.self_attn.q_proj(normed_ND).view(len(normed_ND), self.heads, self.group, self.width)
        return _turned(found, turn[0][:, None, None], turn[1][:, None, None])

    def key_value(self, block: Any, normed_ND: torch.Tensor, turn: Any) -> tuple[torch.Tensor, torch.Tensor]:
        keys = block.self_attn.k_proj(normed_ND).view(len(normed_ND), self.heads, self.width)
        values = block.self_attn.v_proj(normed_ND).view(len(normed_ND), self.heads, self.width)
        return _turned(keys, turn[0][:, None], turn[1][:, None]), values

    def leave(self, block: Any, hidden_ND: torch.Tensor, mixed_ND: torch.Tensor) -> torch.Tensor:
        hidden_ND = hidden_ND + block.self_attn.o_proj(mixed_ND)
        normed = rms_norm(hidden_ND, hidden_ND.shape[1:], block.post_attention_layernorm.weight, self.epsilon)
        mlp = block.mlp
        result: torch.Tensor = hidden_ND + mlp.down_proj(silu(mlp.gate_proj(normed)) * mlp.up_proj(normed))
        return result

    def finish(self, hidden_ND: torch.Tensor) -> torch.Tensor:
        return rms_norm(hidden_ND, hidden_ND.shape[1:], self.body.norm.weight, self.epsilon)


class Gpt2Reader(LeanReader):
    """LayerNorm, learned positions, one projection for query, key and value, GELU."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        config = self.body.config
        self.blocks, self.heads = self.body.h, int(config.num_attention_heads)
        self.width = int(config.hidden_size) // self.heads
        self.scale = self.width**-0.5 if config.scale_attn_weights else 1.0

    def embed(self, ids_N: torch.Tensor, positions_N: torch.Tensor) -> torch.Tensor:
        embedding = nn.functional.embedding
        return embedding(ids_N, self.body.wte.weight) + embedding(positions_N, self.body.wpe.weight)

    def enter(self, block: Any, hidden_ND: torch.Tensor) -> torch.Tensor:
        return _layer_norm(block.ln_1, hidden_ND)

    def query(self, block: Any, normed_ND: torch.Tensor, turn: Any) -> torch.Tensor:
        joint, size = block.attn.c_attn, self.heads * self.width
        found = torch.addmm(joint.bias[:size], normed_ND, joint.weight[:, :size])
        return found.view(len(normed_ND), self.heads, 1, self.width)

    def key_value(self, block: Any, normed_ND: torch.Tensor, turn: Any) -> tuple[torch.Tensor, torch.Tensor]:
        joint, size = block.attn.c_attn, self.heads * self.width
        both = torch.addmm(joint.bias[size:], normed_ND, joint.weight[:, size:])
        keys, values = both.view(len(normed_ND), 2, self.heads, self.width).unbind(1)
        return keys, values

    def leave(self, block: Any, hidden_ND: torch.Tensor, mixed_ND: torch.Tensor) -> torch.Tensor:
        hidden_ND = hidden_ND + _conv1d(block.attn.c_proj, mixed_ND)
        inner = gelu_tanh(_conv1d(block.mlp.c_fc, _layer_norm(block.ln_2, hidden_ND)))
        return hidden_ND + _conv1d(block.mlp.c_proj, inner)

    def finish(self, hidden_ND: torch.Tensor) -> torch.Tensor:
        return _layer_norm(self.body.ln_f, hidden_ND)


class _Layout:
    """Where the tokens of some sequences lie: distinct prompts one behind the other, then the responses."""

    def __init__(self, inputs: TokenInputs, sequences: Sequence[int], width: int, behind: bool) -> None:
        unique, source = distinct(inputs, sequences)
        fed = [
            inputs.responses[sequence][: min(len(inputs.responses[sequence]) + behind, width) - 1]
            for sequence in sequences
        ]
        before, sizes = [len(p) for p in unique], [len(r) for r in fed]
        self.prompts, self.prompt_tokens, self.response_tokens = len(unique), sum(before), sum(sizes)
        self.ids_N = torch.tensor([*chain.from_iterable(unique), *chain.from_iterable(fed)])
        starts = [np.arange(n) for n in before]
        starts += [np.arange(before[u], before[u] + n) for u, n in zip(source, sizes, strict=True)]
        self.positions_N = torch.from_numpy(np.concatenate(starts))
        self.source_B = torch.tensor(source)
        self._prompt_last_U = torch.from_numpy(np.cumsum(before) - 1)
        longest, most = max(before), max(sizes)
        self._prompt_shape, self._prompt_rows = (len(unique), longest), _rows(before, longest)
        self._response_shape, self._response_rows = (len(sequences), most), _rows(sizes, most)
        firsts = np.arange(len(sequences)) * width
        behind_each = [first + 1 + np.arange(n) for first, n in zip(firsts, sizes, strict=True)]
        self.rows_N = torch.from_numpy(np.concatenate([firsts, *behind_each]))
        self.prompt_mask, self.response_mask = self._masks(before, source, longest, most)

    def _masks(
        self, before: list[int], source: list[int], longest: int, most: int
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Where prompts differ in length, what is not there is hidden; a response sees its prompt and its past."""
        causal_11RR = _causal(most, self.ids_N.device)
        if self._prompt_rows is None:
            return None, torch.cat([torch.zeros(1, 1, most, longest), causal_11RR], -1)
        there_UP = torch.arange(longest)[None] < torch.tensor(before)[:, None]
        hidden_U11P = torch.zeros(len(before), 1, 1, longest).masked_fill(~there_UP[:, None, None], float("-inf"))
        hidden_B1RP = hidden_U11P[self.source_B].expand(-1, -1, most, -1)
        return hidden_U11P, torch.cat([hidden_B1RP, causal_11RR.expand(len(source), -1, -1, -1)], -1)

    def needed(self, x_N: torch.Tensor) -> torch.Tensor:
        """The last position of each prompt, and the responses."""
        prompts, responses = torch.split(x_N, [self.prompt_tokens, self.response_tokens])
        return torch.cat([prompts.index_select(0, self._prompt_last_U), responses])

    def prompt_pad(self, x_N: torch.Tensor) -> torch.Tensor:
        return _pad(x_N, self._prompt_rows, self._prompt_shape)

    def prompt_unpad(self, x_UP: torch.Tensor) -> torch.Tensor:
        return _unpad(x_UP, self._prompt_rows)

    def response_pad(self, x_N: torch.Tensor) -> torch.Tensor:
        return _pad(x_N, self._response_rows, self._response_shape)

    def response_unpad(self, x_BR: torch.Tensor) -> torch.Tensor:
        return _unpad(x_BR, self._response_rows)


class _Scatter(torch.autograd.Function):
    """Rows to their places in a larger table; every place is taken once, so the way back is a selection."""

    @staticmethod
    def forward(ctx: Any, x_NF: torch.Tensor, rows_N: torch.Tensor, size: int) -> torch.Tensor:
        ctx.save_for_backward(rows_N)
        return x_NF.new_zeros(size, x_NF.shape[1]).index_copy_(0, rows_N, x_NF)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (rows_N,) = ctx.saved_tensors
        return grads[0].index_select(0, rows_N), None, None


class _Gather(torch.autograd.Function):
    """The other way round."""

    @staticmethod
    def forward(ctx: Any, x_MF: torch.Tensor, rows_N: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(rows_N)
        ctx.size = len(x_MF)
        return x_MF.index_select(0, rows_N)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (rows_N,) = ctx.saved_tensors
        return grads[0].new_zeros(ctx.size, grads[0].shape[1]).index_copy_(0, rows_N, grads[0]), None


def _pad(x_N: torch.Tensor, rows_N: torch.Tensor | None, shape: tuple[int, int]) -> torch.Tensor:
    if rows_N is None:
        return x_N.view(*shape, *x_N.shape[1:])
    flat: torch.Tensor = _Scatter.apply(x_N.flatten(1), rows_N, shape[0] * shape[1])  # type: ignore[no-untyped-call]
    return flat.view(*shape, *x_N.shape[1:])


def _unpad(x_BL: torch.Tensor, rows_N: torch.Tensor | None) -> torch.Tensor:
    flat = x_BL.flatten(0, 1)
    if rows_N is None:
        return flat
    found: torch.Tensor = _Gather.apply(flat, rows_N)  # type: ignore[no-untyped-call]
    return found


def _rows(lengths: list[int], width: int) -> torch.Tensor | None:
    """Where packed rows stand in a padded table; `None` where nothing is padded."""
    if min(lengths) == width:
        return None
    return torch.from_numpy(np.concatenate([k * width + np.arange(n) for k, n in enumerate(lengths)]))


def _causal(width: int, device: torch.device) -> torch.Tensor:
    return torch.full((1, 1, width, width), float("-inf"), device=device).triu(1)


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


def _layer_norm(norm: Any, x_ND: torch.Tensor) -> torch.Tensor:
    return layer_norm(x_ND, x_ND.shape[1:], norm.weight, norm.bias, norm.eps)


def _conv1d(layer: Any, x_ND: torch.Tensor) -> torch.Tensor:
    return torch.addmm(layer.bias, x_ND, layer.weight)
