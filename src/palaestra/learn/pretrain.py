"""Pretraining of the embedded students from scratch: one pass over an endless corpus.

Two choices make it fit in an hour on two cores: the matrices of the blocks learn by Muon (which
at the rates that were tried learned this corpus sooner than AdamW), and batches are made of examples of like length.
The learning rate warms up, stays, and falls linearly to zero over the last part of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import islice
from typing import TYPE_CHECKING

import torch

from palaestra.core.records import Example
from palaestra.learn.batches import collate, encode, response_loss
from palaestra.learn.muon import Muon

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Batch = dict[str, torch.Tensor]

WINDOW = 16
"""How many batches are drawn at once and sorted by length."""


def text_batches(
    corpus: Iterator[Example], tokenizer: PreTrainedTokenizerBase, batch_size: int, limit: int, device: torch.device
) -> Iterator[Batch]:
    """Batches of examples of like length, without end, as `pretrain_model` takes them."""
    while True:
        rows = [encode(example, tokenizer, limit) for example in islice(corpus, WINDOW * batch_size)]
        rows.sort(key=len)
        # Short and long batches alternate, so that no stretch of the run sees only one kind.
        starts = list(range(0, len(rows), batch_size))
        for start in starts[::2] + starts[1::2][::-1]:
            yield collate(rows[start : start + batch_size], tokenizer.pad_token_id, device)


def pretrain_model(
    model: PreTrainedModel,
    batches: Iterator[Batch],
    *,
    steps: int,
    matrix_rate: float,
    vector_rate: float,
    warmup: float = 0.03,
    decay: float = 0.4,
    half: bool = False,
    on_step: Callable[[int, float], None] = lambda step, loss: None,
) -> None:
    """Train `model` in place on `steps` of `batches`.

    Arguments:
        batches: the arguments of the model by name, on its device, and `labels` of the response tokens.
        matrix_rate: learning rate of Muon, for the weight matrices of the blocks.
        vector_rate: learning rate of AdamW, for the embeddings and the norms.
        warmup, decay: the first and the last fraction of the steps, with a rising and a falling rate.
        half: compute in bfloat16 where it is safe; the weights stay in float32.
        on_step: called with the number of steps done and the loss of the last one.
    """
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n and "lm_head" not in n]
    chosen = {id(p) for p in matrices}
    vectors = [p for p in model.parameters() if id(p) not in chosen]
    optimizers: list[torch.optim.Optimizer] = [
        Muon(matrices, lr=matrix_rate, weight_decay=0.01),
        torch.optim.AdamW(vectors, lr=vector_rate, weight_decay=0.0, betas=(0.9, 0.98)),
    ]
    learning_rates = [matrix_rate, vector_rate]
    model.train()
    for step, batch in enumerate(islice(batches, steps)):
        scale = min(1.0, (step + 1) / max(1, warmup * steps), (steps - step) / max(1, decay * steps))
        labels_BT = batch.pop("labels")
        with torch.autocast(model.device.type, torch.bfloat16) if half else nullcontext():
            logits_BTV = model(**batch).logits
        loss = response_loss(logits_BTV, labels_BT)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, rate in zip(optimizers, learning_rates, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * scale
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        done = step + 1
        on_step(done, float(loss.detach()) if done % 20 == 0 or done == steps else float("nan"))
    model.eval()
