"""Train reward models on comparisons.

The loss is the negative log-softmax of the best of K responses. For pairs this is the Bradley-Terry loss, as in TRL. The
loop is not TRL's `RewardTrainer` for four reasons: it supports best of K, all randomness comes from the run's seeds, it
resumes bit-identically, and early stopping restores the best weights.

Batches consist of comparisons of similar length, all responses of a comparison are in one forward pass, and norms and
biases have no weight decay.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from palaestra.core.errors import LessonError
from palaestra.core.seeding import Seeds
from palaestra.learn.batches import plan_batches
from palaestra.learn.randomness import fork_torch_rng
from palaestra.learn.reward_data import ResponseComparison
from palaestra.learn.reward_model import RewardModel
from palaestra.learn.reward_report import RewardReport
from palaestra.learn.training_state import TrainingState


def best_of_k_loss(scores_BK: torch.Tensor, best_B: torch.Tensor, centre: float = 0.0) -> torch.Tensor:
    """The mean negative log-probability of the best response, with scores as logits.

    Arguments:
        scores_BK: one row for each comparison; minus infinity if it has fewer than K responses.
        centre: weight of the squared sum of a row's scores, which keeps scores near zero. It is TRL's
            `center_rewards_coefficient`.

    >>> loss = best_of_k_loss(torch.tensor([[1.0, -1.0]]), torch.tensor([0]))
    >>> round(float(loss), 4) == round(math.log(1 + math.exp(-2)), 4)
    True
    """
    loss = -scores_BK.log_softmax(dim=1).gather(1, best_B[:, None]).mean()
    if centre:
        loss = loss + centre * scores_BK.masked_fill(scores_BK.isinf(), 0.0).sum(dim=1).square().mean()
    return loss


@dataclass(frozen=True, slots=True)
class RewardTraining:
    """Hyperparameters of reward model training.

    Arguments:
        warmup_steps: steps of linear warm-up, at most a tenth of all; a cosine decay follows.
        centre: see `best_of_k_loss`.
        patience: stop after this many epochs without a better validation loss and restore the best weights. 0 trains
            to the end and keeps the last weights.
    """

    epochs: int = 3
    batch_size: int = 32
    learning_rate: float = 1e-5
    warmup_steps: int = 500
    weight_decay: float = 0.01
    clip: float = 1.0
    centre: float = 0.0
    patience: int = 2


@dataclass(frozen=True, slots=True)
class RewardHistory:
    """The loss by step, the validation metrics by epoch, and the epoch of the final weights."""

    curve: list[tuple[int, float]]
    validation: list[dict[str, float]]
    best_epoch: int
    stopped_early: bool


def train_reward_model(
    model: RewardModel,
    comparisons: Sequence[ResponseComparison],
    validation: Sequence[ResponseComparison],
    training: RewardTraining,
    seeds: Seeds,
    *,
    on_step: Callable[[int, int, float], None] = lambda step, total, loss: None,
    on_epoch: Callable[[int, RewardReport], None] = lambda epoch, report: None,
    state: TrainingState | None = None,
    keep_state: Callable[[TrainingState], None] | None = None,
) -> RewardHistory:
    """Train all weights of `model` in place.

    Arguments:
        validation: comparisons for early stopping; may be empty if patience is 0.
        seeds: of the order of the comparisons and of dropout.
        on_step: called with the step, the number of steps, and the loss.
        on_epoch: called with the epoch and the report on `validation`.
        state: the state of an interrupted training; the result is the same as without interruption.
        keep_state: called with the state after each step.

    Raises:
        LessonError: there are no comparisons, or the loss is not finite.
    """
    if not comparisons:
        raise LessonError("expected at least one comparison to train on; got none")
    if training.patience and not validation:
        raise LessonError("early stopping needs validation comparisons; got none; set patience to 0 to train without")
    weights = model.weights
    rows = [model.encode_comparison(comparison) for comparison in comparisons]
    lengths = [max(len(ids) for ids in responses) for responses in rows]
    batches = [
        (epoch, batch)
        for epoch in range(training.epochs)
        for batch in plan_batches(lengths, training.batch_size, seeds.derive("order", epoch).generator())
    ]
    trained = {name: p for name, p in weights.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in trained.values() if p.ndim > 1], "weight_decay": training.weight_decay},
            {"params": [p for p in trained.values() if p.ndim <= 1], "weight_decay": 0.0},
        ],
        lr=training.learning_rate,
        fused=True,
    )
    now = TrainingState(weights={name: p.detach() for name, p in trained.items()})
    if state is not None and state.step:
        with torch.no_grad():
            for name, parameter in trained.items():
                parameter.copy_(state.weights[name])
        # Keep the optimizer's own groups, for bit-identical steps.
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state.moments})
        now.step, now.best = state.step, dict(state.best)
        now.curve, now.validation = list(state.curve), [dict(entry) for entry in state.validation]

    while now.step < len(batches) and not _is_out_of_patience(now.validation, training.patience):
        epoch, batch = batches[now.step]
        for group in optimizer.param_groups:
            group["lr"] = training.learning_rate * _schedule(now.step, len(batches), training.warmup_steps)
        weights.train()
        # Dropout uses torch's global generator.
        with fork_torch_rng(seeds.derive("dropout", now.step)):
            scores_N = model.forward([ids for index in batch for ids in rows[index]])
        scores_BK = _by_comparison(scores_N, [len(rows[index]) for index in batch])
        best_B = torch.tensor([comparisons[index].best for index in batch], device=scores_BK.device)
        loss = best_of_k_loss(scores_BK, best_B, training.centre)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise LessonError(f"the training loss is {value} at step {now.step + 1}; lower the learning rate")
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(trained.values(), training.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        weights.eval()
        now.step += 1
        now.curve.append((now.step, value))
        on_step(now.step, len(batches), value)
        if training.patience and (now.step == len(batches) or batches[now.step][0] != epoch):
            report = model.evaluate(validation)
            losses = [entry["ranking_loss"] for entry in now.validation]
            if not losses or report.ranking_loss < min(losses):
                now.best = {name: p.detach().clone() for name, p in trained.items()}
            entry = {"epoch": epoch + 1, "ranking_loss": report.ranking_loss, "accuracy": report.accuracy}
            now.validation.append(entry)
            on_epoch(epoch + 1, report)
        if keep_state is not None:
            now.moments = optimizer.state_dict()["state"]
            keep_state(now)
    if now.best:
        with torch.no_grad():
            for name, parameter in trained.items():
                parameter.copy_(now.best[name])
    losses = [entry["ranking_loss"] for entry in now.validation]
    best_epoch = losses.index(min(losses)) + 1 if losses else training.epochs
    return RewardHistory(now.curve, now.validation, best_epoch, now.step < len(batches))


def _by_comparison(scores_N: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
    """Arrange scores as one row for each comparison, padded with minus infinity."""
    return torch.nn.utils.rnn.pad_sequence(list(torch.split(scores_N, list(counts))), True, -math.inf)


def _is_out_of_patience(validation: Sequence[dict[str, float]], patience: int) -> bool:
    losses = [entry["ranking_loss"] for entry in validation]
    return bool(patience and losses) and len(losses) - 1 - losses.index(min(losses)) >= patience


def _schedule(step: int, total: int, warmup_steps: int) -> float:
    """The factor of the learning rate at `step`: linear warm-up, then cosine decay."""
    warmup = max(1, min(warmup_steps, total // 10))
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step + 1 - warmup) / (total + 1 - warmup)))
