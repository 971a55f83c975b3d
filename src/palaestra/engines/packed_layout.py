"""The layout of a batch of prompts and responses without padding, and attention in it.

On a GPU attention has no padding either. On a CPU one padded call is faster.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from palaestra.engines.gpu.attention import Segments, attend_packed, gather_rows

TokenIds = tuple[int, ...]


class Layout:
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


class Attention(ABC):
    """Attention of the prompts and responses in a layout.

    Arguments:
        scale: of the products of queries and keys.
    """

    def __init__(self, layout: Layout, scale: float) -> None:
        self.layout, self.scale = layout, scale

    @abstractmethod
    def __call__(
        self, queries_NHGD: torch.Tensor, keys_NHD: torch.Tensor, values_NHD: torch.Tensor, last_only: bool = False
    ) -> torch.Tensor:
        """Return `[queries, heads * group * width]`.

        Arguments:
            queries_NHGD: the queries of all tokens, with the query heads that share keys on an axis of their own.
            last_only: a prompt has only one query, of its last token.
        """


class PackedAttention(Attention):
    """Attention without padding."""

    def __init__(self, layout: Layout, scale: float) -> None:
        super().__init__(layout, scale)
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
        self._every = Segments.make([*prompts, *own], keys, device)
        self._last = Segments.make([*[1] * len(prompts), *own], keys, device)

    def __call__(
        self, queries_NHGD: torch.Tensor, keys_NHD: torch.Tensor, values_NHD: torch.Tensor, last_only: bool = False
    ) -> torch.Tensor:
        keys_MHD, values_MHD = gather_rows(keys_NHD, self._rows_M), gather_rows(values_NHD, self._rows_M)
        segments = self._last if last_only else self._every
        return attend_packed(queries_NHGD.flatten(1, 2), keys_MHD, values_MHD, segments, self.scale).flatten(1)


class PaddedAttention(Attention):
    """Attention over prompts and responses that are padded to tables."""

    def __init__(self, layout: Layout, scale: float) -> None:
        super().__init__(layout, scale)
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
        output = scaled_dot_product_attention(
            queries, keys_BLHD.transpose(1, 2), values_BLHD.transpose(1, 2), attn_mask=mask, scale=self.scale,
            is_causal=mask is None and length > 1,
        )  # fmt: skip
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
