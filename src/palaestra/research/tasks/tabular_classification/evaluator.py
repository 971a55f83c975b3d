"""How well faults are told apart: the mean over the classes of F1, so that the rare ones count as much as the common."""

from __future__ import annotations

import numpy as np

from palaestra.research.judge.evaluation import Evaluation
from palaestra.research.judge.tables import parse_label, read_predictions

CLASSES = ("none", "bearing", "cavitation", "blockage", "leak", "imbalance")


def evaluate(evaluation: Evaluation) -> dict[str, float]:
    predicted, right = (np.array(values) for values in read_predictions(evaluation, parse_label(CLASSES)))
    # Hits count double over all that was said and all that is there; every class is there in both splits.
    each = {
        name: 2 * ((predicted == name) & (right == name)).sum() / ((predicted == name).sum() + (right == name).sum())
        for name in CLASSES
    }
    scores = {f"f1_{name}": float(value) for name, value in each.items()}
    return {"macro_f1": float(np.mean(list(each.values()))), "accuracy": float((predicted == right).mean()), **scores}
