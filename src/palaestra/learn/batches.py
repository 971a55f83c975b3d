"""Batches of examples: exact token ids, labels on the response only, little padding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from palaestra.core.errors import LessonError
from palaestra.core.records import Example
from palaestra.engines.chat import prompt_ids
from palaestra.engines.images import ImageError, along_tokens, has_image, image_shapes, visual_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

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


def encode(example: Example, tokenizer: PreTrainedTokenizerBase, limit: int, processor: Any = None) -> Encoded:
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
    elif has_image(example.messages):
        raise LessonError("an example has an image, and the student reads text only; use a model such as nano-vlm")
    else:
        prompt = prompt_ids(tokenizer, example.messages)
    response = tokenizer.encode(example.response, add_special_tokens=False)
    encoded = Encoded(tuple(prompt), (*response, tokenizer.eos_token_id), images)
    if len(encoded) > limit:
        raise LessonError(
            f"an example has {len(encoded)} tokens and the student reads at most {limit}; "
            f"shorten it: {example.messages[-1].text[:60]!r}"
        )
    return encoded


def collate(rows: Sequence[Encoded], pad_id: int, device: Any = None) -> dict[str, torch.Tensor]:
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
    parts: dict[Any, list[int]] = {}
    for index in batch:
        row = rows[index]
        parts.setdefault(image_shapes(row.images, len(row.prompt_ids)), []).append(index)
    if len(parts) <= 1 + (() in parts):
        yield list(batch)
        return
    plain = parts.pop((), [])
    for part in parts.values():
        yield part + plain
        plain = []


def response_loss(logits_BTV: torch.Tensor, labels_BT: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy over the response tokens of the whole batch."""
    return torch.nn.functional.cross_entropy(
        logits_BTV[:, :-1].flatten(0, 1).float(), labels_BT[:, 1:].flatten(), ignore_index=IGNORE
    )


def plan_batches(lengths: Sequence[int], batch_size: int, generator: np.random.Generator) -> Iterator[list[int]]:
    """Plan one epoch: every index once, in batches of similar length and random order.

    Sorting within windows of a few batches avoids most of the padding and keeps the batches mixed.
    """
    order = generator.permutation(len(lengths))
    window = 8 * batch_size
    batches = []
    for start in range(0, len(order), window):
        near = sorted(order[start : start + window].tolist(), key=lambda index: lengths[index])
        batches += [near[k : k + batch_size] for k in range(0, len(near), batch_size)]
    for position in generator.permutation(len(batches)):
        yield batches[position]
