"""Training of reward models on comparisons.

The loss is minus the log-softmax of the best response among its K; with pairs that is Bradley and
Terry's, and TRL's. The loop is ours and not TRL's `RewardTrainer`, for four reasons: one best of K,
a seed that owns all randomness, a resume to the bit, and early stopping that gives back the best weights.

Where it departs from the usual recipe: batches are made of comparisons of like length, all responses
of a comparison pass in one forward, and norms and biases do not decay.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from palaestra.core.errors import LessonError
from palaestra.core.seeding import Seeds
from palaestra.learn.batches import batch_plan
from palaestra.learn.randomness import seeded_torch
from palaestra.learn.reward_data import Comparison
from palaestra.learn.reward_model import RewardModel
from palaestra.learn.reward_report import RewardReport


def best_of_k_loss(scores_BK: torch.Tensor, best_B: torch.Tensor, centre: float = 0.0) -> torch.Tensor:
    """Minus the log-probability that the best of K responses wins, where scores are logits; the mean over B.

    Arguments:
        scores_BK: a row a comparison; minus infinity where it has fewer than K responses.
        centre: weight of the squared sum of a row's scores, which keeps them near zero. Only
            differences matter otherwise. TRL's `center_rewards_coefficient`.

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
    """How a reward model is trained.

    Arguments:
        warmup_steps: steps of a rising rate, at most a tenth of all; then it falls as a cosine.
        centre: see `best_of_k_loss`.
        patience: epochs without a better validation loss after which training stops; the best
            weights are given back. 0 trains to the end and keeps the last.
    """

    epochs: int = 3
    batch_size: int = 32
    learning_rate: float = 1e-5
    warmup_steps: int = 500
    weight_decay: float = 0.01
    clip: float = 1.0
    centre: float = 0.0
    patience: int = 2


@dataclass(slots=True)
class RewardState:
    """All that a training needs to go on after a kill, besides its data and its seed.

    Randomness is no part of it: every draw comes from the seed and the number of the step or epoch.
    """

    step: int = 0
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    moments: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)
    best: dict[str, torch.Tensor] = field(default_factory=dict)
    curve: list[tuple[int, float]] = field(default_factory=list)
    validation: list[dict[str, float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RewardHistory:
    """What happened in a training: the loss by step, the validation by epoch, the epoch that was kept."""

    curve: list[tuple[int, float]]
    validation: list[dict[str, float]]
    best_epoch: int
    stopped_early: bool


def train_reward_model(
    model: RewardModel,
    comparisons: Sequence[Comparison],
    validation: Sequence[Comparison],
    training: RewardTraining,
    seeds: Seeds,
    *,
    on_step: Callable[[int, int, float], None] = lambda step, total, loss: None,
    on_epoch: Callable[[int, RewardReport], None] = lambda epoch, report: None,
    state: RewardState | None = None,
    keep_state: Callable[[RewardState], None] | None = None,
) -> RewardHistory:
    """Train all weights of `model` in place.

    Arguments:
        validation: what early stopping looks at, after each epoch; may be empty if patience is 0.
        seeds: of the order of the comparisons and of dropout.
        on_step: is told the step, the number of steps, and the loss.
        on_epoch: is told the epoch and the report on `validation`.
        state: where an interrupted training stood; its result is the same as without interruption.
        keep_state: is offered the state after each step; it decides when to write it.

    Raises:
        LessonError: there is nothing to train on, or the loss is not finite any more.
    """
    if not comparisons:
        raise LessonError("a reward model needs at least one comparison to learn from; got none")
    if training.patience and not validation:
        raise LessonError("early stopping needs comparisons to validate on; got none: give some or a patience of 0")
    weights = model.weights
    rows = [model.encode_comparison(comparison) for comparison in comparisons]
    lengths = [max(len(ids) for ids in responses) for responses in rows]
    batches = [
        (epoch, batch)
        for epoch in range(training.epochs)
        for batch in batch_plan(lengths, training.batch_size, seeds.derive("order", epoch).generator())
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
    now = RewardState(weights={name: p.detach() for name, p in trained.items()})
    if state is not None and state.step:
        with torch.no_grad():
            for name, parameter in trained.items():
                parameter.copy_(state.weights[name])
        # The groups are the optimizer's own: they say how it computes, to the last bit.
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state.moments})
        now.step, now.best = state.step, dict(state.best)
        now.curve, now.validation = list(state.curve), [dict(entry) for entry in state.validation]

    while now.step < len(batches) and not _patience_ended(now.validation, training.patience):
        epoch, batch = batches[now.step]
        for group in optimizer.param_groups:
            group["lr"] = training.learning_rate * _schedule(now.step, len(batches), training.warmup_steps)
        weights.train()
        # Dropout draws from torch's own generator; it is seeded for the step and put back after it.
        with seeded_torch(seeds.derive("dropout", now.step)):
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
    """Scores one after the other as a row a comparison, minus infinity where one has fewer responses."""
    return torch.nn.utils.rnn.pad_sequence(list(torch.split(scores_N, list(counts))), True, -math.inf)


def _patience_ended(validation: Sequence[dict[str, float]], patience: int) -> bool:
    losses = [entry["ranking_loss"] for entry in validation]
    return bool(patience and losses) and len(losses) - 1 - losses.index(min(losses)) >= patience


def _schedule(step: int, total: int, warmup_steps: int) -> float:
    """The share of the learning rate at `step`: up over the warm-up, then down as half a cosine."""
    rising = max(1, min(warmup_steps, total // 10))
    if step < rising:
        return (step + 1) / rising
    return 0.5 * (1 + math.cos(math.pi * (step + 1 - rising) / (total + 1 - rising)))
