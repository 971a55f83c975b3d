"""Accuracy, ranking and calibration of a reward model's scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from palaestra.core.errors import ModelError
from palaestra.core.statistics import wilson_interval


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
        calibration_error: mean distance of confidence and accuracy over ten bins of confidence from 1/K to 1.
        brier: half the squared distance of probabilities and truth; 0.25 for a coin flip on pairs.
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
    if count == 0:
        raise ValueError("expected at least one comparison; got none")
    ranks, losses, briers, confidences, hits = (np.zeros(count) for _ in range(5))
    for index, (row, right) in enumerate(zip(scores, best, strict=True)):
        scores_K = np.asarray(row, dtype=np.float64)
        if not np.isfinite(scores_K).all():
            raise ModelError(
                f"the reward model returned the score {scores_K[~np.isfinite(scores_K)][0]}; expected a finite number"
            )
        ranks[index] = np.sum(scores_K >= scores_K[right])  # Ties rank before it.
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


def report_to_dict(report: RewardReport) -> dict[str, Any]:
    """Convert a report to plain values for a file."""
    return {**asdict(report), "reliability": [asdict(entry) for entry in report.reliability]}
