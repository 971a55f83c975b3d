"""The packed pass: sequences of several lengths in one row, without padding."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from palaestra.kernels.decoder import Angles, Block, Decoder, Products, call_layers, describe
from palaestra.kernels.gpu.attention import SegmentLengths, attend_packed
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


class _Attention:
    """Attention of the prompts and responses in a layout, without padding."""

    def __init__(self, layout: _Layout) -> None:
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
        self, query_NHW: torch.Tensor, key_NKW: torch.Tensor, value_NKW: torch.Tensor, block: Block, last_only: bool
    ) -> torch.Tensor:
        """Return `[queries, heads * width]`.

        Arguments:
            last_only: a prompt has only one query, of its last token.
        """
        key_MKW, value_MKW = gather_rows(key_NKW, self._rows_M), gather_rows(value_NKW, self._rows_M)
        segments = self._last if last_only else self._every
        return attend_packed(query_NHW, key_MKW, value_MKW, segments, block.limits).flatten(1)


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
        decoder, attend = self.decoder, _Attention(layout)
        hidden, angles = decoder.embed(layout.ids_N, layout.positions_N), decoder.compute_angles(layout.positions_N)
        for index, (block, products) in enumerate(self.blocks):
            is_last = index == len(self.blocks) - 1
            own = angles.get(block.rotation) if block.rotation is not None else None
            arguments = block, products, hidden, own, attend, layout if is_last else None
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
        attend: _Attention,
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
                project(normed).view(len(normed), -1, decoder.width) for project in block.projections[1:]
            )
            hidden, normed = drop(hidden), drop(normed)
            query_NHW = block.projections[0](normed).view(len(normed), -1, decoder.width)
        if block.query_norm is not None and block.key_norm is not None:
            query_NHW, key_NKW = block.query_norm.over_heads(query_NHW), block.key_norm.over_heads(key_NKW)
        if angles is not None:
            if decoder.order_W is not None:
                query_NHW, key_NKW = query_NHW[..., decoder.order_W], key_NKW[..., decoder.order_W]
            query_NHW, key_NKW = rotate(query_NHW, *map(drop, angles)), rotate(key_NKW, *angles)
        mixed = attend(query_NHW, key_NKW, value_NKW, block, last_only=layout is not None)
        return decoder.finish_block(block, hidden, normed, mixed, products)
