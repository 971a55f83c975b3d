"""Guesses the kind of a metric from its name, because the files of a checkout do not state it."""

from __future__ import annotations

import re

from palaestra.research.tasks.task import Direction

TIMES = frozenset({"duration", "latency", "runtime", "second", "seconds", "secs", "time", "times", "walltime"})
LOWER = TIMES | frozenset({
    "bits", "bpb", "bpc", "brier", "cer", "conflicts", "cost", "costs", "crps", "decisions", "distance", "divergence",
    "ece", "eer", "entropy", "err", "error", "errors", "fid", "fnr", "fpr", "kl", "loss",
    "losses", "mae", "mape", "mse", "msle", "nll", "perplexity", "ppl", "regret", "rmse", "rmsle",
    "ter", "wer",
})  # fmt: skip
"""Words of metrics where lower is better."""
HIGHER = frozenset({
    "acc", "accuracy", "auc", "auroc", "bleu", "f1", "iou", "lossless", "ndcg", "neg", "negative", "precision", "r2",
    "recall", "return", "reward", "rouge", "score", "scores", "survive", "survived", "win", "wins",
})  # fmt: skip
"""Words of metrics where higher is better, whatever else the name contains."""
WORD = re.compile(r"[A-Z]+(?![a-z])\d*|[A-Z]?[a-z]+\d*|\d+")


def guess_direction(metric: str) -> Direction:
    """Guess the direction of a metric from the words of its name.

    >>> [str(guess_direction(name)) for name in ("Test_MSE_mean", "valLoss", "sentiment_accuracy", "apples", "neg_loss")]
    ['lower', 'lower', 'higher', 'higher', 'higher']
    """
    words = _words(metric)
    return Direction.LOWER if words & LOWER and not words & HIGHER else Direction.HIGHER


def is_time(metric: str) -> bool:
    """Whether a metric measures time.

    >>> is_time("solvingTime"), is_time("sentiment")
    (True, False)
    """
    return bool(_words(metric) & TIMES)


def _words(metric: str) -> set[str]:
    return {word.lower() for word in WORD.findall(metric)}
