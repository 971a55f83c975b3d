"""The forward pass of a language model over whole sequences: a prompt and a response each.

`SequenceForward` uses the packed forward pass if there is one for the model, and otherwise the model's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn.functional import cross_entropy, linear
from torch.utils.checkpoint import checkpoint

from palaestra.core.errors import ModelError
from palaestra.kernels.operations import MAX_LOGITS, compute_token_logprobs
from palaestra.kernels.packed import TokenIds, make_fast_forward
from palaestra.kernels.sequences import pad_right
from palaestra.models.families import (
    ATOL,
    RTOL,
    check_length,
    context_length,
    forward_parameters,
    make_short_copy,
    takes_slots,
    unwrap_adapter,
)

if TYPE_CHECKING:
    from transformers import Cache, PreTrainedModel

_MAX_PROMPT_RATIO = 0.5
"""Maximum ratio of distinct prompts to sequences at which each prompt is computed once and its cache shared."""

_CHECKED = 8
"""Number of sequences on which the packed forward pass is compared with the model's own."""


_Tables = tuple[torch.Tensor | None, torch.Tensor | None]
"""Logits and last hidden states, each `[sequences, positions, size]`; `None` if they are not computed."""


@dataclass(frozen=True, slots=True)
class SequenceOutputs:
    """Outputs of a model at positions of a table `[sequences, width]`.

    Arguments:
        hidden_ND: last hidden states; `None` if not requested.
        logits_NV: outputs of the output layer; `None` if not requested.
        rows_N: the row of each position in the flattened table; `None` means all of them in order.
    """

    hidden_ND: torch.Tensor | None
    logits_NV: torch.Tensor | None
    rows_N: torch.Tensor | None

    def to_table(self, values_N: torch.Tensor, sequences: int, width: int) -> torch.Tensor:
        """Arrange one number per position as a table `[sequences, width]`, with 0 where there is no position."""
        if self.rows_N is None:
            return values_N.view(sequences, width)
        return values_N.new_zeros(sequences * width).index_copy(0, self.rows_N, values_N).view(sequences, width)

    def select(self, places: Sequence[np.ndarray], width: int, new_width: int) -> SequenceOutputs:
        """Keep some positions of each sequence, now columns 0, 1, ... of a table `[sequences, new_width]`.

        Arguments:
            places: the columns to keep, by sequence.
            width: the width of the current table.
        """
        outputs = self.hidden_ND if self.hidden_ND is not None else self.logits_NV
        assert outputs is not None
        index_M = torch.from_numpy(np.concatenate([k * width + own for k, own in enumerate(places)]))
        rows_M = torch.from_numpy(np.concatenate([k * new_width + np.arange(len(own)) for k, own in enumerate(places)]))
        index_M, rows_M = index_M.to(outputs.device), rows_M.to(outputs.device)
        if self.rows_N is not None:
            position_of_row = torch.zeros(len(places) * width, dtype=torch.long, device=outputs.device)
            position_of_row[self.rows_N] = torch.arange(len(self.rows_N), device=outputs.device)
            index_M = position_of_row[index_M]
        hidden_MD = None if self.hidden_ND is None else self.hidden_ND.index_select(0, index_M)
        logits_MV = None if self.logits_NV is None else self.logits_NV.index_select(0, index_M)
        return SequenceOutputs(hidden_MD, logits_MV, rows_M)


