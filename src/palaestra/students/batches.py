"""Batches of examples: exact token ids, labels on the response only, little padding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.functional import cross_entropy, pad

from palaestra.chat.rendering import prompt_ids
from palaestra.core.errors import LessonError
from palaestra.core.records import Example
from palaestra.kernels.sequence_forward import SequenceForward, pad_or_cut
from palaestra.models.families import context_length, position_limit, split_by_rotation
from palaestra.models.images import ImageError, along_tokens, image_shapes, visual_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin

IGNORE = -100
"""The label of tokens that are excluded from the loss, as in `torch.nn.functional.cross_entropy`."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A tokenized example: the prompt and the response."""

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    images: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """The processed images of the prompt, by the name of the model's argument."""

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.response_ids)


def encode(
    example: Example, tokenizer: PreTrainedTokenizerBase, limit: int, processor: ProcessorMixin | None = None
) -> Encoded:
    """Tokenize an example: the prompt as engines encode it, the response, and an end-of-turn token.

    Arguments:
        processor: the image processor of a student that reads images.

    Raises:
        LessonError: the example is longer than `limit` tokens, or has an image that the student cannot read.
    """
    images: Mapping[str, torch.Tensor] = {}
    if processor is not None:
        try:
            seen = visual_prompt(processor, example.messages)
        except ImageError as error:
            raise LessonError(f"an example has an image that cannot be read: {error}") from error
        prompt, images = seen.ids, seen.inputs
    elif any(message.has_image for message in example.messages):
        raise LessonError("an example has an image, and the student reads text only; use a model such as nano-vlm")
    else:
        prompt = prompt_ids(tokenizer, example.messages)
    response = tokenizer.encode(example.response, add_special_tokens=False)
    encoded = Encoded(tuple(prompt), (*response, tokenizer.eos_token_id), images)
    if len(encoded) > limit:
        start = example.messages[-1].text[:60]
        raise LessonError(f"an example has {len(encoded)} tokens and at most {limit} are read; shorten it: {start!r}")
    return encoded


def collate(rows: Sequence[Encoded], pad_id: int, device: torch.device | None = None) -> dict[str, torch.Tensor]:
    """Pad `rows` on the right into `input_ids_BT`, `attention_mask_BT` and `labels_BT`; processed images are joined."""
    length = max(len(row) for row in rows)
    input_ids_BT = torch.full((len(rows), length), pad_id, dtype=torch.long)
    attention_mask_BT = torch.zeros((len(rows), length), dtype=torch.long)
    labels_BT = torch.full((len(rows), length), IGNORE, dtype=torch.long)
    for index, row in enumerate(rows):
        ids = torch.tensor(row.prompt_ids + row.response_ids)
        input_ids_BT[index, : len(ids)] = ids
        attention_mask_BT[index, : len(ids)] = 1
        labels_BT[index, len(row.prompt_ids) : len(ids)] = ids[len(row.prompt_ids) :]
    batch = {"input_ids": input_ids_BT, "attention_mask": attention_mask_BT, "labels": labels_BT}
    for name in dict.fromkeys(name for row in rows for name in row.images):
        held = [(row, row.images.get(name)) for row in rows]
        if any(tensor is not None and along_tokens(tensor, len(row.prompt_ids)) for row, tensor in held):
            # One value per token, such as token types: 0 for the response, the padding and rows without images.
            batch[name] = torch.zeros_like(input_ids_BT)
            for index, (row, tensor) in enumerate(held):
                if tensor is not None:
                    batch[name][index, : len(row.prompt_ids)] = tensor[0]
        else:
            batch[name] = torch.cat([tensor for _, tensor in held if tensor is not None])
    return {name: tensor.to(device) for name, tensor in batch.items()}


def split_by_shape(batch: Sequence[int], rows: Sequence[Encoded]) -> Iterator[list[int]]:
    """Split a batch into parts whose processed images have the same shapes, so that `collate` can join them.

    Some models stack the images of a prompt, so two images have a different shape than one. Rows without images are
    in the first part.
    """
    parts: dict[object, list[int]] = {}
    for index in batch:
        row = rows[index]
        shapes = image_shapes(row.images, len(row.prompt_ids)) if row.images else ()
        parts.setdefault(shapes, []).append(index)
    if len(parts) <= 1 + (() in parts):
        yield list(batch)
        return
    plain = parts.pop((), [])
    for part in parts.values():
        yield part + plain
        plain = []


