"""Supervised fine-tuning: examples in, changed weights out, the loss on the response only.

One plain loop, for three reasons: it is resumable to the bit, it owns its randomness, and on a small
model it spends its time in the model (`benchmarks/supervised_vs_trl.py` measures it against TRL's
trainer). Adapters are peft's.

Where it departs from the usual recipe: batches are made of examples of similar length, and the
learning rate falls linearly to zero after a short warm-up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

import torch

from palaestra.core.errors import LessonError, MissingExtraError
from palaestra.core.records import Example
from palaestra.core.seeding import Seeds
from palaestra.learn.batches import Encoded, batch_plan, collate, encode, of_one_shape, response_loss
from palaestra.learn.progress import TrainingState
from palaestra.learn.randomness import seeded_torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Method = Literal["full", "lora"]
WHOLE_UP_TO = 20_000_000
"""Parameters up to which a model is trained whole unless told otherwise."""


@dataclass(frozen=True, slots=True)
class Supervision:
    """How to fine-tune.

    Arguments:
        method: train all weights (`"full"`) or a low-rank adapter (`"lora"`).
        rank, alpha, dropout: of the adapter; unused with `"full"`.
    """

    method: Method = "full"
    epochs: int = 4
    batch_size: int = 8
    learning_rate: float = 5e-4
    warmup: float = 0.1
    weight_decay: float = 0.0
    clip: float = 1.0
    rank: int = 16
    alpha: int = 32
    dropout: float = 0.0


def supervision_for(
    weights: Any,
    method: Literal["auto", "full", "lora"] = "auto",
    *,
    epochs: int = 4,
    batch_size: int = 8,
    learning_rate: float = 0.0,
    rank: int = 16,
) -> Supervision:
    """How to train a model of this size: small ones whole, large ones by an adapter.

    Arguments:
        method: `"auto"` trains all weights of models of up to 20 million parameters.
        learning_rate: 0 means the usual one of the method.

    Raises:
        MissingExtraError: an adapter is wanted and peft is not installed.
    """
    if method == "auto":
        method = "full" if sum(p.numel() for p in weights.parameters()) <= WHOLE_UP_TO else "lora"
    if method == "lora" and find_spec("peft") is None:
        raise MissingExtraError("peft", "lora", "training a LoRA adapter")
    rate = learning_rate or {"full": 5e-4, "lora": 2e-4}[method]
    return Supervision(method, epochs, batch_size, rate, rank=rank, alpha=2 * rank)


def add_adapter(model: PreTrainedModel, supervision: Supervision, seeds: Seeds) -> Any:
    """Wrap `model` in a fresh LoRA adapter on all its linear layers, initialised from `seeds`."""
    from peft import LoraConfig, get_peft_model
    from transformers.pytorch_utils import Conv1D

    config = LoraConfig(
        r=supervision.rank,
        lora_alpha=supervision.alpha,
        lora_dropout=supervision.dropout,
        target_modules="all-linear",
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),  # GPT-2 keeps weights this way.
        task_type="CAUSAL_LM",
    )
    with seeded_torch(seeds.derive("adapter")):
        return get_peft_model(model, config)


def fine_tune(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[Example],
    supervision: Supervision,
    seeds: Seeds,
    *,
    processor: Any = None,
    on_step: Callable[[int, int, float], None] = lambda step, total, loss: None,
    state: TrainingState | None = None,
    keep_state: Callable[[TrainingState], None] | None = None,
) -> list[tuple[int, float]]:
    """Train the weights of `model` that require a gradient, in place; returns the curve of the loss.

    Arguments:
        seeds: of the order of the examples (and of dropout).
        processor: of a model that reads images.
        on_step: is told the step, the number of steps, and the loss.
        state: where an interrupted training stood; its result is the same as without interruption.
        keep_state: is offered the state after each step; it decides when to write it.

    Raises:
        LessonError: there is no example, one is too long, or the loss is not finite any more.
    """
    if not examples:
        raise LessonError("a lesson needs at least one example; got none")
    rows = [encode(example, tokenizer, context_of(model), processor) for example in examples]
    pad_id = pad_id_of(tokenizer)

    def loss_of(batch: Sequence[int]) -> torch.Tensor:
        inputs = collate([rows[index] for index in batch], pad_id, model.device)
        labels_BT = inputs.pop("labels")
        return response_loss(model(**inputs).logits, labels_BT)

    batches = list(all_batches(rows, supervision, seeds))
    return optimise(model, batches, loss_of, supervision, seeds, on_step=on_step, state=state, keep_state=keep_state)


def optimise(
    model: Any,
    batches: Sequence[Sequence[int]],
    loss_of: Callable[[Sequence[int]], torch.Tensor],
    supervision: Supervision,
    seeds: Seeds,
    *,
    on_step: Callable[[int, int, float], None] = lambda step, total, loss: None,
    state: TrainingState | None = None,
    keep_state: Callable[[TrainingState], None] | None = None,
) -> list[tuple[int, float]]:
    """One optimiser step a batch, on any loss; returns its curve. The rest is as in `fine_tune`."""
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(
        trainable.values(), lr=supervision.learning_rate, weight_decay=supervision.weight_decay, fused=True
    )
    curve: list[tuple[int, float]] = []
    done = 0
    if state is not None and state.step:
        model.load_state_dict(state.weights, strict=False)
        # The groups are the optimizer's own: they say how it computes, to the last bit.
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state.moments})
        done, curve = state.step, list(state.curve)

    model.train()
    for step in range(done, len(batches)):
        scale = _schedule(step, len(batches), supervision.warmup)
        for group in optimizer.param_groups:
            group["lr"] = supervision.learning_rate * scale
        # Dropout draws from torch's own generator; it is seeded for the step and put back after it.
        with seeded_torch(seeds.derive("dropout", step)) if supervision.dropout else nullcontext():
            loss = loss_of(batches[step])
        value = float(loss.detach())
        if value != value or value == float("inf"):
            raise LessonError(f"the training loss is {value} at step {step + 1}; lower the learning rate")
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(trainable.values(), supervision.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        curve.append((step + 1, value))
        on_step(step + 1, len(batches), value)
        if keep_state is not None:
            weights = {name: p.detach() for name, p in trainable.items()}
            keep_state(TrainingState(step + 1, weights, optimizer.state_dict()["state"], curve))
    model.eval()
    return curve


def context_of(model: Any) -> int:
    """The most tokens that a model reads, question and response together."""
    return int(getattr(model.config.get_text_config(), "max_position_embeddings", 0) or 1 << 30)


def pad_id_of(tokenizer: PreTrainedTokenizerBase) -> int:
    return int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id)


def all_batches(rows: Sequence[Encoded], supervision: Supervision, seeds: Seeds) -> Iterator[list[int]]:
    """The rows of every batch, over all epochs."""
    lengths = [len(row) for row in rows]
    for epoch in range(supervision.epochs):
        for batch in batch_plan(lengths, supervision.batch_size, seeds.derive("order", epoch).generator()):
            yield from of_one_shape(batch, rows)


def _schedule(step: int, total: int, warmup: float) -> float:
    """The share of the learning rate at `step`: up over the warm-up, then down to zero."""
    rising = max(1.0, warmup * total)
    return min((step + 1) / rising, (total - step) / max(1.0, total - rising), 1.0)