class SequenceForward:
    """The forward pass of a model over prompts and responses.

    On first use the fast path is compared with the model's own forward pass and dropped if they differ.

    Arguments:
        model: a causal language model of transformers, its body, or peft's wrapper of either.
        recompute: compute the intermediate results of each block again in the backward pass, instead of keeping them.
    """

    def __init__(self, model: PreTrainedModel, recompute: bool = False) -> None:
        self.model, self.fast = model, make_fast_forward(model)
        self.recompute = recompute
        if self.fast is not None:
            self.fast.recomputes = recompute
        elif recompute:
            _enable_checkpoints(model)
        self.context = context_length(model.config) or 1 << 30
        self.output_layer = model.get_output_embeddings()  # `None` for a body
        parameters = forward_parameters(model)
        self._takes_logits_to_keep = "logits_to_keep" in parameters
        self._takes_padding = takes_slots(model.config)
        self._without_cache = {"use_cache": False} if "use_cache" in parameters else {}
        self._checked = False
        self.share_prompts = True
        """Whether prompts are computed once for all their responses, in a pass of their own."""

    def __call__(
        self,
        prompts: Sequence[TokenIds],
        responses: Sequence[TokenIds],
        width: int,
        hidden: bool,
        logits: bool,
        include_end: bool = False,
    ) -> SequenceOutputs:
        """Outputs after the prompt and after each token of the responses, as a table `[sequences, width]`.

        Arguments:
            width: number of positions per sequence; column 0 is the position after the prompt.
            hidden, logits: which outputs to return. The model's own forward pass always returns logits.
            include_end: also return the position after the last token of a response.

        Raises:
            ModelError: a sequence is longer than the model's context.
        """
        longest = max(len(prompt) + min(len(ids), width - 1) for prompt, ids in zip(prompts, responses, strict=True))
        check_length(longest, self.context)
        if self.fast is None:
            return self.own_forward(prompts, responses, width, hidden)
        if not self._checked:
            self._checked = True
            if not self._fast_agrees(prompts[:_CHECKED], responses[:_CHECKED], width):
                self.fast = None
                if self.recompute:
                    _enable_checkpoints(self.model)
                return self.own_forward(prompts, responses, width, hidden)
        hidden_ND, rows_N = self.fast(prompts, responses, width, include_end)
        logits_NV = self.compute_logits(hidden_ND) if logits and self.output_layer is not None else None
        return SequenceOutputs(hidden_ND if hidden else None, logits_NV, rows_N)

    def compute_logits(self, hidden_ND: torch.Tensor, vocabulary: int = 0) -> torch.Tensor:
        """The logits of hidden states of the fast path, of all tokens or the first `vocabulary`."""
        assert self.fast is not None
        output_VD = self.output_layer.weight[: vocabulary or None]
        return self.fast.decoder.limit_logits(linear(hidden_ND, output_VD))

    def compute_logprobs(
        self, hidden_ND: torch.Tensor, tokens_N: torch.Tensor, temperature: float = 1.0, vocabulary: int = 0
    ) -> torch.Tensor:
        """The log-prob of one token after each hidden state of the fast path, without a table of all logits."""
        assert self.fast is not None
        family, output_VD = self.fast.decoder.family, self.output_layer.weight[: vocabulary or None]
        if not family.logit_softcap:
            return compute_token_logprobs(hidden_ND, output_VD, tokens_N, temperature / family.logit_scale)

        def compute_part(hidden_CD: torch.Tensor, tokens_C: torch.Tensor) -> torch.Tensor:
            logits_CV = self.compute_logits(hidden_CD, vocabulary).float() / temperature
            return -cross_entropy(logits_CV, tokens_C, reduction="none")

        size = max(1, MAX_LOGITS // len(output_VD))
        parts = zip(torch.split(hidden_ND, size), torch.split(tokens_N, size), strict=True)
        return torch.cat([checkpoint(compute_part, *part, use_reentrant=False) for part in parts])

    @torch.no_grad()
    def _fast_agrees(self, prompts: Sequence[TokenIds], responses: Sequence[TokenIds], width: int) -> bool:
        """Whether the packed forward pass computes the hidden states of the model's own.

        A 16-bit model is compared in float32, by its first blocks.
        """
        assert self.fast is not None
        if self.model.dtype != torch.float32:
            return SequenceForward(make_short_copy(self.model))._fast_agrees(prompts, responses, width)
        training = self.model.training
        self.model.eval()  # Dropout would make the two differ.
        hidden_ND, rows_N = self.fast(prompts, responses, width)
        own_ND = self.own_forward(prompts, responses, width, hidden=True).hidden_ND
        self.model.train(training)
        assert own_ND is not None
        return torch.allclose(own_ND[rows_N], hidden_ND, atol=ATOL, rtol=RTOL)

    def own_forward(
        self, prompts: Sequence[TokenIds], responses: Sequence[TokenIds], width: int, hidden: bool
    ) -> SequenceOutputs:
        """The model's own forward pass. Positions after the end of a response have arbitrary values."""
        shares = (
            self.share_prompts
            and not self.recompute  # It needs a cache, and blocks that are computed twice would write to it twice.
            and self.output_layer is not None
            and width > 1
            and len(set(prompts)) <= _MAX_PROMPT_RATIO * len(prompts)
        )
        if not self._takes_padding:
            outputs = self._forward_right_padded(prompts, responses, width, hidden)
        elif shares:
            outputs = self._forward_shared(prompts, responses, width - 1, hidden)
        else:
            outputs = self._forward_left_padded(prompts, responses, width, hidden)
        logits_NV, hidden_ND = _map_tables(lambda table: table.flatten(0, 1), outputs)
        return SequenceOutputs(hidden_ND, logits_NV, None)

    def _forward_left_padded(
        self, prompts: Sequence[TokenIds], responses: Sequence[TokenIds], width: int, hidden: bool
    ) -> _Tables:
        ids_BL, mask_BL = _pad_around(prompts, responses, width - 1)
        outputs = self._run_masked(hidden, ids_BL, mask_BL.to(self.model.device), keep=width)
        return _map_tables(lambda table: table[:, -width:], outputs)

    def _forward_right_padded(
        self, prompts: Sequence[TokenIds], responses: Sequence[TokenIds], width: int, hidden: bool
    ) -> _Tables:
        """Pad the sequences on the right, without a mask. This is correct for every causal model."""
        device = self.model.device
        rows = [(*prompt, *response[: width - 1]) for prompt, response in zip(prompts, responses, strict=True)]
        ids_BL, last_B = (x.to(device) for x in pad_right(rows))
        first_B1 = torch.tensor([[len(prompt) - 1] for prompt in prompts], device=device)
        place_BW = torch.minimum(first_B1 + torch.arange(width, device=device)[None], last_B[:, None])
        row_B1 = torch.arange(len(prompts), device=device)[:, None]
        outputs = self._run(hidden, input_ids=ids_BL, **self._without_cache)
        return _map_tables(lambda table: table[row_B1, place_BW], outputs)

    def _forward_shared(
        self, prompts: Sequence[TokenIds], responses: Sequence[TokenIds], width: int, hidden: bool
    ) -> _Tables:
        """Compute each distinct prompt once and share its keys and values, through which gradients flow back."""
        from transformers import DynamicCache

        device = self.model.device
        unique: dict[TokenIds, int] = {}
        source_B = torch.tensor([unique.setdefault(prompt, len(unique)) for prompt in prompts], device=device)
        prompts_UP, prompt_mask_UP = (x.to(device) for x in _pad_around(list(unique), [()] * len(unique), 0))
        length_B = torch.tensor([min(width, len(response)) for response in responses], device=device)
        response_mask_BR = (torch.arange(width, device=device)[None] < length_B[:, None]).long()
        mask_BL = torch.cat([prompt_mask_UP[source_B], response_mask_BR], -1)
        cache = DynamicCache(config=self.model.config)
        first = self._run_masked(hidden, prompts_UP, prompt_mask_UP, keep=1, cache=cache)
        for layer in cache.layers:
            layer.keys, layer.values = layer.keys[source_B], layer.values[source_B]
        rest = self._run_masked(hidden, pad_or_cut(responses, width), mask_BL, cache=cache)
        return _map_tables(lambda before, after: torch.cat([before[:, -1:][source_B], after], 1), first, rest)

    def _run_masked(
        self, hidden: bool, ids_BL: torch.Tensor, mask_BM: torch.Tensor, keep: int = 0, cache: Cache | None = None
    ) -> _Tables:
        """Call the model on padded sequences.

        Arguments:
            mask_BM: which positions are tokens, in `cache` and then in `ids_BL`.
            keep: number of last positions that need logits; 0 for all.
        """
        options: dict[str, object] = {"logits_to_keep": keep} if keep and self._takes_logits_to_keep else {}
        if cache is not None:
            options["past_key_values"] = cache
        # Padding repeats the last position. Positions beyond the context have no embedding, or change the others' rotation.
        positions_BL = (mask_BM.cumsum(-1) - 1).clamp(min=0)[:, -ids_BL.shape[1] :]
        return self._run(
            hidden,
            input_ids=ids_BL.to(self.model.device),
            attention_mask=mask_BM,
            position_ids=positions_BL,
            use_cache=cache is not None,
            **options,
        )

    def _run(self, hidden: bool, **arguments: object) -> _Tables:
        """Call the model; returns its logits, if it has an output layer, and its last hidden states, if requested.

        The hidden states are the input of the output layer: of only the positions whose logits are computed.
        """
        with _checkpoint_blocks(self.model) if self.recompute and torch.is_grad_enabled() else nullcontext():
            if self.output_layer is None:
                arguments.pop("logits_to_keep", None)
                return None, self.model(**arguments).last_hidden_state
            recorded: list[torch.Tensor] = []
            hook = self.output_layer.register_forward_pre_hook(lambda _, inputs: recorded.append(inputs[0]))
            try:
                logits = self.model(**arguments).logits
            finally:
                hook.remove()
            return logits, recorded[0] if hidden else None


def _map_tables(function: Callable[..., torch.Tensor], *tables: _Tables) -> _Tables:
    """Apply a function to the logits and to the hidden states of one or several passes, where they are computed."""
    logits, hidden = zip(*tables, strict=True)
    return (
        None if any(table is None for table in logits) else function(*logits),
        None if any(table is None for table in hidden) else function(*hidden),
    )


def _enable_checkpoints(model: PreTrainedModel) -> None:
    """Turn on gradient checkpointing of transformers.

    Raises:
        ModelError: the model does not support it, or has dropout, which a second pass would draw again.
    """
    inner = unwrap_adapter(model)
    dropout = {
        name: value for name, value in inner.config.get_text_config().to_dict().items() if "drop" in name and value
    }
    if not inner.supports_gradient_checkpointing or dropout:
        reason = f"has dropout ({', '.join(sorted(dropout))})" if dropout else "does not support it"
        raise ModelError(f"gradient checkpointing: the model ({inner.config.model_type}) {reason}; train without it")
    inner.gradient_checkpointing_enable()


@contextmanager
def _checkpoint_blocks(model: PreTrainedModel) -> Iterator[None]:
    """Put the blocks of a model into training mode, in which transformers computes them with checkpoints, but no other layer."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    blocks = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    for block in blocks:
        block.training = True
    try:
        yield
    finally:
        for block in blocks:
            block.training = False


def pad_or_cut(rows: Sequence[TokenIds], width: int) -> torch.Tensor:
    """Ids `[rows, width]`: longer rows are cut, shorter ones padded on the right."""
    table = np.zeros((len(rows), width), dtype=np.int64)
    for k, row in enumerate(rows):
        table[k, : len(row)] = row[:width]
    return torch.from_numpy(table)


def _pad_around(
    prompts: Sequence[TokenIds], responses: Sequence[TokenIds], width: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask `[sequences, length]`: prompts padded on the left, `width` tokens of responses padded on the right.

    All responses start in the same column, so only the last columns need logits.
    """
    start = max(map(len, prompts))
    ids = np.zeros((len(prompts), start + width), dtype=np.int64)
    mask = np.zeros((len(prompts), start + width), dtype=np.int64)
    for k, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        tokens = slice(start - len(prompt), start + min(len(response), width))
        ids[k, tokens], mask[k, tokens] = (*prompt, *response[:width]), 1
    return torch.from_numpy(ids), torch.from_numpy(mask)
