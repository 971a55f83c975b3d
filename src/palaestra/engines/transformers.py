"""Completions from a transformers model in this process.

Text is generated with continuous batching: when sequences finish, others take their slots. The random choices of a row
come from its own request, so in float32 the same request produces the same tokens in any batch. Families without slots
(`families`) have batches that are padded on the left, or one sequence at a time.

With a processor, prompts may contain images. All prompts of a batch have image inputs of the same shapes.
"""

from __future__ import annotations

import copy
import inspect
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count, groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from palaestra.chat.rendering import end_ids
from palaestra.core.errors import SettingsError
from palaestra.core.records import Answer, Completion, Failure, FailureCause, Request, Sampling, StopReason, Usage
from palaestra.core.seeding import Seeds
from palaestra.engines.base import ABORTED, EMPTY, BaseEngine, OnAnswer, OnToken, Slot, context_failure, encode_prompt
from palaestra.kernels.cpu import select_matmul_kernels
from palaestra.kernels.gpu.device import count_cache_rows
from palaestra.kernels.operations import filter_logits
from palaestra.kernels.slots import Stepper, make_stepper
from palaestra.models.families import original_context, position_limit, takes_padding, takes_slots
from palaestra.models.images import Shapes, VisualPrompt, batch_inputs, image_shapes, visual_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin

    from palaestra.models.registry import LoadedModel


_MAX_SLOT_TOKENS = 4096
"""Number of tokens of a sequence for which a GPU has to have memory in every slot."""
_MAX_FAST_PARAMETERS = 20_000_000
"""Maximum size of a model for the fast decoding step."""
_MAX_WAIT_STEPS = 8
"""Maximum number of steps that a sequence waits for others, so that their prompts are read together."""


@dataclass(slots=True)
class _Row:
    """One completion in progress."""

    slot: Slot
    prompt: list[int]
    sampling: Sampling
    limit: int
    seed: int
    visual: VisualPrompt | None
    """The processed prompt of a model that reads images."""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    text: str | None = None
    answer: Answer | None = None
    uniforms: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        stream = Seeds(self.seed).derive("completion", self.slot[1]).generator()
        self.uniforms = stream.random(max(self.limit, 0)) if self.sampling.temperature > 0 else np.zeros(0)

    @property
    def shapes(self) -> Shapes:
        return image_shapes(self.visual.inputs, len(self.prompt)) if self.visual is not None else ()

    def draw(self) -> float:
        """Return the random number of the next token."""
        return float(self.uniforms[len(self.ids)]) if len(self.ids) < len(self.uniforms) else 0.0

    def clear(self) -> None:
        self.ids, self.logprobs, self.text = [], [], None


