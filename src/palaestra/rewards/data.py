"""The training data of a reward model, and the report on its scores.

A comparison has several responses to one prompt and the best of them. Rows come from JSON lines, JSON, CSV, parquet, a folder
of `datasets.save_to_disk`, or the hub, in one of two formats:

- pairs, TRL's preference formats: `chosen`, `rejected` and optionally `prompt`. Each is a text or a list of messages in the
  OpenAI format. Two lists differ only in their last message, the assistant's.
- best of K: `query`, `sample0`, `sample1`, ... and `best`, the index of the best sample.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from palaestra.core.errors import ModelError, SettingsError, TaskError
from palaestra.core.records import Message
from palaestra.core.seeding import Seeds
from palaestra.core.settings import short_repr
from palaestra.core.statistics import wilson_interval
from palaestra.engines.openai_format import parse_message
from palaestra.tasks.sources import ENDINGS, HUB, LINES, Rows, file_rows, folder_rows, hub_rows, is_hub_id, is_saved

_EXPECTED = "'chosen' and 'rejected', or 'query', 'sample0', 'sample1', ... and 'best'"

Prompt = str | tuple[Message, ...]
"""A text, or the conversation before a response; empty if there is none."""


@dataclass(frozen=True, slots=True)
class ResponseComparison:
    """Responses to one prompt and the index of the best.

    >>> ResponseComparison("2 + 2 =", (" 5", " 4"), best=1).responses[1]
    ' 4'
    """

    prompt: Prompt
    responses: tuple[str, ...]
    best: int

    def __post_init__(self) -> None:
        if len(self.responses) < 2:
            raise TaskError(f"expected at least 2 responses to compare; got {len(self.responses)}")
        if not 0 <= self.best < len(self.responses):
            raise TaskError(f"expected 'best' from 0 to {len(self.responses) - 1}; got {self.best}")

    @property
    def decidable(self) -> bool:
        """Whether the best response differs from all others. Other comparisons cannot be learned from."""
        return self.responses.count(self.responses[self.best]) == 1


def read_comparisons(source: str | Path) -> list[ResponseComparison]:
    """Read the comparisons of a file, a folder or a dataset on the hub.

    Arguments:
        source: a `.jsonl`, `.jsonl.gz`, `.json`, `.csv` or `.parquet` file; a folder with JSON lines or of
            `datasets.save_to_disk`; or `owner/name` or `hf:owner/name:config` on the hub, whose `train` split is read.

    Raises:
        SettingsError: the source does not exist.
        TaskError: it cannot be read, or a row is invalid. The message names the file and the row.
        MissingExtraError: `datasets` is needed and not installed.
    """
    comparisons = [parse_comparison(row, where) for where, row in _rows(str(source))]
    if not comparisons:
        raise TaskError(f"{source} has no comparisons; expected rows with {_EXPECTED}")
    return comparisons


def parse_comparison(row: Mapping[str, object], where: str = "row") -> ResponseComparison:
    """Parse a row; `where` names it in errors."""
    try:
        if "chosen" in row or "rejected" in row:
            return _pair(row)
        if "best" in row or "sample0" in row:
            return _best_of_k(row)
        raise TaskError(f"expected the fields {_EXPECTED}; got {', '.join(map(str, row)) or 'none'}")
    except TaskError as error:
        raise TaskError(f"{where}: {error}") from None


def split_comparisons(
    comparisons: Sequence[ResponseComparison], fraction: float, seeds: Seeds
) -> tuple[list[ResponseComparison], list[ResponseComparison]]:
    """Split off about `fraction` of the comparisons; returns the rest and the split-off part.

    The split depends on a hash of the prompt, or of the responses if there is no prompt. A prompt is never in both parts,
    and the order of the rows does not matter.

    Raises:
        TaskError: there are fewer than two different prompts.
    """
    groups: dict[str, list[int]] = {}
    for index, comparison in enumerate(comparisons):
        groups.setdefault(_key(comparison), []).append(index)
    if len(groups) < 2:
        raise TaskError(
            f"expected at least 2 different prompts to split {len(comparisons)} comparisons; got {len(groups)}"
        )
    salt = str(seeds.integer())
    order = sorted(groups, key=lambda key: hashlib.blake2b(f"{salt}/{key}".encode(), digest_size=16).digest())
    size = max(1, round(fraction * len(comparisons)))
    held: set[int] = set()
    for key in order:
        if len(held) + len(groups[key]) <= size:
            held.update(groups[key])
    if not held:
        held.update(groups[min(order, key=lambda key: len(groups[key]))])
    if len(held) == len(comparisons):
        held.difference_update(groups[order[0]])
    rest = [comparison for index, comparison in enumerate(comparisons) if index not in held]
    return rest, [comparison for index, comparison in enumerate(comparisons) if index in held]


def _key(comparison: ResponseComparison) -> str:
    prompt: list[object] = [comparison.prompt] if comparison.prompt else []
    if not isinstance(comparison.prompt, str):
        prompt = [[message.role, message.text] for message in comparison.prompt]
    return json.dumps(["prompt", prompt] if prompt else ["responses", sorted(comparison.responses)])


def _pair(row: Mapping[str, object]) -> ResponseComparison:
    for name in ("chosen", "rejected"):
        if row.get(name) is None:
            raise TaskError(f"expected 'chosen' and 'rejected'; '{name}' is missing")
    chosen, rejected, prompt = row["chosen"], row["rejected"], _prompt(row.get("prompt"), "prompt")
    if isinstance(chosen, str) and isinstance(rejected, str):
        return ResponseComparison(prompt, (chosen, rejected), 0)
    if isinstance(chosen, str) or isinstance(rejected, str):
        raise TaskError("expected 'chosen' and 'rejected' to be two texts or two lists of messages; got one of each")
    good, bad = _split_last_message(chosen, prompt, "chosen"), _split_last_message(rejected, prompt, "rejected")
    if good[0] != bad[0]:
        raise TaskError("expected 'chosen' and 'rejected' to differ only in the last message; they differ before it")
    return ResponseComparison(good[0], (good[1], bad[1]), 0)


def _split_last_message(value: object, prompt: Prompt, name: str) -> tuple[Prompt, str]:
    """The conversation before the last message, and the text of the last message."""
    messages = _messages(value, name)
    if not messages or messages[-1].role != "assistant":
        raise TaskError(f"expected '{name}' to end with an assistant message; got {short_repr(value)}")
    before, response = messages[:-1], messages[-1].text
    # Some datasets repeat the prompt at the start of both lists, some as a text beside them.
    if before and (isinstance(prompt, str) or before[: len(prompt)] == prompt):
        return before, response
    return prompt if isinstance(prompt, str) else prompt + before, response


def _best_of_k(row: Mapping[str, object]) -> ResponseComparison:
    samples: list[str] = []
    while (sample := row.get(f"sample{len(samples)}")) is not None:
        if not isinstance(sample, str):
            raise TaskError(f"expected 'sample{len(samples)}' to be a text; got {short_repr(sample)}")
        samples.append(sample)
    best = row.get("best")
    if not isinstance(best, int) or isinstance(best, bool):
        raise TaskError(f"expected 'best' to be the index of the best sample; got {short_repr(best)}")
    return ResponseComparison(_prompt(row.get("query"), "query"), tuple(samples), best)


def _prompt(value: object, name: str) -> Prompt:
    if value is None or isinstance(value, str):
        return value or ""
    return _messages(value, name)


def _messages(value: object, name: str) -> tuple[Message, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(message, Mapping) for message in value):
        raise TaskError(f"expected '{name}' to be a text or a list of messages; got {short_repr(value)}")
    try:
        return tuple(parse_message(message) for message in value)
    except ValueError as error:
        raise TaskError(f"expected messages in '{name}': {error}") from error


def _rows(source: str) -> Rows:
    """The rows of a source, each with its name for errors."""
    path = Path(source).expanduser()
    if path.is_file():
        return file_rows(path)
    if path.is_dir():
        if files := sorted(file for file in path.iterdir() if file.name.endswith(LINES)):
            return chain.from_iterable(map(file_rows, files))
        if is_saved(path):
            return folder_rows(path)
        raise SettingsError(
            f"the folder {source} has no comparisons; expected JSON lines (.jsonl) or a dataset of save_to_disk"
        )
    if source.startswith(HUB) or (is_hub_id(source) and not source.endswith(ENDINGS)):
        name, _, config = source.removeprefix(HUB).partition(":")
        return hub_rows(name, config)
    raise SettingsError(f"{source or '(empty)'} is not a file, a folder or a hub id; expected comparisons")


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """The comparisons with a confidence from `low` to `high`."""

    low: float
    high: float
    confidence: float
    accuracy: float
    count: int


@dataclass(frozen=True, slots=True)
class RewardReport:
    """How well scores separate the best response from the others.

    A comparison is correct if the best response has the highest score; ties are not correct. The confidence is the highest
    probability of the softmax over a comparison's scores.

    Arguments:
        accuracy, low, high: the fraction of correct comparisons, with its 95 % interval.
        mean_reciprocal_rank: mean of 1 / rank of the best response.
        ranking_loss: mean of `best_of_k_loss`; log K for random scores.
        calibration_error: mean distance between confidence and accuracy over ten bins of confidence from 1/K to 1.
        brier: half the squared distance between probabilities and truth; 0.25 for a coin flip on pairs.
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
    """Report on the scores of comparisons, given the index of the best response of each."""
    count = len(scores)
    ranks, losses, briers, confidences, hits = (np.zeros(count) for _ in range(5))
    for index, (row, right) in enumerate(zip(scores, best, strict=True)):
        scores_K = np.asarray(row, dtype=np.float64)
        for score in scores_K[~np.isfinite(scores_K)]:
            raise ModelError(f"the reward model returned the score {score}; expected a finite number")
        ranks[index] = np.sum(scores_K >= scores_K[right])  # Ties rank ahead of it.
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
    for place in np.unique(places):
        inside = places == place
        low_edge, high_edge = edges[place : place + 2].tolist()
        confidence, accuracy = float(confidences[inside].mean()), float(hits[inside].mean())
        table.append(ReliabilityBin(low_edge, high_edge, confidence, accuracy, int(inside.sum())))
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
