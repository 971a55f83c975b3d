"""Continuous batching: decode many sequences in slots that share one key-value cache.

Every slot has its own length. A step feeds one token per slot. A slot that starts a new sequence is filled from position 0
without touching the others, and equal prompts are computed once. Finished slots leave the batch when enough of them have
finished. This module handles ids and logits only, not tokenizers, rewards or sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from palaestra.kernels.gpu.decode import make_packed_decoder
from palaestra.kernels.gpu.device import Graph
from palaestra.kernels.gpu.stepper import PackedStepper
from palaestra.kernels.sequences import SequenceStepper
from palaestra.kernels.step import make_cache_step
from palaestra.models.families import (
    ATOL,
    RTOL,
    check_length,
    context_length,
    fast_paths_enabled,
    forward_parameters,
    sliding_window,
    takes_slots,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_Masks = dict[int, torch.Tensor | None]
"""The attention masks of a step by window; 0 is the key of the whole sequence."""
_BLOCK = 64
"""Minimum number of positions by which the cache grows."""


class _SlotLayer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of one layer, `[rows, heads, positions, width]`, each row at its own length."""

    def __init__(self, owner: _SlotCache) -> None:
        super().__init__()
        self.owner = owner

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        rows, room = self.owner.rows, self.owner.room
        self.keys = key_states.new_zeros((rows, key_states.shape[1], room, key_states.shape[3]))
        self.values = value_states.new_zeros((rows, value_states.shape[1], room, value_states.shape[3]))
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        owner = self.owner
        if owner.filling is not None:
            rows_R, source_R, shift_UP = owner.filling
            length = key_states.shape[2]
            for stored, new in ((self.keys, key_states), (self.values, value_states)):
                if shift_UP is not None:  # Prompts are padded on the left; in the cache they start at 0.
                    new = new.gather(2, shift_UP[:, None, :, None].expand_as(new))
                stored[rows_R, :, :length] = new[source_R]
            return key_states, value_states
        return self.write(key_states[:, :, 0], value_states[:, :, 0])

    def write(self, key_RHD: torch.Tensor, value_RHD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write one step of every row. Returns the keys and values to attend to."""
        owner = self.owner
        if owner.together:  # All rows at one position: a plain copy is several times as fast as an indexed one.
            self.keys[:, :, owner.window - 1], self.values[:, :, owner.window - 1] = key_RHD, value_RHD
        else:
            at_R, every_R = owner.positions_R, owner.every_R
            self.keys[every_R, :, at_R], self.values[every_R, :, at_R] = key_RHD, value_RHD
        return self.keys[:, :, : owner.window], self.values[:, :, : owner.window]

    def resize(self, keep_R: torch.Tensor | None, room: int) -> None:
        """Keep some rows, or all, and allocate more positions."""
        if not self.is_initialized:
            return
        for name in ("keys", "values"):
            old = getattr(self, name)
            if keep_R is not None:
                old = old.index_select(0, keep_R)
            if room > old.shape[2]:
                grown = old.new_zeros((*old.shape[:2], room, old.shape[3]))
                grown[:, :, : old.shape[2]] = old
                old = grown
            setattr(self, name, old)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return (query_length if self.owner.filling is not None else self.owner.window), 0

    def get_seq_length(self) -> int:
        return 0 if self.owner.filling is not None else self.owner.window - 1

    def get_max_length(self) -> int:
        return self.owner.room


class _SlotCache(Cache):  # type: ignore[misc]
    """The cache that `SlotStepper` passes to the model. Its write positions are set before each forward pass."""

    def __init__(self, layers: int, rows: int, room: int) -> None:
        self.rows, self.room, self.window, self.together = rows, room, 0, False
        self.filling: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None] | None = None
        self.positions_R = torch.zeros(rows, dtype=torch.long)
        self.every_R = torch.arange(rows)
        super().__init__(layers=[_SlotLayer(self) for _ in range(layers)])

    def resize(self, keep_R: torch.Tensor | None, room: int) -> None:
        for layer in self.layers:
            layer.resize(keep_R, room)
        self.room = max(self.room, room)
        if keep_R is not None:
            self.rows = len(keep_R)
            self.every_R = torch.arange(self.rows, device=keep_R.device)


class SlotStepper:
    """Computes the next-token logits of sequences in slots. Each call of `step` adds one token.

    Arguments:
        model: a causal language model of a family in `families.SLOTS`; `make_stepper` supports all others.
        slots: number of sequences.
        fast: use the fast decoding step of the architecture, if there is one. It copies the weights in each `clear`.

    Example:
        >>> stepper = SlotStepper(model, slots=2)                                # doctest: +SKIP
        >>> logits_SV = stepper.start({0: [5, 6, 7], 1: [8]})                    # doctest: +SKIP
        >>> logits_SV = stepper.step(torch.tensor([9, 9]))                       # doctest: +SKIP
    """

    def __init__(self, model: PreTrainedModel, slots: int, fast: bool = True) -> None:
        self.model, self.slots, self.device = model, slots, model.device
        config = model.config.get_text_config()
        self.context = context_length(model.config) or 1 << 30
        # Sliding-window layers share the cache and have their own mask.
        self._sliding_window = sliding_window(model.config)
        kinds = getattr(config, "layer_types", None) or ()
        self._by_kind = self._sliding_window > 0 and "sliding_attention" in kinds
        self._additive = getattr(config, "_attn_implementation", None) != "sdpa"
        self._layers = int(config.num_hidden_layers)
        takes_last_only = "logits_to_keep" in forward_parameters(model)
        self._last_only: dict[str, int] = {"logits_to_keep": 1} if takes_last_only else {}
        self._fast = make_cache_step(model) if fast else None
        self._checked = self._fast is None
        self.is_static = self.device.type == "cuda" and fast_paths_enabled()
        """Whether a step has all slots and the whole cache, so that a GPU can capture it."""
        self._graph: _CapturedStep | None = None
        self._storage: list[int] = []
        self._cache = _SlotCache(self._layers, 0, _BLOCK)
        self._slot_of_row: list[int] = []
        self.clear()

    def clear(self) -> None:
        """Forget all sequences, and read the model's weights again."""
        if self._fast is not None:
            with torch.no_grad():
                self._fast.refresh()
        self._lengths = np.zeros(self.slots, dtype=np.int64)
        self._idle = np.zeros(self.slots, dtype=bool)
        if self.is_static:
            # Captured steps refer to the cache and to the weights.
            storage = [parameter.data_ptr() for parameter in self.model.parameters()]
            if storage != self._storage:
                self._storage, self._graph = storage, None
            self._idle[self._slot_of_row] = True
        else:
            self._slot_of_row = []
            self._cache = _SlotCache(self._layers, 0, _BLOCK)

    @torch.no_grad()
    def start(self, prompts: dict[int, Sequence[int]], logits_SV: torch.Tensor | None = None) -> torch.Tensor:
        """Start new sequences in some slots. Returns the logits after each prompt at its slot.

        Arguments:
            prompts: ids by slot; the slot's old sequence is dropped.
            logits_SV: the tensor to write to, for example the result of a step.
        """
        slots = sorted(prompts)
        self._revive(slots)
        unique: dict[tuple[int, ...], int] = {}
        source = [unique.setdefault(tuple(prompts[slot]), len(unique)) for slot in slots]
        lengths = [len(ids) for ids in unique]
        longest = max(lengths)
        check_length(longest, self.context, "a prompt")
        self._make_room(longest + 1)
        input_ids_UP = torch.zeros((len(unique), longest), dtype=torch.long)
        mask_UP = torch.zeros((len(unique), longest), dtype=torch.long)
        for row, ids in enumerate(unique):
            input_ids_UP[row, longest - len(ids) :] = torch.tensor(ids)
            mask_UP[row, longest - len(ids) :] = 1
        input_ids_UP, mask_UP = input_ids_UP.to(self.device), mask_UP.to(self.device)
        row_of_slot = {slot: row for row, slot in enumerate(self._slot_of_row)}
        rows_R = torch.tensor([row_of_slot[slot] for slot in slots], device=self.device)
        source_R = torch.tensor(source, device=self.device)
        padded = min(lengths) < longest
        shift_UP = None
        if padded:
            length_U1 = torch.tensor(lengths, device=self.device)[:, None]
            place_1P = torch.arange(longest, device=self.device)[None]
            shift_UP = (place_1P + longest - length_U1).clamp(max=longest - 1)
        self._cache.filling = (rows_R, source_R, shift_UP)
        try:
            output_UV = self.model(
                input_ids=input_ids_UP,
                attention_mask=mask_UP if padded else None,
                position_ids=(mask_UP.cumsum(-1) - 1).clamp(min=0),
                past_key_values=self._cache,
                use_cache=True,
                **self._last_only,
            ).logits[:, -1]
        finally:
            self._cache.filling = None
        if logits_SV is None:
            logits_SV = output_UV.new_zeros((self.slots, output_UV.shape[-1]))
        logits_SV[torch.tensor(slots, device=self.device)] = output_UV[source_R]
        for slot in slots:
            self._lengths[slot] = len(prompts[slot])
        return logits_SV

    @torch.no_grad()
    def step(self, tokens_S: torch.Tensor, starting: Sequence[int] = (), waiting: Sequence[int] = ()) -> torch.Tensor:
        """Feed one token per slot. Returns the logits after it, `[slots, vocabulary]`.

        For idle slots and those in `starting` or `waiting` the tokens are ignored and the logits are undefined. A waiting
        slot keeps its sequence and continues later.
        """
        self._drop_idle()
        tokens_S, slots = tokens_S.to(self.device), self._slot_of_row
        passive = {*starting, *waiting}
        going = np.array([not self._idle[s] and s not in passive and self._lengths[s] > 0 for s in slots])
        at = np.where(going, self._lengths[slots], 0)
        if waiting:
            # A waiting row writes after its sequence, where its next token overwrites it.
            is_waiting = np.isin(slots, list(waiting))
            at = np.where(is_waiting, np.minimum(self._lengths[slots], self.context - 1), at)
        window = int(at.max()) + 1
        check_length(window, self.context)
        self._make_room(window)
        cache = self._cache
        positions_R = torch.from_numpy(at).to(self.device)
        cache.positions_R, cache.window = positions_R, window
        mask_R11W = None
        cache.together = bool((at == at[0]).all())
        if not cache.together:
            mask_R11W = (torch.arange(window, device=self.device)[None] <= positions_R[:, None])[:, None, None]
        in_order = slots == list(range(self.slots))
        rows_S = None if in_order else torch.tensor(slots, device=self.device)
        ids_R = tokens_S if rows_S is None else tokens_S[rows_S]
        logits_RV = self._logits(ids_R, positions_R, mask_R11W)
        self._lengths[np.array(slots)[going]] += 1
        if rows_S is None:
            return logits_RV
        logits_SV = logits_RV.new_zeros((self.slots, logits_RV.shape[-1]))
        logits_SV[rows_S] = logits_RV
        return logits_SV

    def _logits(self, ids_R: torch.Tensor, positions_R: torch.Tensor, mask_R11W: torch.Tensor | None) -> torch.Tensor:
        if self.is_static:
            return self._compute_static(ids_R, positions_R, mask_R11W)
        masks = self._make_masks(mask_R11W, positions_R)
        if self._fast is None:
            return self._compute_plain(ids_R, positions_R, masks)
        if self._checked:
            return self._fast(ids_R, positions_R, masks, self._cache)
        # On first use the fast path is compared with the model's own forward pass and dropped if they differ. It computes
        # last, so that logits and cache are the same bits as in later calls.
        self._checked = True
        logits_RV = self._compute_plain(ids_R, positions_R, masks)
        fast_RV = self._fast(ids_R, positions_R, masks, self._cache)
        if torch.allclose(fast_RV, logits_RV, atol=ATOL, rtol=RTOL):
            return fast_RV
        self._fast = None
        return self._compute_plain(ids_R, positions_R, masks)

    def _compute_static(
        self, ids_R: torch.Tensor, positions_R: torch.Tensor, mask_R11W: torch.Tensor | None
    ) -> torch.Tensor:
        """The logits from a captured step. A model that cannot be captured is computed plainly from now on."""
        if self._graph is not None and self._graph.size == (self._cache.rows, self._cache.room):
            return self._graph(ids_R, positions_R)
        try:
            self._graph = _CapturedStep(self, ids_R, positions_R)
            return self._graph(ids_R, positions_R)
        except (RuntimeError, ValueError):  # for example of a mixture of experts, which reads from the GPU
            self.is_static, self._graph = False, None
        cache = self._cache
        cache.positions_R, cache.window = positions_R, int(positions_R.max()) + 1
        return self._compute_plain(ids_R, positions_R, self._make_masks(mask_R11W, positions_R))

    def _compute_plain(self, ids_R: torch.Tensor, positions_R: torch.Tensor, masks: _Masks) -> torch.Tensor:
        """The logits from the model's own forward pass, which gets its masks by layer type if there are several."""
        own = {window: self._to_model(mask_R11W) for window, mask_R11W in masks.items()}
        near_R11W = own[self._sliding_window]
        by_kind = self._by_kind and near_R11W is not None
        logits_RV: torch.Tensor = self.model(
            input_ids=ids_R[:, None],
            attention_mask=near_R11W if not by_kind else {"full_attention": own[0], "sliding_attention": near_R11W},
            position_ids=positions_R[:, None],
            past_key_values=self._cache,
            use_cache=True,
            **self._last_only,
        ).logits[:, -1]
        return logits_RV

    def _make_masks(self, mask_R11W: torch.Tensor | None, positions_R: torch.Tensor) -> _Masks:
        """The mask of layers that attend to the whole sequence, and that of layers with a sliding window."""
        near_R11W, window = mask_R11W, self._cache.window
        if self._sliding_window and (mask_R11W is not None or window > self._sliding_window):
            place_1W = torch.arange(window, device=self.device)[None]
            near_R11W = (place_1W > positions_R[:, None] - self._sliding_window)[:, None, None]
            near_R11W &= (place_1W <= positions_R[:, None])[:, None, None]
        return {0: mask_R11W, self._sliding_window: near_R11W}

    def _to_model(self, mask_R11W: torch.Tensor | None) -> torch.Tensor | None:
        if mask_R11W is None or not self._additive:
            return mask_R11W
        dtype = self.model.dtype
        return torch.zeros_like(mask_R11W, dtype=dtype).masked_fill(~mask_R11W, torch.finfo(dtype).min)

    def rest(self, slots: Sequence[int]) -> None:
        """Mark slots as idle until they start again."""
        self._idle[list(slots)] = True

    def _drop_idle(self) -> None:
        """Remove idle slots from the batch once a quarter is idle. Removing rows copies the cache."""
        if self.is_static:
            return
        rows = [row for row, slot in enumerate(self._slot_of_row) if not self._idle[slot]]
        if rows and len(rows) <= 0.75 * len(self._slot_of_row):
            self._cache.resize(torch.tensor(rows, device=self.device), self._cache.room)
            self._slot_of_row = [self._slot_of_row[row] for row in rows]

    def _revive(self, slots: Sequence[int]) -> None:
        """Add rows for slots that are about to start and have none."""
        self._idle[list(slots)] = False
        missing = sorted({*slots} - {*self._slot_of_row})
        if missing:
            # Any row will do for a slot that is filled from position 0.
            keep = [*range(len(self._slot_of_row)), *[0] * len(missing)]
            self._cache.resize(torch.tensor(keep, device=self.device), self._cache.room)
            self._slot_of_row += missing
            self._lengths[missing] = 0

    def _make_room(self, positions: int) -> None:
        if positions > self._cache.room:
            room = max(positions, 2 * self._cache.room)
            self._cache.resize(None, min(-(-room // _BLOCK) * _BLOCK, max(self.context, positions)))


class _CapturedStep:
    """A step of all rows of a `SlotStepper`, over its whole cache.

    Arguments:
        ids_R, positions_R: those of the next step, which is computed several times while it is captured.
    """

    def __init__(self, stepper: SlotStepper, ids_R: torch.Tensor, positions_R: torch.Tensor) -> None:
        cache = stepper._cache
        self.size = cache.rows, cache.room
        self._ids_R, self._positions_R = ids_R.clone(), positions_R.clone()
        place_1W = torch.arange(cache.room, device=ids_R.device)[None]

        def compute() -> torch.Tensor:
            cache.positions_R, cache.window, cache.together = self._positions_R, cache.room, False
            mask_R11W = (place_1W <= self._positions_R[:, None])[:, None, None]
            masks = stepper._make_masks(mask_R11W, self._positions_R)
            return stepper._compute_plain(self._ids_R, self._positions_R, masks)

        expected_RV = compute().clone()
        self._graph = Graph(compute, capture=ids_R.is_cuda)
        if not torch.allclose(self._graph(), expected_RV, atol=1e-2 * float(expected_RV.abs().max()), rtol=1e-2):
            raise RuntimeError("the captured step differs from the model's own")

    def __call__(self, ids_R: torch.Tensor, positions_R: torch.Tensor) -> torch.Tensor:
        self._ids_R.copy_(ids_R)
        self._positions_R.copy_(positions_R)
        logits_RV: torch.Tensor = self._graph()
        return logits_RV


Stepper = SlotStepper | SequenceStepper | PackedStepper


def make_stepper(model: PreTrainedModel, slots: int, fast: bool = True) -> Stepper:
    """The stepper for a model: one cache for all slots if the family allows it, otherwise one sequence at a time.

    On a GPU, the families of `decoder` run as captured graphs, unless their logits differ from the
    model's own. Steps of other families are captured if they can be.
    """
    if model.device.type == "cuda" and (decoder := make_packed_decoder(model)) is not None:
        packed = PackedStepper(decoder, slots)
        if packed.agrees():
            return packed
    return SlotStepper(model, slots, fast) if takes_slots(model.config) else SequenceStepper(model, slots)
