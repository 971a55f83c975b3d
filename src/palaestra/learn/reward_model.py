"""Reward models: a transformers checkpoint that gives a text one number, learned from comparisons.

The loss is minus the log-softmax of the best response among its K; with pairs that is Bradley and
Terry's, and TRL's. The loop is ours and not TRL's `RewardTrainer`, for four reasons: one best of K,
a seed that owns all randomness, a resume to the bit, and early stopping that gives back the best weights.
What it writes is a plain `AutoModelForSequenceClassification` of one label: TRL and everyone else load it.

Where it departs from the usual recipe: batches are made of comparisons of like length, all responses
of a comparison pass in one forward, and norms and biases do not decay.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from palaestra.core.errors import LessonError, ModelError, TaskError
from palaestra.core.records import Message
from palaestra.core.seeding import Seeds
from palaestra.core.statistics import wilson_interval
from palaestra.engines.shelf import locate
from palaestra.learn.batches import batch_plan
from palaestra.learn.randomness import seeded_torch
from palaestra.learn.reward_data import Comparison, Prompt
from palaestra.runs.files import read_json, write_json

METRICS = "reward_metrics.json"


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
class ReliabilityBin:
    """The comparisons that the model decided with a confidence from `low` to `high`."""

    low: float
    high: float
    confidence: float
    accuracy: float
    count: int


@dataclass(frozen=True, slots=True)
class RewardReport:
    """How well scores tell the best response from the others.

    A response is right where its score is above all others: a tie is not. The confidence is the
    highest probability of the softmax over a comparison's scores.

    Arguments:
        accuracy, low, high: share of comparisons whose best response won, with its 95 % interval.
        mean_reciprocal_rank: mean of 1 / rank of the best response.
        ranking_loss: mean of `best_of_k_loss`; log K for a model that knows nothing.
        calibration_error: mean distance of confidence and accuracy over bins of confidence,
            ten from 1/K to 1.
        brier: half the squared distance of probabilities and truth; 0.25 is a fair coin on pairs.
        reliability: the bins that are not empty.
    """

    accuracy: float
    low: float
    high: float
    count: int
    correct: int
    mean_reciprocal_rank: float
    ranking_loss: float
    calibration_error: float
    brier: float
    reliability: tuple[ReliabilityBin, ...]


def report_on_scores(scores: Sequence[Sequence[float]], best: Sequence[int], bins: int = 10) -> RewardReport:
    """The report on comparisons with these scores, of which those numbered `best` should win."""
    count = len(scores)
    if count == 0:
        raise ValueError("a report needs at least one comparison; got none")
    ranks, losses, briers, confidences, hits = (np.zeros(count) for _ in range(5))
    for index, (row, right) in enumerate(zip(scores, best, strict=True)):
        scores_K = np.asarray(row, dtype=np.float64)
        if not np.isfinite(scores_K).all():
            raise ModelError(
                f"a reward model gave the score {scores_K[~np.isfinite(scores_K)][0]}; its weights are broken"
            )
        ranks[index] = np.sum(scores_K >= scores_K[right])  # Whoever is level stands before it.
        logs_K = scores_K - scores_K.max()
        logs_K -= np.log(np.exp(logs_K).sum())
        probabilities_K = np.exp(logs_K)
        losses[index] = -logs_K[right]
        briers[index] = np.square(probabilities_K - np.eye(len(row))[right]).sum() / 2
        confidences[index] = probabilities_K.max()
        hits[index] = ranks[index] == 1
    correct = int(hits.sum())
    low, high = wilson_interval(correct, count)
    edges = np.linspace(1 / max(len(row) for row in scores), 1.0, bins + 1)
    places = np.clip(np.searchsorted(edges, confidences, side="right") - 1, 0, bins - 1)
    table = []
    for place in range(bins):
        inside = places == place
        if inside.any():
            table.append(
                ReliabilityBin(
                    float(edges[place]),
                    float(edges[place + 1]),
                    float(confidences[inside].mean()),
                    float(hits[inside].mean()),
                    int(inside.sum()),
                )
            )
    return RewardReport(
        accuracy=correct / count,
        low=low,
        high=high,
        count=count,
        correct=correct,
        mean_reciprocal_rank=float((1 / ranks).mean()),
        ranking_loss=float(losses.mean()),
        calibration_error=sum(b.count * abs(b.confidence - b.accuracy) for b in table) / count,
        brier=float(briers.mean()),
        reliability=tuple(table),
    )


class RewardModel:
    """A model of one label and its tokenizer: texts in, scores out.

    A prompt and a response become one text: by the tokenizer's chat template where it has one (the
    user's prompt, the assistant's response, and nothing after its end-of-turn token), else the prompt
    directly followed by the response. Without a prompt the response is the whole text.

    What is too long loses its head: the response and the end of the prompt stay. A decoder reads the
    score at the last token that is not padding, as transformers does. So where end and padding are one
    token, the score is read before it; and where there is no chat template, the models see texts
    without an end token, and `score_ids` takes one off.

    Arguments:
        weights: an `AutoModelForSequenceClassification` with one label.
        tokenizer: its tokenizer; it is copied and set to pad right and cut left.
        max_length: most tokens of a text; 0 means what the model reads.

    Example:
        >>> from palaestra.learn.reward_model import load_reward_model       # doctest: +SKIP
        >>> model = load_reward_model("models/reward_model")                 # doctest: +SKIP
        >>> model.score(["a moving film .", "a tedious film ."])             # doctest: +SKIP
    """

    def __init__(self, weights: Any, tokenizer: Any, *, max_length: int = 0, batch_size: int = 64) -> None:
        self.weights, self.tokenizer, self.batch_size = weights, copy.deepcopy(tokenizer), batch_size
        if self.tokenizer.pad_token_id is None:
            spare = self.tokenizer.eos_token or self.tokenizer.unk_token
            if spare is None:
                raise ModelError(
                    "the tokenizer of a reward model needs a token for padding or for the end; it has none"
                )
            self.tokenizer.pad_token = spare
        self.max_length = min(_most_tokens(weights, self.tokenizer), max_length or 1 << 30)
        self.tokenizer.padding_side, self.tokenizer.truncation_side = "right", "left"
        self.tokenizer.model_max_length = self.max_length
        # Decoders find the last token by it, and so does whoever loads the checkpoint.
        weights.config.pad_token_id = self.tokenizer.pad_token_id
        weights.config.get_text_config().pad_token_id = self.tokenizer.pad_token_id
        weights.config.use_cache = False
        self._vocabulary = int(weights.get_input_embeddings().num_embeddings)
        own = self.tokenizer("a")["input_ids"]
        eos = self.tokenizer.eos_token_id
        self._open = self.tokenizer.chat_template is None and eos is not None and eos not in own
        weights.eval()
        self.metrics: dict[str, Any] = {}
        """What is in `reward_metrics.json`: before, after, counts, settings. Empty if nobody measured."""
        self.report: RewardReport | None = None
        """The held-out comparisons after training; None for a model that was loaded."""

    @property
    def device(self) -> torch.device:
        return torch.device(self.weights.device)

    def render(self, prompt: Prompt, response: str) -> str:
        """Prompt and response as the one text that is scored.

        Raises:
            TaskError: the chat template refuses the conversation.
        """
        if not prompt:
            return response
        if self.tokenizer.chat_template is None:
            before = prompt if isinstance(prompt, str) else "".join(f"{message.text}\n" for message in prompt)
            return before + response
        from jinja2 import TemplateError

        messages = (Message("user", prompt),) if isinstance(prompt, str) else prompt
        conversation = [{"role": m.role, "content": m.text} for m in (*messages, Message("assistant", response))]
        try:
            text = str(self.tokenizer.apply_chat_template(conversation, tokenize=False))
        except TemplateError as error:
            raise TaskError(f"the chat template of the reward model refuses a conversation: {error}") from error
        # A sampled response ends with end-of-turn. Templates that add a line break after it would
        # have the score read at a token that no policy writes.
        end, cut = self.tokenizer.eos_token, text.rstrip()
        return cut if end and cut.endswith(end) else text

    def score(self, texts: Sequence[str], batch_size: int = 0) -> list[float]:
        """The score of each text, in their order."""
        return self.score_ids(self.encode(texts), batch_size)

    def score_responses(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[float]:
        """The score of each response to its prompt."""
        return self.score([self.render(p, r) for p, r in zip(prompts, responses, strict=True)])

    @torch.no_grad()
    def score_ids(self, rows: Sequence[Sequence[int]], batch_size: int = 0) -> list[float]:
        """The score of each row of token ids, for example prompt and sampled response.

        Raises:
            ModelError: an id that the model has no embedding for.
        """
        size = batch_size or self.batch_size
        ready = [self._fit(row) for row in rows]
        order = sorted(range(len(ready)), key=lambda index: len(ready[index]))
        scores = [0.0] * len(ready)
        for start in range(0, len(order), size):
            part = order[start : start + size]
            for index, value in zip(part, self.forward([ready[i] for i in part]).tolist(), strict=True):
                scores[index] = value
        return scores

    def evaluate(self, comparisons: Sequence[Comparison]) -> RewardReport:
        """Accuracy, ranking and calibration on `comparisons`."""
        rows = [self.encode_comparison(comparison) for comparison in comparisons]
        flat = iter(self.score_ids([ids for responses in rows for ids in responses]))
        scores = [[next(flat) for _ in responses] for responses in rows]
        return report_on_scores(scores, [comparison.best for comparison in comparisons])

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of texts, cut at their head to `max_length`."""
        begin = self.tokenizer.bos_token
        found = []
        for text in texts:
            # A rendered chat may start with the token that the tokenizer would put there once more.
            add = not (begin and text.startswith(begin))
            ids = self.tokenizer(text, add_special_tokens=add, truncation=True, max_length=self.max_length)
            found.append(self._fit(ids["input_ids"]))
        return found

    def encode_comparison(self, comparison: Comparison) -> list[list[int]]:
        """The ids of every response of a comparison, with its prompt."""
        return self.encode([self.render(comparison.prompt, response) for response in comparison.responses])

    def forward(self, rows: Sequence[Sequence[int]]) -> torch.Tensor:
        """Scores of rows of ids in one batch, with gradients where they are enabled."""
        length = max(len(row) for row in rows)
        input_ids_BT = torch.full((len(rows), length), self.tokenizer.pad_token_id, dtype=torch.long)
        attention_mask_BT = torch.zeros((len(rows), length), dtype=torch.long)
        for index, row in enumerate(rows):
            input_ids_BT[index, : len(row)] = torch.tensor(row)
            attention_mask_BT[index, : len(row)] = 1
        output = self.weights(input_ids=input_ids_BT.to(self.device), attention_mask=attention_mask_BT.to(self.device))
        scores_B: torch.Tensor = output.logits[:, 0].float()
        return scores_B

    def save(self, folder: str | Path) -> None:
        """Write config, weights and tokenizer in transformers' format, and the metrics beside them."""
        self.weights.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        if self.metrics:
            write_json(Path(folder) / METRICS, self.metrics)

    def _fit(self, row: Sequence[int]) -> list[int]:
        ids = list(row)
        if self._open and ids and ids[-1] == self.tokenizer.eos_token_id:
            ids.pop()
        if not ids:
            return [self.tokenizer.pad_token_id]  # An empty text is scored by what comes before all texts.
        if len(ids) > self.max_length:
            first = [ids[0]] if ids[0] in (self.tokenizer.cls_token_id, self.tokenizer.bos_token_id) else []
            ids = first + ids[len(ids) - self.max_length + len(first) :]
        if max(ids) >= self._vocabulary or min(ids) < 0:
            raise ModelError(
                f"the reward model knows token ids from 0 to {self._vocabulary - 1}; got {max(ids)}: "
                "ids of another tokenizer"
            )
        return ids


