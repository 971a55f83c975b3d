"""Score the submitted weights on both looks of hidden digits. No submitted code runs."""

from __future__ import annotations

import io
import zipfile

import numpy as np

from palaestra.research.judge.evaluation import Evaluation
from palaestra.research.tasks.data import load_function
from palaestra.research.tasks.task import SubmissionError

FILE = "weights.npz"


def evaluate(evaluation: Evaluation) -> dict[str, float]:
    forward = load_function(evaluation.task.folder / "starter" / "network.py", "forward")
    with np.load(evaluation.public / FILE) as original:
        shapes = {name: original[name].shape for name in original.files}
    weights = _read_weights(evaluation, shapes)
    with np.load(evaluation.hidden / f"{evaluation.split}.npz") as data:
        accuracies = {}
        for look in ("old", "new"):
            with np.errstate(all="ignore"):
                logits = forward(weights, data[look].astype(np.float64))[-1]
            if not np.isfinite(logits).all():
                raise SubmissionError(f"{FILE}: the outputs of the network must be finite", exposed=True)
            accuracies[look] = float((logits.argmax(1) == data["labels"]).mean())
    return {"accuracy": (accuracies["old"] + accuracies["new"]) / 2, **accuracies}


def _read_weights(evaluation: Evaluation, shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    if FILE not in evaluation.files:
        raise SubmissionError(f"{FILE} is missing")
    try:
        with np.load(io.BytesIO(evaluation.files[FILE]), allow_pickle=False) as given:
            sizes = {name: sum(part.file_size for part in given.zip.infolist()) for name in given.files[:1]}
            if max(sizes.values(), default=0) > 1 << 24:
                raise SubmissionError(f"{FILE}: the arrays are larger than those of /data/{FILE}")
            arrays = {name: given[name] for name in given.files}
    except (OSError, ValueError, zipfile.BadZipFile, EOFError, AttributeError, KeyError) as error:
        raise SubmissionError(f"{FILE} must be written by numpy.savez; {str(error)[:100]}") from None
    if {name: array.shape for name, array in arrays.items()} != shapes:
        expected = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise SubmissionError(f"{FILE} must have the arrays of /data/{FILE}: {expected}")
    for name, array in arrays.items():
        if array.dtype.kind not in "fiu" or not np.isfinite(array).all():
            raise SubmissionError(f"{FILE}: {name} must contain finite numbers")
    return {name: array.astype(np.float64) for name, array in arrays.items()}
