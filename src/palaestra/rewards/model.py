"""Reward models: transformers checkpoints that score a text with one number, and their training.

A checkpoint is a plain `AutoModelForSequenceClassification` with one label, which TRL and others can load.

The loss is the negative log-softmax of the best of K responses. For pairs this is the Bradley-Terry loss, as in TRL. The
loop is not TRL's `RewardTrainer` for four reasons: it supports best of K, all randomness comes from the run's seeds, it
resumes bit-identically, and early stopping restores the best weights. Batches consist of comparisons of similar length,
all responses of a comparison are in one forward pass, and norms and biases have no weight decay.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from palaestra.chat.rendering import render_conversation
from palaestra.core.errors import LessonError, ModelError, TaskError
from palaestra.core.process import quiet_libraries
from palaestra.core.records import Json, Message
from palaestra.core.seeding import Seeds, plan_batches
from palaestra.models.families import position_limit, split_by_rotation
from palaestra.models.registry import locate, short_errors
from palaestra.rewards.data import Prompt, ResponseComparison, RewardReport, report_on_scores
from palaestra.rl.optimizers import fork_torch_rng
from palaestra.runs.files import read_json, write_json
from palaestra.students.batches import Encoded, collate
from palaestra.students.supervised import TrainingState

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

METRICS = "reward_metrics.json"


class RewardModel:
    """A sequence classifier with one label, and its tokenizer.

    Prompt and response are rendered as one text. With a chat template, the text ends with the end-of-turn token of the
    response. Without one, the response directly follows the prompt. Without a prompt, the response is the whole text.

    Texts that are too long are truncated on the left. As in transformers, a decoder computes the score at the last token
    that is not padding. So if the end token is also the padding token, the score is that of the token before it. Without a
    chat template, texts have no end token, and `score_ids` removes one.

    Arguments:
        weights: an `AutoModelForSequenceClassification` with one label.
        tokenizer: its tokenizer. It is copied, and set to pad on the right and truncate on the left.
        max_length: the maximum number of tokens of a text; 0 means the model's own limit.

    Example:
        >>> from palaestra.rewards.model import load_reward_model       # doctest: +SKIP
        >>> model = load_reward_model("models/reward_model")                 # doctest: +SKIP
        >>> model.score(["a moving film .", "a tedious film ."])             # doctest: +SKIP
    """

    def __init__(
        self, weights: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, max_length: int = 0, batch_size: int = 64
    ) -> None:
        self.weights, self.tokenizer, self.batch_size = weights, copy.deepcopy(tokenizer), batch_size
        if self.tokenizer.pad_token_id is None:
            spare = self.tokenizer.eos_token or self.tokenizer.unk_token
            if spare is None:
                raise ModelError("the tokenizer of the reward model has neither a padding token nor an end token")
            self.tokenizer.pad_token = spare
        self.max_length = min(_max_tokens(weights, self.tokenizer), max_length or 1 << 30)
        self.tokenizer.padding_side, self.tokenizer.truncation_side = "right", "left"
        self.tokenizer.model_max_length = self.max_length
        # Decoders use it to find the last token.
        weights.config.pad_token_id = self.tokenizer.pad_token_id
        weights.config.get_text_config().pad_token_id = self.tokenizer.pad_token_id
        weights.config.use_cache = False
        self._vocabulary = int(weights.get_input_embeddings().num_embeddings)
        example = self.tokenizer("a")["input_ids"]
        eos = self.tokenizer.eos_token_id
        self._without_eos = self.tokenizer.chat_template is None and eos is not None and eos not in example
        weights.eval()
        self.metrics: Json = {}
        """The contents of `reward_metrics.json`: before, after, counts, settings. Empty if there is no such file."""
        self.report: RewardReport | None = None
        """The report on held-out comparisons after training; `None` for a loaded model."""
        self.folder: Path | None = None
        """Where training saved the model; `None` if it was not saved."""

    @property
    def device(self) -> torch.device:
        return torch.device(self.weights.device)

    def render(self, prompt: Prompt, response: str) -> str:
        """Render prompt and response as one text.

        Raises:
            TaskError: the chat template rejects the conversation.
        """
        if not prompt:
            return response
        if self.tokenizer.chat_template is None:
            before = prompt if isinstance(prompt, str) else "".join(f"{message.text}\n" for message in prompt)
            return before + response
        from jinja2 import TemplateError

        messages = (Message("user", prompt),) if isinstance(prompt, str) else prompt
        conversation = (*messages, Message("assistant", response))
        try:
            text = render_conversation(self.tokenizer, conversation, generation_prompt=False)
        except TemplateError as error:
            raise TaskError(f"the chat template of the reward model rejects a conversation: {error}") from error
        # A sampled response ends with the end-of-turn token. Some templates add a line break after it, and the score
        # would be that of a token that no policy samples.
        end, stripped = self.tokenizer.eos_token, text.rstrip()
        return stripped if end and stripped.endswith(end) else text

    def score(self, texts: Sequence[str], batch_size: int = 0) -> list[float]:
        """Score texts."""
        return self.score_ids(self.encode(texts), batch_size)

    def score_responses(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[float]:
        """Score responses to their prompts."""
        return self.score([self.render(p, r) for p, r in zip(prompts, responses, strict=True)])

    @torch.no_grad()
    def score_ids(self, rows: Sequence[Sequence[int]], batch_size: int = 0) -> list[float]:
        """Score rows of token ids, for example a prompt and a sampled response.

        Raises:
            ModelError: the model has no embedding for an id.
        """
        size = batch_size or self.batch_size
        inputs = [self._fit(row) for row in rows]
        order = sorted(range(len(inputs)), key=lambda index: len(inputs[index]))
        scores = [0.0] * len(inputs)
        for start in range(0, len(order), size):
            part = order[start : start + size]
            for index, value in zip(part, self.forward([inputs[i] for i in part]).tolist(), strict=True):
                scores[index] = value
        return scores

    def evaluate(self, comparisons: Sequence[ResponseComparison]) -> RewardReport:
        """Measure accuracy, ranking and calibration on `comparisons`."""
        rows = [self.encode_comparison(comparison) for comparison in comparisons]
        flat = iter(self.score_ids([ids for responses in rows for ids in responses]))
        scores = [[next(flat) for _ in responses] for responses in rows]
        return report_on_scores(scores, [comparison.best for comparison in comparisons])

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of texts, truncated on the left to `max_length`."""
        bos, rows = self.tokenizer.bos_token, []
        for text in texts:
            # A rendered chat may already start with the token that the tokenizer would add.
            add = not (bos and text.startswith(bos))
            ids = self.tokenizer(text, add_special_tokens=add, truncation=True, max_length=self.max_length)
            rows.append(self._fit(ids["input_ids"]))
        return rows

    def encode_comparison(self, comparison: ResponseComparison) -> list[list[int]]:
        """The token ids of prompt and response, for every response of a comparison."""
        return self.encode([self.render(comparison.prompt, response) for response in comparison.responses])

    def forward(self, rows: Sequence[Sequence[int]]) -> torch.Tensor:
        """Score one batch of rows of ids, with gradients if they are enabled."""
        parts = split_by_rotation([len(row) for row in rows], self.weights.config)
        if len(parts) > 1:
            scores = torch.cat([self.forward([rows[index] for index in part]) for part in parts])
            return scores[torch.tensor([index for part in parts for index in part]).argsort()]
        batch = collate([Encoded(tuple(row), ()) for row in rows], self.tokenizer.pad_token_id, self.device)
        del batch["labels"]
        scores_B: torch.Tensor = self.weights(**batch).logits[:, 0].float()
        return scores_B

    @quiet_libraries()
    def save(self, folder: str | Path) -> None:
        """Save config, weights and tokenizer in transformers' format, and the metrics."""
        self.weights.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        if self.metrics:
            write_json(Path(folder) / METRICS, self.metrics)

    def _fit(self, row: Sequence[int]) -> list[int]:
        ids = list(row)
        if self._without_eos and ids and ids[-1] == self.tokenizer.eos_token_id:
            ids.pop()
        if not ids:
            return [self.tokenizer.pad_token_id]  # An empty text is scored as a padding token.
        if len(ids) > self.max_length:
            first = [ids[0]] if ids[0] in (self.tokenizer.cls_token_id, self.tokenizer.bos_token_id) else []
            ids = first + ids[len(ids) - self.max_length + len(first) :]
        if max(ids) >= self._vocabulary or min(ids) < 0:
            last = self._vocabulary - 1
            raise ModelError(f"expected token ids of the reward model, from 0 to {last}; got {max(ids)} of another one")
        return ids