def make_reward_model(
    name: str, seeds: Seeds, *, device: str = "", max_length: int = 0, batch_size: int = 64
) -> RewardModel:
    """A backbone with a head of one label that knows nothing yet; a reward model keeps its head.

    Arguments:
        name: a name of the shelf, a folder or a hub id of anything transformers can classify with.
        seeds: of the head's weights.
        device: empty means a GPU where there is one.

    Raises:
        ModelError: it cannot be loaded.
    """
    with seeded_torch(seeds.derive("head")):
        model, _ = _load(locate(name), name, device, num_labels=1, ignore_mismatched_sizes=True)
    return RewardModel(model[0], model[1], max_length=max_length, batch_size=batch_size)


def load_reward_model(path: str | Path, device: str = "") -> RewardModel:
    """A trained reward model from its folder, or from the hub.

    Arguments:
        device: for example `"cuda"`; empty means a GPU where there is one.

    Raises:
        ModelError: there is none, it has more labels than one, or it lacks its head or its tokenizer.
    """
    from transformers import AutoConfig

    where, device = locate(str(path)), str(device)
    with _one_line(str(path)):
        config = AutoConfig.from_pretrained(where)
    if config.num_labels != 1:
        kind = (config.architectures or ["a model of unknown kind"])[0]
        raise ModelError(f"{path} is no reward model: expected one label; {kind} has {config.num_labels}")
    (weights, tokenizer), missing = _load(where, str(path), device)
    if missing:
        raise ModelError(f"{path} is no reward model: its checkpoint lacks the weights {', '.join(missing)}")
    model = RewardModel(weights, tokenizer)
    if (Path(where) / METRICS).exists():
        model.metrics = read_json(Path(where) / METRICS)
    return model


