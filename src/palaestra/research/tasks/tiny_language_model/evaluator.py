"""Score a language model by its log-likelihood of the next character in hidden documents."""

from __future__ import annotations

import json

import numpy as np

from palaestra.research.judge.evaluation import Evaluation
from palaestra.research.tasks.task import SubmissionError

BATCH = 250
MIN_LOG_PROB = -30.0
TOLERANCE = 1e-3


def evaluate(evaluation: Evaluation) -> dict[str, float]:
    alphabet: list[str] = json.loads((evaluation.public / "alphabet.json").read_text(encoding="utf-8"))
    asked = json.loads((evaluation.hidden / f"{evaluation.split}.json").read_text(encoding="utf-8"))
    losses, best = [], []
    with evaluation.program("model.py") as program:
        for start in range(0, len(asked), BATCH):
            batch = asked[start : start + BATCH]
            log_probs = _check_log_probs(
                program.call("log_probs", [context for context, _ in batch]), len(batch), len(alphabet)
            )
            places = [alphabet.index(target) for _, target in batch]
            losses.append(-log_probs[np.arange(len(batch)), places])
            best.append(log_probs.argmax(1) == places)
    return {"nats": float(np.concatenate(losses).mean()), "accuracy": float(np.concatenate(best).mean())}


def _check_log_probs(answer: object, contexts: int, size: int) -> np.ndarray:
    """Check and normalize log-probabilities, [context, character]."""
    if not isinstance(answer, list) or len(answer) != contexts:
        got = f"{len(answer)}" if isinstance(answer, list) else type(answer).__name__
        raise SubmissionError(f"log_probs must return one list for each of {contexts} contexts; got {got}")
    for number, row in enumerate(answer):
        if not isinstance(row, list) or len(row) != size or not all(type(value) in (float, int) for value in row):
            raise SubmissionError(
                f"log_probs must return {size} numbers for each context, one for each character of alphabet.json in its "
                f"order; got {str(row)[:80]} for context {number}"
            )
    try:
        log_probs = np.array(answer, dtype=float)
    except OverflowError:
        raise SubmissionError(
            "log_probs must return log-probabilities; got a number that does not fit a float"
        ) from None
    if not (log_probs >= MIN_LOG_PROB).all():  # Also true for NaN.
        worst = log_probs[~(log_probs >= MIN_LOG_PROB)][0]
        raise SubmissionError(
            f"every logarithm must be at least {MIN_LOG_PROB:g}: no character is impossible; got {worst}"
        )
    with np.errstate(over="ignore"):
        totals = np.exp(log_probs).sum(1)
    if not (np.abs(totals - 1.0) <= TOLERANCE).all():
        worst = totals[np.abs(totals - 1.0).argmax()]
        raise SubmissionError(
            f"the probabilities of a context must sum to 1, within {TOLERANCE:g}, as natural logarithms; got {worst:.6g}"
        )
    normalized: np.ndarray = log_probs - np.log(totals)[:, None]
    return normalized