def make_reward_model(name: str, seeds: Seeds, *, device: str = "", max_length: int = 0) -> RewardModel:
    """Load a backbone with a new head of one label. An existing reward model keeps its head.

    Arguments:
        name: a registered name, a folder or a hub id that `AutoModelForSequenceClassification` can load.
        seeds: for the head's weights.
        device: empty means a GPU if there is one.

    Raises:
        ModelError: it cannot be loaded.
    """
    with fork_torch_rng(seeds.derive("head")):
        weights, tokenizer, _ = _load(locate(name), name, device, num_labels=1, ignore_mismatched_sizes=True)
    return RewardModel(weights, tokenizer, max_length=max_length)


def load_reward_model(path: str | Path, device: str = "") -> RewardModel:
    """Load a trained reward model from a folder or from the hub.

    Arguments:
        device: for example `"cuda"`; empty means a GPU if there is one.

    Raises:
        ModelError: it does not exist, has several labels, or has no head or no tokenizer.
    """
    from transformers import AutoConfig

    where = locate(str(path))
    with short_errors(str(path)):
        config = AutoConfig.from_pretrained(where, trust_remote_code=False)
    if config.num_labels != 1:
        kind = (config.architectures or ["the model"])[0]
        raise ModelError(f"{path} is not a reward model: expected one label; {kind} has {config.num_labels}")
    weights, tokenizer, missing = _load(where, str(path), device)
    if missing:
        raise ModelError(f"{path} is not a reward model: its checkpoint has no weights {', '.join(missing)}")
    model = RewardModel(weights, tokenizer)
    if (Path(where) / METRICS).exists():
        model.metrics = read_json(Path(where) / METRICS, follow_link=True)
    return model


