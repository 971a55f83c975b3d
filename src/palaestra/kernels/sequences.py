"""Decode with any causal language model, one sequence at a time and without padding.

This is for models that `slots.SlotStepper` does not support: ALiBi, state-space and hybrid models, and unknown families. If
the model has a cache, each sequence has its own. Otherwise every step processes the whole sequences again.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from palaestra.core.errors import ModelError
from palaestra.models.families import check_length, context_length, forward_parameters

if TYPE_CHECKING:
    from transformers import Cache, PreTrainedModel

_CACHE_NAMES = ("past_key_values", "cache_params")
"""Names of a model's cache as an argument and in its output."""


class SequenceStepper:
    """Next-token logits of the sequences in `slots`, with the interface of `SlotStepper`.

    Raises:
        ModelError: the model is not causal: the logits of a position depend on later tokens.
    """

    def __init__(self, model: PreTrainedModel, slots: int) -> None:
        self.model, self.slots, self.device = model, slots, model.device
        self.context = context_length(model.config) or 1 << 30
        parameters = forward_parameters(model)
        self._cache_name = next((name for name in _CACHE_NAMES if name in parameters), "")
        self._without_cache = {"use_cache": False} if "use_cache" in parameters else {}
        self.clear()
        self._check()

    def clear(self) -> None:
        """Forget all sequences."""
        self._ids: list[list[int]] = [[] for _ in range(self.slots)]
        self._caches: list[Cache | None] = [None] * self.slots

    @torch.no_grad()
    def start(self, prompts: dict[int, Sequence[int]], logits_SV: torch.Tensor | None = None) -> torch.Tensor:
        """Start new sequences in some slots. Returns the logits after each prompt at its slot."""
        outputs: dict[tuple[int, ...], tuple[torch.Tensor, Cache | None]] = {}
        for slot, ids in prompts.items():
            key = tuple(ids)
            check_length(len(key), self.context, "a prompt")
            if key not in outputs:
                outputs[key] = self._forward(key, None)
            logits_V, cache = outputs[key]
            self._ids[slot], self._caches[slot] = list(ids), copy.deepcopy(cache)
            if logits_SV is None:
                logits_SV = logits_V.new_zeros((self.slots, len(logits_V)))
            logits_SV[slot] = logits_V
        assert logits_SV is not None, "no prompt is given"
        return logits_SV

    @torch.no_grad()
    def step(self, tokens_S: torch.Tensor, starting: Sequence[int] = (), waiting: Sequence[int] = ()) -> torch.Tensor:
        """Feed one token per slot. Returns the logits after it, `[slots, vocabulary]`.

        Idle slots, and those in `starting` or `waiting`, are skipped; their logits are 0.
        """
        passive = {*starting, *waiting}
        going = [slot for slot in range(self.slots) if self._ids[slot] and slot not in passive]
        tokens = tokens_S.tolist()
        for slot in going:
            check_length(len(self._ids[slot]) + 1, self.context)
            self._ids[slot].append(tokens[slot])
        logits_SV = self._zeros_V.repeat(self.slots, 1)
        if not going:
            return logits_SV
        if self._cache_name:
            rows = []
            for slot in going:
                logits_V, self._caches[slot] = self._forward([tokens[slot]], self._caches[slot])
                rows.append(logits_V)
            logits_GV = torch.stack(rows)
        else:
            logits_GV = self._read([self._ids[slot] for slot in going])
        logits_SV[torch.tensor(going, device=self.device)] = logits_GV
        return logits_SV

    def rest(self, slots: Sequence[int]) -> None:
        """Forget the sequences of these slots until they start again."""
        for slot in slots:
            self._ids[slot], self._caches[slot] = [], None

    def _forward(self, ids: Sequence[int], cache: Cache | None) -> tuple[torch.Tensor, Cache | None]:
        """Return the logits after the last of `ids`, and the model's cache if it has one."""
        if not self._cache_name:
            return self._read([ids])[0], None
        given = {self._cache_name: cache} if cache is not None else {}
        output = self.model(input_ids=torch.tensor([list(ids)], device=self.device), use_cache=True, **given)
        return output.logits[0, -1], getattr(output, self._cache_name, None)

    def _read(self, sequences: Sequence[Sequence[int]]) -> torch.Tensor:
        """Return the logits after whole sequences, without a cache."""
        ids_BL, last_B = (x.to(self.device) for x in pad_right(sequences))
        logits_BLV: torch.Tensor = self.model(input_ids=ids_BL, **self._without_cache).logits
        return logits_BLV[torch.arange(len(sequences), device=self.device), last_B]

    @torch.no_grad()
    def _check(self) -> None:
        """Compare cached decoding of two short sequences with the model's own forward pass on each.

        If the results differ, the cache is not used. A model that is not causal raises a `ModelError`.
        """
        if not self.slots:
            return
        training = self.model.training
        self.model.eval()
        rows = int(self.model.get_input_embeddings().weight.shape[0])
        first, second = ([(start + 3 * k) % rows for k in range(5)] for start in (1, 2))
        try:
            expected = [self._alone(first), self._alone(second[:4])]
            self._zeros_V = torch.zeros_like(expected[0])
            if not _equal(self._read([first, second[:4]]), expected):
                raise ModelError(
                    f"the model ({self.model.config.model_type}) is not causal: its logits depend on later tokens; expected "
                    "a decoder-only causal language model"
                )
            if self._cache_name and not _equal(self._decode_in_turns(first, second[:4]), expected):
                self._cache_name = ""
        finally:
            self.model.train(training)

    def _alone(self, ids: list[int]) -> torch.Tensor:
        logits_V: torch.Tensor = self.model(input_ids=torch.tensor([ids], device=self.device)).logits[0, -1]
        return logits_V

    def _decode_in_turns(self, first: list[int], second: list[int]) -> list[torch.Tensor]:
        """Return the logits after two sequences that are decoded alternately; empty if the model returns no cache."""
        caches: list[Cache | None] = []
        last: list[Any] = [None, None]
        for ids in (first, second):
            _, cache = self._forward(ids[:2], None)
            if cache is None:
                return []
            caches.append(copy.deepcopy(cache))
        for at in range(2, len(first)):
            for k, ids in enumerate((first, second)):
                if at < len(ids):
                    logits_V, caches[k] = self._forward([ids[at]], caches[k])
                    if at == len(ids) - 1:
                        last[k] = logits_V
        return last


def pad_right(sequences: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids `[sequences, longest]`, padded on the right, and the index of each last token.

    A causal model needs no mask for padding on the right.
    """
    lengths = [len(ids) for ids in sequences]
    table = np.zeros((len(sequences), max(lengths)), dtype=np.int64)
    for row, ids in enumerate(sequences):
        table[row, : len(ids)] = ids
    return torch.from_numpy(table), torch.tensor(lengths) - 1


def _equal(actual: Sequence[torch.Tensor] | torch.Tensor, expected: Sequence[torch.Tensor]) -> bool:
    """Whether the mean difference of logits is small relative to their standard deviation."""
    return len(actual) == len(expected) and all(
        float((a - b).abs().mean()) <= (1e-3 if a.dtype == torch.float32 else 0.05) * float(b.std())
        for a, b in zip(actual, expected, strict=True)
    )