class ResponseLogProbs:
    """Computes the log-prob of every response token.

    It uses the packed forward pass if the model has one and no dropout, and otherwise pads the batch. Examples with images
    are always padded.

    Arguments:
        model: a causal language model of transformers, or peft's wrapper of one.
        pad_id: the token that fills a padded batch.
    """

    def __init__(self, model: PreTrainedModel, pad_id: int) -> None:
        self.model, self.pad_id = model, pad_id
        self._forward: SequenceForward | None = None
        if not _has_dropout(model) and context_length(model.config) == position_limit(model.config):
            self._forward = SequenceForward(model)

    def __call__(self, rows: Sequence[Encoded]) -> torch.Tensor:
        """The log-probs `[rows, longest response]`, with 0 after the end of a response."""
        forward = self._forward
        if forward is None or forward.fast is None or any(row.images or not row.prompt_ids for row in rows):
            return self._compute_parts(rows)
        prompts, responses = [row.prompt_ids for row in rows], [row.response_ids for row in rows]
        width = max(map(len, responses))
        outputs = forward(prompts, responses, width, hidden=True, logits=False)
        if outputs.rows_N is None:  # The packed forward pass differed from the model's own.
            return self._compute_parts(rows)
        assert outputs.hidden_ND is not None
        tokens_N = pad_or_cut(responses, width).flatten().to(self.model.device)
        logprobs_N = forward.compute_logprobs(outputs.hidden_ND, tokens_N[outputs.rows_N])
        return outputs.to_table(logprobs_N, len(rows), width)

    def compute_loss(self, rows: Sequence[Encoded]) -> torch.Tensor:
        """The mean cross-entropy of all response tokens of a batch."""
        # Without a prompt, nothing predicts the first token.
        return -self(rows).sum() / sum(len(row.response_ids) - (not row.prompt_ids) for row in rows)

    def _compute_parts(self, rows: Sequence[Encoded]) -> torch.Tensor:
        """The log-probs by the model's own forward pass."""
        parts = split_by_rotation([len(row) for row in rows], self.model.config)
        if len(parts) == 1:
            return self._compute_padded(rows)
        tables = [self._compute_padded([rows[index] for index in part]) for part in parts]
        width = max(table_BW.shape[1] for table_BW in tables)
        table_BW = torch.cat([pad(table_BW, (0, width - table_BW.shape[1])) for table_BW in tables])
        return table_BW[torch.tensor([index for part in parts for index in part]).argsort()]

    def _compute_padded(self, rows: Sequence[Encoded]) -> torch.Tensor:
        batch = collate(rows, self.pad_id, self.model.device)
        labels_BT = batch.pop("labels")[:, 1:]
        logits_BTV = self.model(**batch).logits[:, :-1].float()
        loss_N = cross_entropy(logits_BTV.flatten(0, 1), labels_BT.flatten(), ignore_index=IGNORE, reduction="none")
        table_BT = -loss_N.view(labels_BT.shape)
        # Responses begin after prompts of different lengths.
        width = max(len(row.response_ids) for row in rows)
        first_B1 = torch.tensor([[max(len(row.prompt_ids) - 1, 0)] for row in rows], device=table_BT.device)
        place_BW = first_B1 + torch.arange(width, device=table_BT.device)[None]
        inside_BW = place_BW < table_BT.shape[1]
        return table_BT.gather(1, place_BW.clamp(max=table_BT.shape[1] - 1)) * inside_BW


def _has_dropout(model: PreTrainedModel) -> bool:
    """Whether training draws random zeros outside of adapters, which the packed forward pass does not."""
    if float(getattr(model.config.get_text_config(), "attention_dropout", 0.0) or 0.0) > 0:
        return True
    return any(
        isinstance(module, nn.Dropout) and module.p > 0 and "lora_dropout" not in name
        for name, module in model.named_modules()
    )
