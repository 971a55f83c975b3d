"""The packed pass: sequences of several lengths in one row, without padding."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from palaestra.kernels.decoder import Angles, Block, Decoder, Products, call_layers, describe
from palaestra.kernels.gpu.attention import SegmentLengths, attend, attend_packed, takes_flash
from palaestra.kernels.operations import gather_rows, rotate

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TokenIds = tuple[int, ...]


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
        self.longest = max(self.prompt_lengths[u] + n for u, n in zip(self.source, self.response_lengths, strict=True))
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
        window: the number of tokens to which attention reaches; 0 for all.
    """

    def __init__(self, layout: _Layout, window: int) -> None:
        self._window = window
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
        self,
        queries_NHGD: torch.Tensor,
        keys_NHD: torch.Tensor,
        values_NHD: torch.Tensor,
        block: Block,
        last_only: bool = False,
    ) -> torch.Tensor:
        """Return `[queries, heads * group * width]`.

        Arguments:
            queries_NHGD: the queries of all tokens, with the query heads that share keys on an axis of their own.
            last_only: a prompt has only one query, of its last token.
        """
        keys_MHD, values_MHD = gather_rows(keys_NHD, self._rows_M), gather_rows(values_NHD, self._rows_M)
        segments = self._last if last_only else self._every
        queries_NHD = queries_NHGD.flatten(1, 2)
        return attend_packed(queries_NHD, keys_MHD, values_MHD, segments, block.scale, self._window).flatten(1)


class _PaddedAttention:
    """The same as `_PackedAttention`, over prompts and responses that are padded to tables."""

    def __init__(self, layout: _Layout, window: int) -> None:
        self.layout = layout
        device = layout.ids_N.device
        self.prompts, self.responses = (
            _Padding(lengths, device) for lengths in (layout.prompt_lengths, layout.response_lengths)
        )
        place_P, place_R = (torch.arange(padding.shape[1], device=device) for padding in (self.prompts, self.responses))
        is_padded = self.prompts.rows_N is not None
        # Prompts of one length share a mask.
        length_U = torch.tensor(layout.prompt_lengths if is_padded else layout.prompt_lengths[:1], device=device)
        length_B = length_U[layout.source_B] if is_padded else length_U
        own_BR = length_B[:, None] + place_R
        own_UP = place_P.expand(len(length_U), -1).masked_fill(place_P >= length_U[:, None], _PADDING)
        keys_BP = own_UP[layout.source_B] if is_padded else own_UP
        self._response_mask = _mask_positions(own_BR, torch.cat([keys_BP, own_BR], 1), window)
        self._last_mask = _mask_positions(length_U[:, None] - 1, own_UP, window) if is_padded or window else None
        self._prompt_mask = _mask_positions(place_P[None], place_P[None], window) if window else None

    def __call__(
        self,
        queries_NHGD: torch.Tensor,
        keys_NHD: torch.Tensor,
        values_NHD: torch.Tensor,
        block: Block,
        last_only: bool = False,
    ) -> torch.Tensor:
        layout = self.layout
        sizes = [layout.prompt_tokens, layout.response_tokens]
        queries = torch.split(queries_NHGD, [layout.prompts if last_only else sizes[0], sizes[1]])
        prompt_keys, response_keys = torch.split(keys_NHD, sizes)
        prompt_values, response_values = torch.split(values_NHD, sizes)
        keys_UP, values_UP = self.prompts.pad(prompt_keys), self.prompts.pad(prompt_values)
        if last_only:
            outputs = [_attend(queries[0][:, None], keys_UP, values_UP, self._last_mask, block)[:, 0]]
        else:
            padded_UP = self.prompts.pad(queries[0])
            outputs = [self.prompts.unpad(_attend(padded_UP, keys_UP, values_UP, self._prompt_mask, block))]
        if layout.response_tokens:
            source = layout.source_B
            keys_BL = torch.cat([keys_UP.index_select(0, source), self.responses.pad(response_keys)], 1)
            values_BL = torch.cat([values_UP.index_select(0, source), self.responses.pad(response_values)], 1)
            attention_BR = _attend(self.responses.pad(queries[1]), keys_BL, values_BL, self._response_mask, block)
            outputs.append(self.responses.unpad(attention_BR))
        else:
            outputs.append(queries[1].flatten(1))
        return torch.cat(outputs)


_PADDING = 1 << 40
"""The position of padding, after all queries."""


def _mask_positions(queries_BQ: torch.Tensor, keys_BL: torch.Tensor, window: int) -> torch.Tensor:
    """The mask to add to scores: a query attends to keys up to its own position, within the window."""
    distance_B1QL = (queries_BQ[:, :, None] - keys_BL[:, None])[:, None]
    hidden_B1QL = distance_B1QL < 0
    if window:
        hidden_B1QL |= distance_B1QL >= window
    return torch.zeros(hidden_B1QL.shape, device=hidden_B1QL.device).masked_fill_(hidden_B1QL, float("-inf"))


