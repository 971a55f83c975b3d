"""Score predicted faults by the macro F1, in which rare classes count as much as common ones."""

from __future__ import annotations

import numpy as np

from palaestra.research.judge.evaluation import Evaluation
from palaestra.research.judge.tables import parse_label, read_predictions

CLASSES = ("none", "bearing", "cavitation", "blockage", "leak", "imbalance")


def evaluate(evaluation: Evaluation) -> dict[str, float]:
    predicted, right = (np.array(values) for values in read_predictions(evaluation, parse_label(CLASSES)))
    # F1 = 2 hits / (predicted + actual). Every class occurs in both splits.
    each = {
        name: 2 * ((predicted == name) & (right == name)).sum() / ((predicted == name).sum() + (right == name).sum())
        for name in CLASSES
    }
    scores = {f"f1_{name}": float(value) for name, value in each.items()}
    return {"macro_f1": float(np.mean(list(each.values()))), "accuracy": float((predicted == right).mean()), **scores}
