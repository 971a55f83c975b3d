"""From examples to batches: exact ids, the loss on the response alone, little padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from palaestra.core.errors import LessonError
from palaestra.core.records import Example
from palaestra.engines.chat import prompt_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

IGNORE = -100
"""The label of a token that takes no part in the loss, as everywhere in torch."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """An example as the model will see it: what it is given, then what it is to say."""

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.response_ids)


def encode(example: Example, tokenizer: PreTrainedTokenizerBase, limit: int) -> Encoded:
    """Tokenize `example` just as an engine would ask it, and end the response with end-of-turn.

    Raises:
        LessonError: the example is longer than `limit` tokens.
    """
    prompt = prompt_ids(tokenizer, example.messages)
    response = tokenizer.encode(example.response, add_special_tokens=False)
    encoded = Encoded(tuple(prompt), (*response, tokenizer.eos_token_id))
    if len(encoded) > limit:
        raise LessonError(
            f"an example has {len(encoded)} tokens and the student reads at most {limit}; "
            f"shorten it: {example.messages[-1].text[:60]!r}"
        )
    return encoded


def collate(rows: Sequence[Encoded], pad_id: int, device: Any = None) -> dict[str, torch.Tensor]:
    """Pad `rows` on the right into `input_ids_BT`, `attention_mask_BT` and `labels_BT`."""
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
    return {name: tensor.to(device) for name, tensor in batch.items()}


def response_loss(logits_BTV: torch.Tensor, labels_BT: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy over the response tokens of the whole batch."""
    return torch.nn.functional.cross_entropy(
        logits_BTV[:, :-1].flatten(0, 1).float(), labels_BT[:, 1:].flatten(), ignore_index=IGNORE
    )


def batch_plan(lengths: Sequence[int], batch_size: int, generator: np.random.Generator) -> Iterator[list[int]]:
    """One epoch: every index once, in batches of similar length and random order.

    Sorting within windows of a few batches saves most of the padding and keeps the batches mixed.
    """
    order = generator.permutation(len(lengths))
    window = 8 * batch_size
    batches = []
    for start in range(0, len(order), window):
        near = sorted(order[start : start + window].tolist(), key=lambda index: lengths[index])
        batches += [near[k : k + batch_size] for k in range(0, len(near), batch_size)]
    for position in generator.permutation(len(batches)):
        yield batches[position]