def _attend(
    queries_BQHGD: torch.Tensor,
    keys_BLHD: torch.Tensor,
    values_BLHD: torch.Tensor,
    mask: torch.Tensor | None,
    block: Block,
) -> torch.Tensor:
    """Attention over padded sequences. Query heads that share keys are computed as one head with several queries.

    Without a mask attention is causal; a single query attends to all keys.
    """
    count, length, heads, group, width = queries_BQHGD.shape
    sinks_HQ = None if block.sinks_H is None else block.sinks_H.view(heads, group).repeat_interleave(length, 1)
    is_causal = mask is None and length > 1
    if is_causal and (group > 1 or block.softcap or sinks_HQ is not None):
        place_1Q = torch.arange(length, device=queries_BQHGD.device)[None]
        mask, is_causal = _mask_positions(place_1Q, place_1Q, 0), False
    if mask is not None and group > 1:
        mask = mask.repeat(1, 1, group, 1)
    queries = queries_BQHGD.permute(0, 2, 3, 1, 4).reshape(count, heads, group * length, width)
    keys, values = keys_BLHD.transpose(1, 2), values_BLHD.transpose(1, 2)
    output = attend(queries, keys, values, mask, block.scale, block.softcap, sinks_HQ, is_causal)
    return output.view(count, heads, group, length, width).permute(0, 3, 1, 2, 4).reshape(count, length, -1)


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


_Attend = _PackedAttention | _PaddedAttention


def make_fast_forward(model: PreTrainedModel) -> PackedForward | None:
    """The packed forward pass of a causal language model or its body, or `None` if there is none for it.

    Arguments:
        model: a model of transformers, or peft's wrapper of one.
    """
    if model.device.type != "cuda" and (model.device.type != "cpu" or model.dtype != torch.float32):
        return None  # Kernels of other dtypes are slow on CPUs.
    decoder = describe(model)
    return None if decoder is None else PackedForward(decoder)


class PackedForward:
    """The forward pass over prompts and responses, with the parameters and adapters of the model itself."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.blocks = [(block, Products(block, call_layers)) for block in decoder.blocks]
        body = decoder.body
        # Torch's kernels for packed sequences have no soft-capping and no sinks, and only FlashAttention has a window.
        takes_window = takes_flash(body.dtype, decoder.width)
        self.packs_attention = body.device.type == "cuda" and not any(
            block.softcap or block.sinks_H is not None or (block.window and not takes_window)
            for block in decoder.blocks
        )
        """Whether attention computes packed sequences instead of padded ones."""
        self.recomputes = False
        """Whether the backward pass computes each block again, instead of keeping its intermediate results."""

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
        layout = _Layout(prompts, responses, width, include_end, self.decoder.body.device)
        hidden_UD, hidden_RD = self._run_blocks(layout)
        return torch.cat([hidden_UD.index_select(0, layout.source_B), hidden_RD]), layout.rows_N

    def _run_blocks(self, layout: _Layout) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden states after each distinct prompt, and after each token of the responses."""
        decoder, kind = self.decoder, _PackedAttention if self.packs_attention else _PaddedAttention
        # A window as long as the longest sequence has no effect.
        windows = {w: w if w < layout.longest else 0 for w in {block.window for block in decoder.blocks}}
        by_window = {window: kind(layout, window) for window in set(windows.values())}
        hidden, angles = decoder.embed(layout.ids_N, layout.positions_N), decoder.compute_angles(layout.positions_N)
        for index, (block, products) in enumerate(self.blocks):
            is_last = index == len(self.blocks) - 1
            own = angles.get(block.rotation) if block.rotation is not None else None
            arguments = block, products, hidden, own, by_window[windows[block.window]], layout if is_last else None
            if self.recomputes and torch.is_grad_enabled() and not is_last:
                hidden = checkpoint(self._run_block, *arguments, use_reentrant=False)
            else:
                hidden = self._run_block(*arguments)
        hidden_UD, hidden_RD = torch.split(decoder.final_norm(hidden), [layout.prompts, layout.response_tokens])
        return hidden_UD, hidden_RD

    def _run_block(
        self,
        block: Block,
        products: Products,
        hidden: torch.Tensor,
        angles: Angles | None,
        attend: _Attend,
        layout: _Layout | None,
    ) -> torch.Tensor:
        """The output of a block; with a `layout`, of the last one, in which a prompt has only one query."""
        decoder = self.decoder
        normed = hidden if block.attention_norm is None else block.attention_norm(hidden)
        drop = (lambda x_N: x_N) if layout is None else layout.drop_prompts
        if len(block.projections) == 1:
            query_NHW, key_NKW, value_NKW = decoder.split_heads(block.projections[0](normed))
            query_NHW, hidden, normed = drop(query_NHW), drop(hidden), drop(normed)
        else:
            key_NKW, value_NKW = (
                project(normed).unflatten(1, (-1, decoder.width)) for project in block.projections[1:]
            )
            hidden, normed = drop(hidden), drop(normed)
            query_NHW = block.projections[0](normed).unflatten(1, (-1, decoder.width))
        if block.query_norm is not None and block.key_norm is not None:
            query_NHW, key_NKW = block.query_norm.over_heads(query_NHW), block.key_norm.over_heads(key_NKW)
        if angles is not None:
            if decoder.order_W is not None:
                query_NHW, key_NKW = query_NHW[..., decoder.order_W], key_NKW[..., decoder.order_W]
            query_NHW, key_NKW = rotate(query_NHW, *map(drop, angles)), rotate(key_NKW, *angles)
        query_NKGW = query_NHW.unflatten(1, (decoder.shared_heads, -1))
        mixed = attend(query_NKGW, key_NKW, value_NKW, block, last_only=layout is not None)
        return decoder.finish_block(block, hidden, normed, mixed, products)