@quiet_libraries()
def _load(
    where: str, name: str, device: str, **options: object
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, list[str]]:
    """Load weights and tokenizer; also returns the names of weights that are not in the checkpoint."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer
    from transformers.utils import logging

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # Do not warn about a new head.
    try:
        with short_errors(name):
            tokenizer = AutoTokenizer.from_pretrained(where, trust_remote_code=False)
            weights, info = AutoModelForSequenceClassification.from_pretrained(
                where, dtype=torch.float32, output_loading_info=True, trust_remote_code=False, **options
            )
    finally:
        logging.set_verbosity(verbosity)
    return weights.to(device), tokenizer, sorted(info["missing_keys"])


def _max_tokens(weights: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    positions = position_limit(weights.config) or 1 << 30
    for name, module in weights.named_modules():
        # RoBERTa and related models count positions from the padding index.
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            positions = module.num_embeddings - module.padding_idx - 1
    return min(positions, int(tokenizer.model_max_length))


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
        seeds: for the order of the comparisons and for dropout.
        on_step: called with the step, the number of steps, and the loss.
        on_epoch: called with the epoch and the report on `validation`.
        state: the state of an interrupted training; the result is the same as without interruption.
        keep_state: called with the state after each step.

    Raises:
        LessonError: the loss is not finite.
    """
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
        weights.load_state_dict(state.weights, strict=False)
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
        scores = torch.split(scores_N, [len(rows[index]) for index in batch])
        scores_BK = torch.nn.utils.rnn.pad_sequence(list(scores), True, -math.inf)
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
    weights.load_state_dict(now.best, strict=False)
    losses = [entry["ranking_loss"] for entry in now.validation]
    best_epoch = losses.index(min(losses)) + 1 if losses else training.epochs
    return RewardHistory(now.curve, now.validation, best_epoch, now.step < len(batches))


def _is_out_of_patience(validation: Sequence[dict[str, float]], patience: int) -> bool:
    losses = [entry["ranking_loss"] for entry in validation]
    return bool(patience and losses) and len(losses) - 1 - losses.index(min(losses)) >= patience


def _schedule(step: int, total: int, warmup_steps: int) -> float:
    """The factor of the learning rate at `step`: linear warm-up, then cosine decay."""
    warmup = max(1, min(warmup_steps, total // 10))
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step + 1 - warmup) / (total + 1 - warmup)))
