"""Reading whole responses with a language model: what it expects behind each prompt and each token.

`PlainReader` asks transformers, for any model; `lean_readers` has a faster way for the most common ones.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from palaestra.engines.families import takes_slots
from palaestra.engines.sequences import pad_right
from palaestra.learn.rollouts import TokenInputs

SHARED = 0.5
"""transformers reads prompts once for all sequences that share them where there are at most so many a sequence."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What stands behind the positions that were asked for.

    Arguments:
        hidden_ND: last hidden states; `None` where nobody wanted them.
        logits_NV: what the output layer makes of them; `None` where nobody wanted them.
        rows_N: where each belongs in a table `[sequences, width]`, flattened; `None` means all of it, in order.
    """

    hidden_ND: torch.Tensor | None
    logits_NV: torch.Tensor | None
    rows_N: torch.Tensor | None

    def table(self, values_N: torch.Tensor, sequences: int, width: int) -> torch.Tensor:
        """One number a position as a table `[sequences, width]`, 0 where there is no position."""
        if self.rows_N is None:
            return values_N.view(sequences, width)
        return values_N.new_zeros(sequences * width).index_copy(0, self.rows_N, values_N).view(sequences, width)

    def at_decisions(
        self, inputs: TokenInputs, sequences: Sequence[int], reach: int, width: int, behind: bool = False
    ) -> Reading:
        """Only what stands before decisions and, if `behind`, behind the end.

        Arguments:
            reach: of the table of tokens `[sequences, reach]` that was read.
            width: of the table of decisions `[sequences, width]` that this becomes.
        """
        if not inputs.chosen:
            return self
        places = [inputs.chosen[sequence] for sequence in sequences]
        if behind:
            places = [
                np.append(own, len(inputs.responses[sequence])) for own, sequence in zip(places, sequences, strict=True)
            ]
        wanted_M = torch.from_numpy(np.concatenate([k * reach + own for k, own in enumerate(places)]))
        rows_M = torch.from_numpy(np.concatenate([k * width + np.arange(len(own)) for k, own in enumerate(places)]))
        found = self.hidden_ND if self.hidden_ND is not None else self.logits_NV
        assert found is not None
        wanted_M, rows_M = wanted_M.to(found.device), rows_M.to(found.device)
        if self.rows_N is not None:
            at_L = torch.zeros(len(sequences) * reach, dtype=torch.long, device=found.device)
            at_L[self.rows_N] = torch.arange(len(self.rows_N), device=found.device)
            wanted_M = at_L[wanted_M]
        hidden_MD = None if self.hidden_ND is None else self.hidden_ND.index_select(0, wanted_M)
        return Reading(hidden_MD, None if self.logits_NV is None else self.logits_NV.index_select(0, wanted_M), rows_M)


class PlainReader:
    """Any causal language model of transformers, or peft's around one."""

    def __init__(self, model: Any) -> None:
        self.model = model
        inside = model.get_base_model() if hasattr(model, "get_base_model") else model
        parameters = inspect.signature(inside.forward).parameters
        self._can_keep = "logits_to_keep" in parameters
        self._takes_padding = takes_slots(model.config)
        self._without_cache = {"use_cache": False} if "use_cache" in parameters else {}

    def read(self, inputs: TokenInputs, sequences: Sequence[int], width: int, hidden: bool, logits: bool) -> Reading:
        """Behind the prompt and behind the first `width - 1` tokens of each response, padded to one width."""
        if not self._takes_padding:
            logits_BWV, hidden_BWD = self._whole(inputs, sequences, width, hidden)
        elif width > 1 and len({inputs.prompts[sequence] for sequence in sequences}) <= SHARED * len(sequences):
            logits_BWV, hidden_BWD = self._shared(inputs, sequences, width - 1, hidden)
        else:
            logits_BWV, hidden_BWD = self._padded(inputs, sequences, width, hidden)
        return Reading(hidden_BWD.flatten(0, 1) if hidden_BWD is not None else None, logits_BWV.flatten(0, 1), None)

    def _padded(
        self, inputs: TokenInputs, sequences: Sequence[int], width: int, hidden: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        device = self.model.device
        ids_BL, mask_BL = (x.to(device) for x in pack(inputs, sequences, width - 1))
        with self._catching(hidden) as caught:
            logits = self.model(
                input_ids=ids_BL,
                attention_mask=mask_BL,
                position_ids=(mask_BL.cumsum(-1) - 1).clamp(min=0),
                use_cache=False,
                **({"logits_to_keep": width} if self._can_keep else {}),
            ).logits
        return logits[:, -width:], caught[0][:, -width:] if hidden else None

    def _whole(
        self, inputs: TokenInputs, sequences: Sequence[int], width: int, hidden: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Sequences from their first token, with no mask: right for every causal model."""
        device = self.model.device
        ids_BL, place_BW = (x.to(device) for x in pack_right(inputs, sequences, width))
        row_B1 = torch.arange(len(sequences), device=device)[:, None]
        with self._catching(hidden) as caught:
            logits_BLV = self.model(input_ids=ids_BL, **self._without_cache).logits
        return logits_BLV[row_B1, place_BW], caught[0][row_B1, place_BW] if hidden else None

    def _shared(
        self, inputs: TokenInputs, sequences: Sequence[int], width: int, hidden: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Behind the prompt and behind `width` tokens of each response, where prompts repeat (groups).

        Each prompt is read once, and its keys and values are shared. The gradient flows back through them, so this
        is the same computation with fewer tokens in it.
        """
        from transformers import DynamicCache

        device = self.model.device
        unique, source = distinct(inputs, sequences)
        source_B = torch.tensor(source, device=device)
        prompts_UP, prompt_mask_UP = (x.to(device) for x in padded_left(unique))
        responses_BR = padded([inputs.responses[sequence] for sequence in sequences], width).to(device)
        length_B = torch.tensor([min(width, len(inputs.responses[sequence])) for sequence in sequences], device=device)
        there_BR = (torch.arange(width, device=device)[None] < length_B[:, None]).long()
        cache = DynamicCache(config=self.model.config)
        with self._catching(hidden) as caught:
            first_UV = self.model(
                input_ids=prompts_UP,
                attention_mask=prompt_mask_UP,
                position_ids=(prompt_mask_UP.cumsum(-1) - 1).clamp(min=0),
                past_key_values=cache,
                use_cache=True,
                **({"logits_to_keep": 1} if self._can_keep else {}),
            ).logits[:, -1:]
            for layer in cache.layers:
                layer.keys, layer.values = layer.keys[source_B], layer.values[source_B]
            rest_BRV = self.model(
                input_ids=responses_BR,
                attention_mask=torch.cat([prompt_mask_UP[source_B], there_BR], -1),
                position_ids=prompt_mask_UP.sum(-1)[source_B, None] + torch.arange(width, device=device),
                past_key_values=cache,
                use_cache=True,
            ).logits
        logits = torch.cat([first_UV[source_B], rest_BRV], 1)
        if not hidden:
            return logits, None
        return logits, torch.cat([caught[0][:, -1:][source_B], caught[1]], 1)

    @contextmanager
    def _catching(self, hidden: bool) -> Iterator[list[torch.Tensor]]:
        """What the output layer is given is what the value head reads: only the positions that are needed."""
        caught: list[torch.Tensor] = []
        if not hidden:
            yield caught
            return
        layer = self.model.get_output_embeddings()
        hook = layer.register_forward_pre_hook(lambda _, given: caught.append(given[0]))
        try:
            yield caught
        finally:
            hook.remove()


def distinct(inputs: TokenInputs, sequences: Sequence[int]) -> tuple[list[tuple[int, ...]], list[int]]:
    """The prompts of some sequences without repetition, and which of them each sequence has."""
    unique: dict[tuple[int, ...], int] = {}
    source = [unique.setdefault(tuple(inputs.prompts[sequence]), len(unique)) for sequence in sequences]
    return list(unique), source


def pack(inputs: TokenInputs, sequences: Sequence[int], width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Prompts padded on the left, `width` tokens of responses on the right: ids and mask, `[sequences, length]`.

    So the response of every sequence starts in the same column, and only the last columns need logits.
    """
    head = max(len(inputs.prompts[sequence]) for sequence in sequences)
    ids = np.zeros((len(sequences), head + width), dtype=np.int64)
    mask = np.zeros((len(sequences), head + width), dtype=np.int64)
    for row, sequence in enumerate(sequences):
        prompt, response = inputs.prompts[sequence], inputs.responses[sequence][:width]
        ids[row, head - len(prompt) : head], mask[row, head - len(prompt) : head] = prompt, 1
        ids[row, head : head + len(response)], mask[row, head : head + len(response)] = response, 1
    return torch.from_numpy(ids), torch.from_numpy(mask)


def pack_right(inputs: TokenInputs, sequences: Sequence[int], width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences padded on the right, `[sequences, length]`, and the places behind the prompt and the first `width - 1` tokens.

    A place behind the end of a response is that of its last token; what is read there counts for nothing.
    """
    rows = [(*inputs.prompts[sequence], *inputs.responses[sequence][: width - 1]) for sequence in sequences]
    ids_BL, last_B = pad_right(rows)
    first_B = torch.tensor([len(inputs.prompts[sequence]) - 1 for sequence in sequences])
    return ids_BL, torch.minimum(first_B[:, None] + torch.arange(width)[None], last_B[:, None])


def padded_left(rows: Sequence[tuple[int, ...]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids with what is missing on the left, and the mask of what is there."""
    width = max(len(row) for row in rows)
    ids, mask = np.zeros((len(rows), width), dtype=np.int64), np.zeros((len(rows), width), dtype=np.int64)
    for k, row in enumerate(rows):
        ids[k, width - len(row) :], mask[k, width - len(row) :] = row, 1
    return torch.from_numpy(ids), torch.from_numpy(mask)


def padded(rows: Sequence[tuple[int, ...]], width: int) -> torch.Tensor:
    """Ids cut or filled on the right to `width`."""
    table = np.zeros((len(rows), width), dtype=np.int64)
    for k, row in enumerate(rows):
        table[k, : len(row)] = row[:width]
    return torch.from_numpy(table)
