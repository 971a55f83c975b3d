"""Reward models: a transformers checkpoint that gives a text one number.

What is written is a plain `AutoModelForSequenceClassification` of one label: TRL and everyone else load it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from palaestra.core.errors import ModelError, TaskError
from palaestra.core.records import Message
from palaestra.core.seeding import Seeds
from palaestra.engines.families import position_limit
from palaestra.engines.models import locate
from palaestra.learn.randomness import seeded_torch
from palaestra.learn.reward_data import Comparison, Prompt
from palaestra.learn.reward_report import RewardReport, report_on_scores
from palaestra.runs.files import read_json, write_json

METRICS = "reward_metrics.json"


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
        self.folder: Path | None = None
        """Where the training saved it; None if nothing was saved."""

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
        name: a registered name, a folder or a hub id of anything transformers can classify with.
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
    positions = position_limit(weights.config) or 1 << 30
    for name, module in weights.named_modules():
        # RoBERTa and its kin count positions from behind the padding's.
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            positions = module.num_embeddings - module.padding_idx - 1
    return min(positions, int(tokenizer.model_max_length))