class TransformersEngine(BaseEngine):
    """Generates with a causal language model of transformers, with or without image input.

    Arguments:
        model, tokenizer: as loaded by `palaestra.models.registry.load`.
        name: the model's name in the ledger.
        batch_size: maximum number of completions per batch. A GPU with little free memory has fewer.
        processor: the processor of an image-text-to-text checkpoint; without one, prompts with images fail.
        processed_logprobs: whether log-probs are those of the sampled distribution, after temperature, top-k and top-p.
            Otherwise they are those of the model's own distribution.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        name: str = "",
        batch_size: int = 128,
        processor: ProcessorMixin | None = None,
        processed_logprobs: bool = False,
    ) -> None:
        self.model, self.tokenizer, self.batch_size, self.processor = model, tokenizer, batch_size, processor
        self._processed = processed_logprobs
        self.name = name or str(model.config.name_or_path)
        self.end_ids = set(end_ids(model, tokenizer))
        pad = tokenizer.pad_token_id
        self.pad_id = int(pad) if pad is not None else next(iter(self.end_ids), 0)
        self.context = position_limit(model.config) or 1 << 30
        # LongRoPE changes its factors beyond this length, so no sequence may grow across it.
        self._original = original_context(model.config)
        # Prompts with images, and families whose sequences cannot share a cache but may be padded, need padded batches.
        text = model.config
        self._padded = processor is not None or self._original > 0 or (takes_padding(text) and not takes_slots(text))
        self._stepper: Stepper | None = None
        self._on_token: OnToken | None = None
        self._on_answer: OnAnswer | None = None
        self._is_aborted: Callable[[int], bool] | None = None
        # Only the logits of the last position are needed.
        forward = inspect.signature(model.forward).parameters
        self._last_only: dict[str, int] = {"logits_to_keep": 1} if "logits_to_keep" in forward else {}
        # Some models have position ids in three dimensions for images.
        self._positions: Any = None
        if processor is not None:
            self._positions = next((m.get_rope_index for m in model.modules() if hasattr(m, "get_rope_index")), None)

    @classmethod
    def from_loaded(cls, model: LoadedModel, batch_size: int = 128, *, plain: bool = False) -> TransformersEngine:
        """Make an engine of a loaded model. `plain` sends the plain text instead of applying the chat template.

        Raises:
            SettingsError: `plain` for a model that reads images, which needs its template.
        """
        tokenizer = model.tokenizer
        if plain:
            if model.processor is not None:
                raise SettingsError(f"{model.name} needs its chat template to read images; set the prompt to 'chat'")
            tokenizer = copy.deepcopy(tokenizer)
            tokenizer.chat_template = None
        return cls(model.weights, tokenizer, model.name, batch_size, model.processor)

    def generate_streaming(self, requests: Sequence[Request], on_token: OnToken) -> list[list[Answer]]:
        """See `StreamingEngine`."""
        self._on_token = on_token
        try:
            return self.generate(requests)
        finally:
            self._on_token = None

    def generate(self, requests: Sequence[Request]) -> list[list[Answer]]:
        rows = [row for index, request in enumerate(requests) for row in self._make_rows(index, request)]
        with self._eval_mode():
            for batch in self._batches([row for row in rows if row.answer is None]):
                self._complete(batch)
        answers: list[list[Answer]] = [[] for _ in requests]
        for row in rows:
            assert row.answer is not None
            answers[row.slot[0]].append(row.answer)
        return answers

    def generate_joining(
        self,
        take: Callable[[int], Sequence[Request]],
        on_token: OnToken,
        on_answer: OnAnswer,
        is_aborted: Callable[[int], bool] = lambda index: False,
    ) -> None:
        """See `JoiningEngine`."""
        index = count()

        def take_rows(room: int) -> list[_Row]:
            rows = [row for request in take(room) for row in self._make_rows(next(index), request)]
            return [row for row in rows if row.answer is None]

        self._on_token, self._on_answer, self._is_aborted = on_token, on_answer, is_aborted
        try:
            with self._eval_mode():
                while rows := take_rows(self.batch_size):
                    for batch in self._batches(rows):
                        self._complete(batch, take_rows)
        finally:
            self._on_token = self._on_answer = self._is_aborted = None

    @contextmanager
    def _eval_mode(self) -> Iterator[None]:
        was_training = self.model.training
        self.model.eval()
        try:
            yield
        finally:
            self.model.train(was_training)

    def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """See `RolloutEngine`."""
        own = self.model.state_dict()
        with torch.no_grad():
            for name, tensor in weights:
                own[name].copy_(tensor)

    def close(self) -> None:
        """Do nothing: the model's memory is freed with the engine."""

    def prompt_tokens(self, request: Request) -> int:
        """Count the tokens of a request's prompt; 0 if the prompt is invalid, for which `generate` returns a failure."""
        prompt = self._prompt(request)
        return 0 if isinstance(prompt, Failure) else len(prompt[0])

    def _batches(self, rows: list[_Row]) -> Iterator[list[_Row]]:
        rows.sort(key=lambda row: (row.shapes, len(row.prompt), row.limit, row.slot))
        if not self._padded:
            yield rows
            return
        for _, alike in groupby(rows, key=lambda row: (row.shapes, len(row.prompt) > self._original > 0)):
            group = list(alike)
            for start in range(0, len(group), self.batch_size):
                yield group[start : start + self.batch_size]

    def _prompt(self, request: Request) -> tuple[list[int], VisualPrompt | None] | Failure:
        """Return the token ids of a prompt and its processed images."""
        encode_images = partial(visual_prompt, self.processor) if self.processor is not None else None
        prompt = encode_prompt(self.name, self.tokenizer, request, encode_images)
        if isinstance(prompt, VisualPrompt):
            return (prompt.ids, prompt) if prompt.ids else EMPTY
        return prompt if isinstance(prompt, Failure) else (prompt, None)

    def _make_rows(self, index: int, request: Request) -> list[_Row]:
        """Return one row per completion. The rows of an invalid request have their answer: the failure."""
        encoded = self._prompt(request)
        failure, (prompt, visual) = (encoded, ([], None)) if isinstance(encoded, Failure) else (None, encoded)
        context = self._original if len(prompt) <= self._original else self.context
        room = context - len(prompt)
        if failure is None and room < 1:
            failure = context_failure(self.name, len(prompt), context)
        limit = min(request.sampling.max_tokens, room)
        rows = []
        for k in range(request.sampling.count):
            row = _Row((index, k), prompt, request.sampling, limit, request.seed, visual)
            if failure is not None:
                self._finish(row, failure)
            rows.append(row)
        return rows

    def _complete(self, rows: list[_Row], take: Callable[[int], list[_Row]] | None = None) -> None:
        """Generate some rows, and those that `take` adds later.

        After an error the unfinished rows are generated in halves, so that one bad row does not affect the others.
        """
        if not (rows := self._drop_aborted(rows)):
            return
        single = len(rows) == 1 and take is None
        try:
            if self._padded:
                self._decode_batch(rows)
            else:
                self._decode_slots(rows, take)
        except Exception as error:  # A model may raise anything.
            if single:
                self._finish(rows[0], Failure(FailureCause.ENGINE, f"{type(error).__name__}: {error}".splitlines()[0]))
                return
            unfinished = [row for row in rows if row.answer is None]
            for row in unfinished:
                row.clear()
            half = len(unfinished) // 2
            for part in (unfinished[:half], unfinished[half:]):
                if part:
                    self._complete(part)

    def _drop_aborted(self, rows: Iterable[_Row]) -> list[_Row]:
        """Finish the rows of aborted requests. Returns the others."""
        if self._is_aborted is not None:
            for row in rows:
                if row.answer is None and self._is_aborted(row.slot[0]):
                    self._finish(row, ABORTED)
        return [row for row in rows if row.answer is None]

    def _finish(self, row: _Row, answer: Answer) -> None:
        row.answer = answer
        if self._on_answer is not None:
            self._on_answer(row.slot, answer)

    @torch.inference_mode()
    def _decode_slots(self, rows: list[_Row], take: Callable[[int], list[_Row]] | None) -> None:
        """Generate with continuous batching. `rows` keeps the unfinished rows, including those from `take`."""
        if self._stepper is None:
            small = sum(parameter.numel() for parameter in self.model.parameters()) <= _MAX_FAST_PARAMETERS
            slots = self.batch_size
            if self.model.device.type == "cuda":
                longest = min(self.context, _MAX_SLOT_TOKENS)
                slots = min(slots, count_cache_rows(self.model.config, self.model.dtype, self.model.device, longest))
            self._stepper = make_stepper(self.model, slots, fast=small)
        stepper, device = self._stepper, self.model.device
        stepper.clear()
        free, active, waiting, waited = list(range(stepper.slots)), dict[int, _Row](), deque(rows), 0
        logits_SV: torch.Tensor | None = None
        choose, slots_B = None, torch.empty(0)
        while True:
            if take is not None and free and not waiting:
                new_rows = take(len(free))
                rows[:] = [*active.values(), *new_rows]
                waiting.extend(new_rows)
            waiting = deque(self._drop_aborted(waiting))
            ready = min(len(waiting), len(free))
            waited = waited + 1 if ready else 0
            if ready and (4 * ready >= len(active) or waited > _MAX_WAIT_STEPS):
                starting = {free.pop(): waiting.popleft() for _ in range(ready)}
                with select_matmul_kernels():
                    logits_SV = stepper.start({slot: row.prompt for slot, row in starting.items()}, logits_SV)
                active |= starting
                choose, waited = None, 0
            if not active:
                return
            if choose is None:
                choose = _make_chooser(list(active.values()), device, self._processed)
                slots_B = torch.tensor(list(active), device=device)
            assert logits_SV is not None
            chosen_B = self._extend(list(active.values()), logits_SV[slots_B].float(), choose)
            finished = [slot for slot, row in active.items() if row.answer is not None]
            tokens_S = chosen_B.new_zeros(stepper.slots).scatter(0, slots_B, chosen_B)
            for slot in finished:
                del active[slot]
            if finished:
                stepper.rest(finished)
                free += finished
                choose = None
            if active:
                with select_matmul_kernels():
                    logits_SV = stepper.step(tokens_S)

    def _extend(self, rows: list[_Row], logits_BV: torch.Tensor, choose: _Chooser) -> torch.Tensor:
        """Choose the next token of every row and append it to unfinished rows. Returns the tokens."""
        if not bool(torch.isfinite(logits_BV.amax(-1)).all()):
            raise ValueError("the model's logits are not finite")
        chosen_B, logprobs_B = choose(logits_BV)
        self._drop_aborted(rows)
        for row, token, logprob in zip(rows, chosen_B.tolist(), logprobs_B.tolist(), strict=True):
            if row.answer is not None:
                continue
            if self._on_token is not None:
                self._on_token(row.slot, len(row.ids), token)
            row.ids.append(token)
            row.logprobs.append(logprob)
            if (reason := self._stop_reason(row)) is not None:
                self._finish(row, self._make_completion(row, reason))
        return chosen_B

    @torch.inference_mode()
    def _decode_batch(self, rows: list[_Row]) -> None:
        """Generate with a batch that is padded on the left."""
        device = self.model.device
        length = max(len(row.prompt) for row in rows)
        input_ids_BT = torch.full((len(rows), length), self.pad_id)
        mask_BT = torch.zeros((len(rows), length), dtype=torch.long)
        for index, row in enumerate(rows):
            input_ids_BT[index, length - len(row.prompt) :] = torch.tensor(row.prompt)
            mask_BT[index, length - len(row.prompt) :] = 1
        input_ids_BT, mask_BT = input_ids_BT.to(device), mask_BT.to(device)
        position_ids_BT = (mask_BT.cumsum(-1) - 1).clamp(min=0)
        images: dict[str, torch.Tensor] = {}
        visual = [row.visual for row in rows if row.visual is not None]
        if visual and visual[0].inputs:
            images = batch_inputs(visual, length, device, self.model.dtype)
            if self._positions is not None:
                position_ids_BT = self._positions(input_ids_BT, attention_mask=mask_BT, **images)[0]
        active, cache = rows, None
        context = self._original if length <= self._original else self.context
        choose = _make_chooser(active, device, self._processed)
        while True:
            output = self.model(
                input_ids=input_ids_BT,
                attention_mask=mask_BT,
                position_ids=position_ids_BT,
                past_key_values=cache,
                use_cache=True,
                **images,
                **self._last_only,
            )
            images = {}  # They are in the cache now.
            cache = output.past_key_values
            chosen_B = self._extend(active, output.logits[:, -1].float(), choose)
            keep = [index for index, row in enumerate(active) if row.answer is None]
            if not keep:
                return
            next_B = chosen_B
            # The positions of finished rows must stay within the context; with LongRoPE they change the others' rotation.
            position_ids_BT = (position_ids_BT[..., -1:] + 1).clamp(max=context - 1)
            # Finished rows stay until a quarter has finished: dropping rows copies the cache.
            if len(keep) <= 0.75 * len(active):
                index_B = torch.tensor(keep, device=device)
                cache.batch_select_indices(index_B)
                next_B, mask_BT = next_B[index_B], mask_BT[index_B]
                position_ids_BT = position_ids_BT.index_select(-2, index_B)
                active = [active[index] for index in keep]
                choose = _make_chooser(active, device, self._processed)
            mask_BT = torch.cat([mask_BT, mask_BT.new_ones((len(active), 1))], dim=-1)
            input_ids_BT = next_B[:, None]

    def _stop_reason(self, row: _Row) -> StopReason | None:
        if row.ids[-1] in self.end_ids:
            return StopReason.END
        if row.sampling.stop:
            text = self.tokenizer.decode(row.ids, skip_special_tokens=True)
            places = [place for place in (text.find(stop) for stop in row.sampling.stop) if place >= 0]
            if places:
                row.text = text[: min(places)]
                return StopReason.STOP
        return StopReason.LENGTH if len(row.ids) >= row.limit else None

    def _make_completion(self, row: _Row, reason: StopReason) -> Completion:
        ended = reason is StopReason.END
        text = row.text
        if text is None:
            text = self.tokenizer.decode(row.ids[:-1] if ended else row.ids, skip_special_tokens=True)
        return Completion(
            text=str(text),
            token_ids=tuple(row.ids),
            logprobs=tuple(row.logprobs),
            stop_reason=reason,
            usage=Usage(len(row.prompt), len(row.ids)),
            prompt_ids=tuple(row.prompt),
        )


