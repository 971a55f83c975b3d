"""Completions from a transformers model in this process.

Batches are sorted by length, padded on the left, and masked. Finished rows leave the batch. The random choices of a row
come from its own request, so in float32 the same request produces the same tokens in any batch. Models that do not support
padding (state-space and hybrid models) process one sequence at a time.

With a processor, prompts may contain images. All prompts of a batch have image inputs of the same shapes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from palaestra.core.errors import MissingExtraError
from palaestra.core.records import Completion, Failure, FailureCause, StopReason, Usage
from palaestra.core.seeding import Seeds
from palaestra.engines.base import Answer, BaseEngine, Request, Sampling, Slot
from palaestra.engines.chat import end_ids, prompt_ids, with_tools
from palaestra.engines.families import original_context, position_limit, takes_padding
from palaestra.engines.images import (
    ImageError,
    Shapes,
    VisualPrompt,
    batch_inputs,
    has_image,
    image_shapes,
    visual_prompt,
)
from palaestra.engines.sequences import SequenceStepper

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(slots=True)
class _Row:
    """One completion in progress."""

    slot: tuple[int, int]
    prompt: list[int]
    sampling: Sampling
    limit: int
    uniforms: np.ndarray
    ids: list[int]
    logprobs: list[float]
    stop_reason: StopReason | None = None
    text: str | None = None
    visual: VisualPrompt | None = None
    """The processed prompt of a model that reads images."""

    @property
    def shapes(self) -> Shapes:
        return image_shapes(self.visual.inputs, len(self.prompt)) if self.visual is not None else ()


class TransformersEngine(BaseEngine):
    """Generates with a causal language model of transformers, with or without image input.

    Arguments:
        model, tokenizer: as loaded by `palaestra.engines.models.load`.
        name: the model's name in the ledger.
        batch_size: maximum number of completions per batch.
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
        processor: Any = None,
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
        self._padded = processor is not None or takes_padding(model.config)
        self._stepper: SequenceStepper | None = None
        self._on_token: Callable[[Slot, int, int], None] | None = None
        # Only the logits of the last position are needed.
        forward = inspect.signature(model.forward).parameters
        self._last_only: dict[str, Any] = {"logits_to_keep": 1} if "logits_to_keep" in forward else {}
        # Some models have position ids in three dimensions for images.
        self._positions: Any = None
        if processor is not None:
            self._positions = next((m.get_rope_index for m in model.modules() if hasattr(m, "get_rope_index")), None)

    def generate_streaming(
        self, requests: Sequence[Request], on_token: Callable[[Slot, int, int], None]
    ) -> list[list[Answer]]:
        """See `StreamingEngine`."""
        self._on_token = on_token
        try:
            return self.generate(requests)
        finally:
            self._on_token = None

    def generate(self, requests: Sequence[Request]) -> list[list[Answer]]:
        answers: list[list[Answer | None]] = [[None] * request.sampling.count for request in requests]
        rows: list[_Row] = []
        for index, request in enumerate(requests):
            new_rows = self._rows(index, request)
            if isinstance(new_rows, Failure):
                answers[index] = [new_rows] * request.sampling.count
            else:
                rows += new_rows
        was_training = self.model.training
        self.model.eval()
        try:
            for batch in self._batches(rows):
                for row, answer in zip(batch, self._complete(batch), strict=True):
                    answers[row.slot[0]][row.slot[1]] = answer
        finally:
            self.model.train(was_training)
        return [[answer for answer in row if answer is not None] for row in answers]

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
        for _, alike in groupby(rows, key=lambda row: (row.shapes, len(row.prompt) > self._original > 0)):
            group = list(alike)
            for start in range(0, len(group), self.batch_size):
                yield group[start : start + self.batch_size]

    def _prompt(self, request: Request) -> tuple[list[int], VisualPrompt | None] | Failure:
        """Return the token ids of a prompt and its processed images."""
        if self.processor is None and has_image(request.messages):
            return Failure(FailureCause.INVALID_REQUEST, f"{self.name} reads text only; the prompt has an image")
        visual: VisualPrompt | None = None
        try:
            if request.prompt_ids:
                prompt = list(request.prompt_ids)
            elif self.processor is None:
                prompt = prompt_ids(self.tokenizer, request.messages, request.tools)
            else:
                messages = with_tools(request.messages, request.tools) if request.tools else request.messages
                visual = visual_prompt(self.processor, messages)
                prompt = visual.ids
        except MissingExtraError:
            raise
        except ImageError as error:
            return Failure(FailureCause.INVALID_REQUEST, str(error))
        except Exception as error:  # A chat template may raise anything.
            return Failure(FailureCause.INVALID_REQUEST, f"the chat template rejected the prompt: {error}")
        if not prompt:
            return Failure(FailureCause.INVALID_REQUEST, "the prompt is empty")
        return prompt, visual

    def _rows(self, index: int, request: Request) -> list[_Row] | Failure:
        encoded = self._prompt(request)
        if isinstance(encoded, Failure):
            return encoded
        prompt, visual = encoded
        context = self._original if len(prompt) <= self._original else self.context
        room = context - len(prompt)
        if room < 1:
            return Failure(
                FailureCause.CONTEXT_LENGTH,
                f"the prompt has {len(prompt)} tokens; {self.name} reads at most {context}, including the answer",
            )
        limit = min(request.sampling.max_tokens, room)
        rows = []
        for k in range(request.sampling.count):
            stream = Seeds(request.seed).derive("completion", k).generator()
            uniforms = stream.random(limit) if request.sampling.temperature > 0 else np.zeros(0)
            rows.append(_Row((index, k), prompt, request.sampling, limit, uniforms, [], [], visual=visual))
        return rows

    def _complete(self, rows: list[_Row]) -> list[Answer]:
        """Generate one batch. If it fails, generate its halves, so that one bad row does not affect the others."""
        try:
            self._decode(rows)
        except Exception as error:  # A model may raise anything.
            if len(rows) == 1:
                return [Failure(FailureCause.ENGINE, f"{type(error).__name__}: {error}".splitlines()[0])]
            for row in rows:
                row.ids, row.logprobs, row.stop_reason, row.text = [], [], None, None
            half = len(rows) // 2
            return self._complete(rows[:half]) + self._complete(rows[half:])
        return [self._completion(row) for row in rows]

    @torch.inference_mode()
    def _decode(self, rows: list[_Row]) -> None:
        if self._padded:
            self._decode_batch(rows)
        else:
            self._decode_sequences(rows)

    def _decode_sequences(self, rows: list[_Row]) -> None:
        """Generate with a model that does not support padding."""
        if self._stepper is None or self._stepper.slots < len(rows):
            self._stepper = SequenceStepper(self.model, len(rows))
        stepper, device = self._stepper, self.model.device
        stepper.clear()
        logits_SV = stepper.start({slot: row.prompt for slot, row in enumerate(rows)})
        choose = _make_chooser(rows, device, self._processed)
        while True:
            chosen_B = self._extend(rows, logits_SV[: len(rows)].float(), choose)
            finished = [slot for slot, row in enumerate(rows) if row.stop_reason is not None]
            if len(finished) == len(rows):
                return
            stepper.rest(finished)
            logits_SV = stepper.step(torch.nn.functional.pad(chosen_B, (0, stepper.slots - len(rows))))

    def _extend(self, rows: list[_Row], logits_BV: torch.Tensor, choose: Chooser) -> torch.Tensor:
        """Choose the next token of every row and append it to unfinished rows. Returns the tokens."""
        if not bool(torch.isfinite(logits_BV.amax(-1)).all()):
            raise ValueError("the model's logits are not finite")
        chosen_B, logprobs_B = choose(logits_BV)
        for row, token, logprob in zip(rows, chosen_B.tolist(), logprobs_B.tolist(), strict=True):
            if row.stop_reason is not None:
                continue
            if self._on_token is not None:
                self._on_token(row.slot, len(row.ids), token)
            row.ids.append(token)
            row.logprobs.append(logprob)
            row.stop_reason = self._stop_reason(row)
        return chosen_B

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
        images: dict[str, Any] = {}
        visual = [row.visual for row in rows if row.visual is not None]
        if visual and visual[0].inputs:
            images = batch_inputs(visual, length, device, self.model.dtype)
            if self._positions is not None:
                position_ids_BT = self._positions(input_ids_BT, attention_mask=mask_BT, **images)[0]
        active, cache = rows, None
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
            keep = [index for index, row in enumerate(active) if row.stop_reason is None]
            if not keep:
                return
            next_B = chosen_B
            # The positions of finished rows must stay within the context.
            position_ids_BT = (position_ids_BT[..., -1:] + 1).clamp(max=self.context - 1)
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

    def _completion(self, row: _Row) -> Completion:
        assert row.stop_reason is not None
        ended = row.stop_reason is StopReason.END
        text = row.text
        if text is None:
            text = self.tokenizer.decode(row.ids[:-1] if ended else row.ids, skip_special_tokens=True)
        return Completion(
            text=str(text),
            token_ids=tuple(row.ids),
            logprobs=tuple(row.logprobs),
            stop_reason=row.stop_reason,
            usage=Usage(len(row.prompt), len(row.ids)),
            prompt_ids=tuple(row.prompt),
        )


