"""Score the fraction of digits that are recognised."""

from __future__ import annotations

import numpy as np

from palaestra.research.judge.evaluation import Evaluation
from palaestra.research.judge.tables import parse_label, read_predictions

DIGITS = tuple("0123456789")


def evaluate(evaluation: Evaluation) -> dict[str, float]:
    predicted, right = (np.array(values) for values in read_predictions(evaluation, parse_label(DIGITS)))
    hits = predicted == right
    by_digit = [float(hits[right == digit].mean()) for digit in DIGITS]
    return {"accuracy": float(hits.mean()), "worst_digit": min(by_digit)}