_Chooser = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def _make_chooser(rows: list[_Row], device: torch.device, processed: bool) -> _Chooser:
    """Return the function that samples the next tokens of a batch: `logits_BV -> (chosen_B, logprobs_B)`."""
    if all(row.sampling.temperature == 0 for row in rows):
        return _greedy
    temperature_B1 = torch.tensor([[row.sampling.temperature] for row in rows], device=device)
    top_p_B1 = torch.tensor([[row.sampling.top_p] for row in rows], device=device)
    top_k_B1 = torch.tensor([[row.sampling.top_k] for row in rows], device=device)
    sampled_B = temperature_B1[:, 0] > 0

    def choose(logits_BV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        greedy_B, _ = _greedy(logits_BV)
        uniform_B = torch.tensor([row.draw() for row in rows], dtype=torch.float64, device=device)
        scaled_BV = logits_BV / temperature_B1.clamp(min=1e-6)
        filtered_BV = filter_logits(scaled_BV, top_p_B1, top_k_B1)
        chosen_B = torch.where(sampled_B, _draw(filtered_BV, uniform_B), greedy_B)
        logits_BV = filtered_BV if processed else logits_BV
        return chosen_B, logits_BV.log_softmax(-1).gather(-1, chosen_B[:, None])[:, 0]

    return choose


def _greedy(logits_BV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    best_B, chosen_B = logits_BV.max(-1)
    return chosen_B, best_B - logits_BV.logsumexp(-1)


def _draw(logits_BV: torch.Tensor, uniform_B: torch.Tensor) -> torch.Tensor:
    """Sample by inverting the cumulative distribution at one uniform number per row."""
    cumulative_BV = logits_BV.double().softmax(-1).cumsum(-1)
    target_B1 = (uniform_B * cumulative_BV[:, -1])[:, None]
    # `right=True` never selects a token of probability zero.
    return torch.searchsorted(cumulative_BV, target_B1, right=True)[:, 0].clamp(max=logits_BV.shape[-1] - 1)
