"""Score predicted rents by the root mean squared error of their logarithms."""

from __future__ import annotations

import numpy as np

from palaestra.research.judge.evaluation import Evaluation
from palaestra.research.judge.tables import number, read_predictions


def evaluate(evaluation: Evaluation) -> dict[str, float]:
    predicted, right = (np.log(values) for values in read_predictions(evaluation, number(1.0, 1e6)))
    off = predicted - right
    return {"rmse": float(np.sqrt((off**2).mean())), "median": float(np.median(np.abs(off)))}
