"""Next-token logits of sequences in slots, from captured CUDA graphs.

The cache has one row per slot. A step of all slots is one graph. Prompts are packed without padding; their tokens fill a
graph of the next larger size, and larger batches of prompts run without a graph. Slots that start with the same prompt
share its computation.

The tokens that `sample` returns are fed at once, while the environment works on them. If the next call of `step` has other
tokens, it computes the step again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from palaestra.kernels.gpu.decode import PackedDecoder, make_packed_decoder
from palaestra.kernels.gpu.device import Graph, allocate_cache, count_free_bytes
from palaestra.kernels.operations import sample_tokens
from palaestra.models.families import check_length, context_length, make_short_copy

_PROMPT_TOKENS = (64, 256, 1024)
"""Sizes of the graphs for prompts, in tokens."""
_MAX_PROMPTS = 32
"""Maximum number of prompts in a graph."""
_MAX_TOKENS = 1 << 14
"""Maximum number of prompt tokens in one pass."""
_BLOCK = 64
"""The cache grows by multiples of this number of positions."""


class PackedStepper:
    """Computes the next-token logits of sequences in slots, with the interface of `SlotStepper`.

    Arguments:
        step: from `make_packed_decoder`.
        slots: number of sequences.
    """

    def __init__(self, step: PackedDecoder, slots: int) -> None:
        model = step.decoder.model
        self.model, self.slots, self.device = model, slots, model.device
        self.context = context_length(model.config) or 1 << 30
        self._model = step
        self._logits_SV = torch.zeros((slots, self._model.outputs), device=self.device, dtype=model.dtype)
        self._step_graph: _Pass | None = None
        self._prompt_graphs: dict[int, _Pass] = {}
        self._sampler: _SamplingGraph | None = None
        self._captures = self.device.type == "cuda"
        self._room, self._cache = 0, torch.empty(0)
        self._storage: list[int] = []
        self.clear()

    def clear(self) -> None:
        """Forget all sequences, and read the model's weights again."""
        self._model.refresh()
        storage = [parameter.data_ptr() for parameter in self.model.parameters()]
        if storage != self._storage:
            self._storage, self._step_graph, self._prompt_graphs = storage, None, {}
        self._lengths = np.zeros(self.slots, dtype=np.int64)
        self._ahead: tuple[np.ndarray, np.ndarray] | None = None

    @torch.no_grad()
    def agrees(self) -> bool:
        """Whether a short sequence has the logits of the model's own forward pass. All sequences are forgotten.

        A 16-bit model is compared in float32, by its first blocks.
        """
        if self.model.dtype != torch.float32:
            short = make_packed_decoder(make_short_copy(self.model))
            return short is not None and PackedStepper(short, 2).agrees()
        ids = [1, 2, 3, 4]
        self.start({0: ids[:-1]})
        own_V = self.step(torch.full((self.slots,), ids[-1]))[0].clone()
        self.clear()
        expected_V = self.model(input_ids=torch.tensor([ids], device=self.device)).logits[0, -1]
        return bool((own_V - expected_V).abs().max() <= 1e-3 * expected_V.abs().max().clamp(min=1.0))

    @torch.no_grad()
    def start(self, prompts: dict[int, Sequence[int]], logits_SV: torch.Tensor | None = None) -> torch.Tensor:
        """Start new sequences in some slots. Returns the logits of all slots, in the tensor that `step` returns.

        Arguments:
            prompts: ids by slot; the slot's old sequence is dropped.
            logits_SV: for the interface of `SlotStepper`.
        """
        longest = max(map(len, prompts.values()))
        check_length(longest, self.context, "a prompt")
        self._make_room(longest + 1)
        first: dict[tuple[int, ...], int] = {}
        source = {slot: first.setdefault(tuple(ids), slot) for slot, ids in prompts.items()}
        batch: dict[int, Sequence[int]] = {}
        total = 0
        for slot in first.values():
            if batch and total + len(prompts[slot]) > _MAX_TOKENS:
                self._read_prompts(batch)
                batch, total = {}, 0
            batch[slot] = prompts[slot]
            total += len(prompts[slot])
        self._read_prompts(batch)
        copies = [(slot, origin) for slot, origin in source.items() if slot != origin]
        if copies:
            to, origin = (torch.tensor(column, device=self.device) for column in zip(*copies, strict=True))
            self._cache[:, :, to, :, :longest] = self._cache[:, :, origin, :, :longest]
            self._logits_SV[to] = self._logits_SV[origin]
        for slot, ids in prompts.items():
            self._lengths[slot] = len(ids)
        return self._logits_SV

    @torch.no_grad()
    def step(self, tokens_S: torch.Tensor, starting: Sequence[int] = (), waiting: Sequence[int] = ()) -> torch.Tensor:
        """Feed one token per slot. Returns the logits after it, `[slots, vocabulary]`; see `SlotStepper.step`."""
        going = self._lengths > 0
        going[[*starting, *waiting]] = False
        check_length(int(self._lengths[going].max(initial=0)) + 1, self.context)
        fed, self._ahead = self._ahead, None
        tokens = tokens_S.cpu().numpy()
        if fed is None or not np.array_equal([tokens[going], self._lengths[going]], [values[going] for values in fed]):
            self._feed(tokens)
        self._lengths[going] += 1
        return self._logits_SV

    def _feed(self, tokens_S: np.ndarray | torch.Tensor) -> None:
        """Write one token to every row and compute the logits after it."""
        # A waiting row writes after its sequence, where its next token overwrites it.
        at = np.minimum(self._lengths, self.context - 1)
        self._make_room(int(at.max()) + 1)
        if self._step_graph is None:
            self._step_graph = self._make_pass(self.slots, self._logits_SV, self._captures)
        every = np.arange(self.slots)
        self._step_graph.load(every, at, every, tokens_S)
        self._step_graph()

    @torch.no_grad()
    def sample(
        self, uniform_S: np.ndarray, temperature: float, vocabulary: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Sample the next tokens of all slots; see `sampling.sample_tokens`."""
        if self._sampler is None or self._sampler.key != (temperature, vocabulary):
            self._sampler = _SamplingGraph(self._logits_SV, temperature, vocabulary)
        self._sampler.start(uniform_S)
        self._feed(self._sampler.chosen_S)
        sampled = self._sampler.wait()
        self._ahead = sampled[0], self._lengths.copy()
        return sampled

    def rest(self, slots: Sequence[int]) -> None:
        """Mark slots as idle until they start again."""
        self._lengths[list(slots)] = 0

    def _read_prompts(self, prompts: dict[int, Sequence[int]]) -> None:
        """Compute packed prompts and write the logits after them to their slots."""
        lengths = [len(ids) for ids in prompts.values()]
        total = sum(lengths)
        captured = self._captures and total <= _PROMPT_TOKENS[-1] and len(lengths) <= _MAX_PROMPTS
        size = next(size for size in _PROMPT_TOKENS if size >= total) if captured else total
        tokens_3N = np.zeros((3, size), dtype=np.int64)
        tokens_3N[1] = self.slots  # Tokens that fill the graph write to a row of their own.
        tokens_3N[0, :total] = np.concatenate([np.asarray(ids) for ids in prompts.values()])
        tokens_3N[1, :total] = np.repeat(list(prompts), lengths)
        tokens_3N[2, :total] = np.concatenate([np.arange(length) for length in lengths])
        last = np.zeros(_MAX_PROMPTS if captured else len(lengths), dtype=np.int64)
        last[: len(lengths)] = np.cumsum(lengths) - 1
        graph = self._prompt_graphs.get(size) if captured else None
        if graph is None:
            logits_MV = self._logits_SV.new_empty((len(last), self._model.outputs))
            graph = self._make_pass(size, logits_MV, captured)
            if captured:
                self._prompt_graphs[size] = graph
        graph.load(tokens_3N[1], tokens_3N[2], last, tokens_3N[0])
        slots_M = torch.tensor(list(prompts), device=self.device)
        self._logits_SV[slots_M] = graph()[: len(lengths)]

    def _make_pass(self, tokens: int, logits_MV: torch.Tensor, capture: bool) -> _Pass:
        try:
            return _Pass(self, tokens, logits_MV, capture)
        except (RuntimeError, ValueError):  # for example of a mixture of experts, which reads from the GPU
            if not capture:
                raise
            self._captures = False
            return _Pass(self, tokens, logits_MV, capture=False)

    def _make_room(self, positions: int) -> None:
        if positions <= self._room:
            return
        model, step = self.model, self._model
        room = min(-(-max(positions, 2 * self._room) // _BLOCK) * _BLOCK, max(self.context, positions))
        per_position = 2 * step.num_layers * (self.slots + 1) * step.shared_heads * step.width * model.dtype.itemsize
        if self.device.type == "cuda" and room * per_position > count_free_bytes(self.device):
            room = positions
        shape = (2, step.num_layers, self.slots + 1, step.shared_heads, room, step.width)
        cache = allocate_cache(shape, model.dtype, self.device, self.slots, room)
        if self._room:
            cache[:, :, :, :, : self._room] = self._cache
        self._cache, self._room, self._step_graph, self._prompt_graphs = cache, room, None, {}
        self._angles = step.compute_angles(room)


class _Pass:
    """A pass over a fixed number of tokens."""

    def __init__(self, stepper: PackedStepper, tokens: int, logits_MV: torch.Tensor, capture: bool) -> None:
        self._stepper, outputs = stepper, len(logits_MV)
        self._inputs = torch.zeros(3 * tokens + outputs, dtype=torch.int64, device=stepper.device)
        self._tokens_3N, self._last_M = self._inputs[: 3 * tokens].view(3, tokens), self._inputs[3 * tokens :]
        self._host = torch.zeros(len(self._inputs), dtype=torch.int64, pin_memory=capture)
        self._tokens_3N[1] = stepper.slots  # While a graph is captured, it must not change a sequence.
        self._logits_MV = logits_MV
        self._copied = torch.cuda.Event() if capture else None  # type: ignore[no-untyped-call]
        self._graph = Graph(self._compute, capture)

    def load(
        self, row_N: np.ndarray, position_N: np.ndarray, last_M: np.ndarray, ids_N: np.ndarray | torch.Tensor
    ) -> None:
        """Set ids, rows and positions of the tokens, and the tokens whose logits are returned."""
        if self._copied is not None:
            self._copied.synchronize()  # The last copy from this buffer has ended.
        first = row_N if isinstance(ids_N, torch.Tensor) else ids_N
        values = np.concatenate([first, row_N, position_N, last_M])
        self._host.copy_(torch.from_numpy(values))
        self._inputs.copy_(self._host, non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        if isinstance(ids_N, torch.Tensor):
            self._tokens_3N[0].copy_(ids_N)

    def __call__(self) -> torch.Tensor:
        self._graph()
        return self._logits_MV

    def _compute(self) -> None:
        stepper = self._stepper
        ids_N, row_N, position_N = self._tokens_3N
        stepper._model(ids_N, row_N, position_N, self._last_M, stepper._cache, stepper._angles, self._logits_MV)


class _SamplingGraph:
    """Samples from logits in a fixed place."""

    def __init__(self, logits_SV: torch.Tensor, temperature: float, vocabulary: int) -> None:
        self.key = temperature, vocabulary
        self._logits_SV, self._temperature, self._vocabulary = logits_SV, temperature, vocabulary
        slots, device = len(logits_SV), logits_SV.device
        self._uniform_S = torch.zeros(slots, device=device)
        self.chosen_S = torch.zeros(slots, dtype=torch.int64, device=device)
        self._sampled_3S = torch.zeros(3, slots, dtype=torch.float64, device=device)
        self._host_3S = torch.zeros(3, slots, dtype=torch.float64, pin_memory=logits_SV.is_cuda)
        self._copied = torch.cuda.Event() if logits_SV.is_cuda else None  # type: ignore[no-untyped-call]
        self._graph = Graph(self._compute, capture=logits_SV.is_cuda)

    def start(self, uniform_S: np.ndarray) -> None:
        """Sample with one uniform number per slot."""
        self._uniform_S.copy_(torch.from_numpy(uniform_S))
        self._graph()
        self._host_3S.copy_(self._sampled_3S, non_blocking=True)
        if self._copied is not None:
            self._copied.record()

    def wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return tokens, log-probs and entropies."""
        if self._copied is not None:
            self._copied.synchronize()
        chosen_S, logprobs_S, entropy_S = self._host_3S.numpy()
        return chosen_S.astype(np.int64), logprobs_S.astype(np.float32), entropy_S.astype(np.float32)

    def _compute(self) -> None:
        logits_SV = self._logits_SV[:, : self._vocabulary].float()
        sampled = sample_tokens(logits_SV, self._uniform_S, self._temperature)
        self.chosen_S.copy_(sampled[0])
        self._sampled_3S.copy_(torch.stack([values_S.double() for values_S in sampled]))
