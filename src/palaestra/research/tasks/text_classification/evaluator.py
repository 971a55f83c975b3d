"""Score the fraction of letters whose request is recognised."""

from __future__ import annotations

import numpy as np

from palaestra.research.judge.evaluation import Evaluation
from palaestra.research.judge.tables import parse_label, read_predictions

WISHES = ("refund", "replacement", "repair", "cancel", "invoice", "address")


def evaluate(evaluation: Evaluation) -> dict[str, float]:
    predicted, right = (np.array(values) for values in read_predictions(evaluation, parse_label(WISHES)))
    hits = predicted == right
    return {"accuracy": float(hits.mean()), "worst_wish": min(float(hits[right == wish].mean()) for wish in WISHES)}