Chooser = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def _make_chooser(rows: list[_Row], device: torch.device, processed: bool) -> Chooser:
    """Return the function that samples the next tokens of a batch: `logits_BV -> (chosen_B, logprobs_B)`."""
    if all(row.sampling.temperature == 0 for row in rows):
        return _greedy
    temperature_B1 = torch.tensor([[row.sampling.temperature] for row in rows], device=device)
    top_p_B1 = torch.tensor([[row.sampling.top_p] for row in rows], device=device)
    top_k_B1 = torch.tensor([[row.sampling.top_k] for row in rows], device=device)
    sampled_B = temperature_B1[:, 0] > 0
    uniforms = [row.uniforms for row in rows]
    step = len(rows[0].ids)

    def choose(logits_BV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        nonlocal step
        greedy_B, _ = _greedy(logits_BV)
        drawn = [float(u[step]) if step < len(u) else 0.0 for u in uniforms]
        uniform_B = torch.tensor(drawn, dtype=torch.float64, device=device)
        step += 1
        scaled_BV = logits_BV / temperature_B1.clamp(min=1e-6)
        filtered_BV = filter_logits(scaled_BV, top_p_B1, top_k_B1)
        chosen_B = torch.where(sampled_B, _draw(filtered_BV, uniform_B), greedy_B)
        logits_BV = filtered_BV if processed else logits_BV
        return chosen_B, logits_BV.log_softmax(-1).gather(-1, chosen_B[:, None])[:, 0]

    return choose


def _greedy(logits_BV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    best_B, chosen_B = logits_BV.max(-1)
    return chosen_B, best_B - logits_BV.logsumexp(-1)


def filter_logits(logits_BV: torch.Tensor, top_p_B1: torch.Tensor, top_k_B1: torch.Tensor) -> torch.Tensor:
    """Set the logits that top-k and top-p exclude to minus infinity. The most likely token is always kept."""
    if bool((top_p_B1 >= 1).all()) and bool((top_k_B1 == 0).all()):
        return logits_BV
    sorted_BV, order_BV = logits_BV.sort(stable=True, dim=-1, descending=True)
    probability_BV = sorted_BV.softmax(-1)
    before_BV = probability_BV.cumsum(-1) - probability_BV
    rank_1V = torch.arange(logits_BV.shape[-1], device=logits_BV.device)[None]
    out_BV = (before_BV >= top_p_B1) | ((top_k_B1 > 0) & (rank_1V >= top_k_B1))
    out_BV[:, 0] = False
    return logits_BV.masked_fill(torch.zeros_like(out_BV).scatter(-1, order_BV, out_BV), float("-inf"))


def _draw(logits_BV: torch.Tensor, uniform_B: torch.Tensor) -> torch.Tensor:
    """Sample by inverting the cumulative distribution at one uniform number per row."""
    cumulative_BV = logits_BV.double().softmax(-1).cumsum(-1)
    target_B1 = (uniform_B * cumulative_BV[:, -1])[:, None]
    # `right=True` never selects a token of probability zero.
    return torch.searchsorted(cumulative_BV, target_B1, right=True)[:, 0].clamp(max=logits_BV.shape[-1] - 1)
