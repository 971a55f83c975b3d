"""Score captions by the words that have to change to get the nearest right wording."""

from __future__ import annotations

import json

import numpy as np

from palaestra.research.judge.evaluation import Evaluation
from palaestra.research.tasks.task import SubmissionError

FILE, MAX_WORDS = "captions.json", 40
SPLITS = ("validation", "test")


def evaluate(evaluation: Evaluation) -> dict[str, float]:
    wordings = {
        split: json.loads((evaluation.hidden / f"{split}.json").read_text(encoding="utf-8")) for split in SPLITS
    }
    captions = _read_captions(evaluation, {split: len(texts) for split, texts in wordings.items()})
    scores = [
        max(_compare(caption.split(), wording.split()) for wording in right)
        for caption, right in zip(captions[evaluation.split], wordings[evaluation.split], strict=True)
    ]
    return {"agreement": float(np.mean(scores)), "exact": float(np.mean([score == 1.0 for score in scores]))}


def _read_captions(evaluation: Evaluation, sizes: dict[str, int]) -> dict[str, list[str]]:
    try:
        captions = json.loads(evaluation.text(FILE))
    except (ValueError, RecursionError) as error:
        raise SubmissionError(f"{FILE} must be JSON: {str(error)[:100]}") from None
    if not isinstance(captions, dict) or set(captions) != set(SPLITS):
        raise SubmissionError(f"{FILE} must have the fields validation and test, each a list of captions")
    for split, size in sizes.items():
        given = captions[split]
        if not isinstance(given, list) or len(given) != size or not all(isinstance(text, str) for text in given):
            got = f"{len(given)} values" if isinstance(given, list) else type(given).__name__
            raise SubmissionError(
                f"{FILE}: {split} must be a list of {size} texts, in the order of the pictures; got {got}"
            )
    return captions


def _compare(words: list[str], right: list[str]) -> float:
    """1 minus the edit distance in words over the length of the right wording, at least 0."""
    words = words[:MAX_WORDS]
    row = list(range(len(right) + 1))
    for number, word in enumerate(words, start=1):
        last, row[0] = row[0], number
        for place, other in enumerate(right, start=1):
            last, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, last + (word != other))
    return max(0.0, 1.0 - row[-1] / len(right))
