"""Pretraining of the embedded students from scratch, on an endless corpus.

Two choices make it fit into an hour on two cores. The weight matrices are trained with Muon, which learned this corpus
faster than AdamW. Batches consist of examples of similar length. The learning rate warms up, stays constant, and falls
linearly to zero at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from itertools import islice
from typing import TYPE_CHECKING

import torch

from palaestra.core.records import Example
from palaestra.learn.batches import collate, encode, response_loss

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Batch = dict[str, torch.Tensor]

WINDOW = 16
"""Batches whose examples are sorted by length together."""


def text_batches(
    corpus: Iterator[Example], tokenizer: PreTrainedTokenizerBase, batch_size: int, limit: int, device: torch.device
) -> Iterator[Batch]:
    """An endless stream of batches of examples of similar length, for `pretrain_model`."""
    while True:
        rows = [encode(example, tokenizer, limit) for example in islice(corpus, WINDOW * batch_size)]
        rows.sort(key=len)
        # Short and long batches alternate.
        starts = list(range(0, len(rows), batch_size))
        for start in starts[::2] + starts[1::2][::-1]:
            yield collate(rows[start : start + batch_size], tokenizer.pad_token_id, device)


def pretrain_model(
    model: PreTrainedModel,
    batches: Iterator[Batch],
    *,
    steps: int,
    matrix_learning_rate: float,
    vector_learning_rate: float,
    warmup: float = 0.03,
    decay: float = 0.4,
    half: bool = False,
    on_step: Callable[[int, float], None] = lambda step, loss: None,
) -> None:
    """Train `model` in place on `steps` batches.

    Arguments:
        batches: keyword arguments of the model, on its device, and `labels` for the response tokens.
        matrix_learning_rate: learning rate of Muon, for the weight matrices of the blocks.
        vector_learning_rate: learning rate of AdamW, for the embeddings and the norms.
        warmup, decay: the fractions of the steps in which the learning rate rises and falls.
        half: use bfloat16 autocast; the weights stay in float32.
        on_step: called with the number of completed steps and the last loss.
    """
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n and "lm_head" not in n]
    matrix_ids = {id(p) for p in matrices}
    vectors = [p for p in model.parameters() if id(p) not in matrix_ids]
    optimizers: list[torch.optim.Optimizer] = [
        Muon(matrices, lr=matrix_learning_rate, weight_decay=0.01),
        torch.optim.AdamW(vectors, lr=vector_learning_rate, weight_decay=0.0, betas=(0.9, 0.98)),
    ]
    learning_rates = [matrix_learning_rate, vector_learning_rate]
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


COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the Newton-Schulz iteration."""


class Muon(torch.optim.Optimizer):
    """The Muon optimizer in float32: momentum with orthogonalised steps, for weight matrices.

    The algorithm is Keller Jordan's, with the step scaled to AdamW's size (Moonshot's rule), as in `torch.optim.Muon`. That
    one orthogonalises in bfloat16, which is slow on CPUs without bfloat16 units. This one stays in float32 and processes
    all matrices of one shape together.
    """

    def __init__(
        self, parameters: Iterable[torch.nn.Parameter], lr: float, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.ndim != 2:
                    raise ValueError(f"expected matrices; got a parameter of shape {tuple(parameter.shape)}")

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            shapes: dict[torch.Size, list[torch.nn.Parameter]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    shapes.setdefault(parameter.shape, []).append(parameter)
            for shape, parameters in shapes.items():
                updates = []
                for parameter in parameters:
                    state = self.state[parameter]
                    if not state:
                        state["momentum"] = torch.zeros_like(parameter)
                    assert parameter.grad is not None
                    state["momentum"].lerp_(parameter.grad, 1 - group["momentum"])
                    updates.append(parameter.grad.lerp(state["momentum"], group["momentum"]))
                directions_MNK = orthogonalise(torch.stack(updates))
                rate = group["lr"] * 0.2 * max(shape) ** 0.5
                for parameter, direction_NK in zip(parameters, directions_MNK, strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.add_(direction_NK, alpha=-rate)


def orthogonalise(matrices_MNK: torch.Tensor, iterations: int = 5) -> torch.Tensor:
    """Bring all singular values of each matrix close to 1 by Newton-Schulz iterations."""
    tall = matrices_MNK.shape[-2] > matrices_MNK.shape[-1]
    x: torch.Tensor = matrices_MNK.mT if tall else matrices_MNK
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(iterations):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x