def _load(where: str, name: str, device: str, **options: Any) -> tuple[tuple[Any, Any], list[str]]:
    """Weights and tokenizer, and the names of the weights that were not in the checkpoint."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    with _one_line(name):
        tokenizer = AutoTokenizer.from_pretrained(where)
        weights, info = AutoModelForSequenceClassification.from_pretrained(
            where, dtype=torch.float32, output_loading_info=True, **options
        )
        return (weights.to(device), tokenizer), sorted(info["missing_keys"])


@contextmanager
def _one_line(name: str) -> Iterator[None]:
    """Errors of transformers in one line; and no table about the head being new, which is expected."""
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    except Exception as error:  # transformers, safetensors and torch each raise their own.
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(f"cannot load the model '{name}': {reason}") from error
    finally:
        logging.set_verbosity(verbosity)


def _most_tokens(weights: Any, tokenizer: Any) -> int:
    positions = int(getattr(weights.config.get_text_config(), "max_position_embeddings", 0) or 1 << 30)
    for name, module in weights.named_modules():
        # RoBERTa and its kin count positions from behind the padding's.
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            positions = module.num_embeddings - module.padding_idx - 1
    return min(positions, int(tokenizer.model_max_length))


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


def plain_report(report: RewardReport) -> dict[str, Any]:
    """A report as plain values for a file."""
    return {**asdict(report), "reliability": [asdict(entry) for entry in report.reliability]}
