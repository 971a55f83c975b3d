"""Mix the predictions of the last 1 to 14 characters and of repetitions in the document, with weights from `train.py`."""

from __future__ import annotations

import json
import os

import numpy as np

with open("/data/alphabet.json", encoding="utf-8") as file:
    ALPHABET = json.load(file)
SIZE = len(ALPHABET)
PLACE = {character: k for k, character in enumerate(ALPHABET)}
ORDERS = (1, 2, 3, 4, 5, 6, 8, 10, 14)
FACTOR = np.uint64(0x9E3779B97F4A7C15)
COPIES = (2, 4, 7)
"""The number of equal characters after which a repetition is predicted."""


def text_of(text: str) -> np.ndarray:
    """Encode characters as indices of the alphabet."""
    return np.array([PLACE[character] for character in text], dtype=np.int64)


def mixed(characters: np.ndarray) -> np.ndarray:
    """Hash each n-gram, [place, n-gram]."""
    found = np.zeros(characters.shape[1], dtype=np.uint64)
    for row in characters:
        found = (found + row.astype(np.uint64) + np.uint64(1)) * FACTOR
        found ^= found >> np.uint64(29)
    return found


def windows(text: np.ndarray, length: int) -> np.ndarray:
    """All n-grams of that length, [place, n-gram]."""
    return np.lib.stride_tricks.sliding_window_view(text, len(text) - length + 1)


class Counts:
    """Counts of n-grams: sorted hashes and numbers."""

    def __init__(self, tables: dict[int, tuple[np.ndarray, np.ndarray]]) -> None:
        self.tables = tables

    @classmethod
    def of(cls, text: str) -> Counts:
        numbers = text_of(text)
        return cls({order: np.unique(mixed(windows(numbers, order + 1)), return_counts=True) for order in ORDERS})

    def arrays(self) -> dict[str, np.ndarray]:
        keys = {f"keys{order}": keys.astype(np.uint64) for order, (keys, _) in self.tables.items()}
        return keys | {f"counts{order}": counts.astype(np.int32) for order, (_, counts) in self.tables.items()}

    def following(self, texts: list[np.ndarray], order: int) -> np.ndarray:
        """Counts of the characters that followed the last `order` characters of each text, [text, character]."""
        found = np.zeros((len(texts), SIZE))
        long = [k for k, text in enumerate(texts) if len(text) >= order]
        if not long:
            return found
        keys, counts = self.tables[order]
        last = np.stack([texts[k][len(texts[k]) - order :] for k in long])
        runs = np.concatenate(
            [np.repeat(last[:, None], SIZE, 1), np.tile(np.arange(SIZE), (len(long), 1))[..., None]], 2
        )
        wanted = mixed(runs.reshape(-1, order + 1).T)
        at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        found[long] = np.where(keys[at] == wanted, counts[at], 0).reshape(-1, SIZE)
        return found


def experts(contexts: list[str], counts: Counts) -> tuple[np.ndarray, np.ndarray]:
    """The predictions of each expert: log-probabilities, [context, expert, character], and features of its
    confidence, [context, expert, feature]."""
    texts = [text_of(context) for context in contexts]
    values, trust = [], []
    below = np.full((len(texts), SIZE), 1 / SIZE)
    for order in ORDERS:
        seen = counts.following(texts, order)
        total, kinds = seen.sum(1, keepdims=True), (seen > 0).sum(1, keepdims=True)
        # Back off to shorter contexts; more distinct followers give the shorter context more weight.
        below = np.where(total > 0, (seen + 0.7 * kinds * below) / np.maximum(total + 0.7 * kinds, 1e-9), below)
        values.append(np.log(below))
        trust.append(features(total[:, 0], below.max(1)))
    for length in COPIES:
        said = np.array([repeated(context, length) for context in contexts])
        total = said.sum(1, keepdims=True)
        chances = (said + 0.3 * below) / (total + 0.3)
        values.append(np.log(chances))
        trust.append(features(total[:, 0], chances.max(1)))
    return np.stack(values, 1).astype(np.float32), np.stack(trust, 1).astype(np.float32)


def features(total: np.ndarray, surest: np.ndarray) -> np.ndarray:
    """Features of an expert: whether and how often it has seen the context, and its confidence."""
    seen = (total > 0).astype(float)
    often = np.minimum(np.log1p(total), 6.0) / 6
    return np.stack([np.ones_like(seen), seen, often, seen * surest, often * surest, seen * (total < 3)], 1)


def repeated(context: str, length: int) -> np.ndarray:
    """What followed earlier occurrences of the document's last characters; longer matches count more."""
    said = np.zeros(SIZE)
    end = context[-length:]
    at = context.rfind(end, 0, len(context) - 1) if len(context) > length else -1
    while at >= 0:
        alike = length
        while alike < min(20, at + length) and context[at + length - alike - 1] == context[-alike - 1]:
            alike += 1
        said[PLACE[context[at + length]]] += 1.5 ** (alike - length)
        at = context.rfind(end, 0, at + length - 1)
    return said


if os.path.exists("weights.npz"):
    with np.load("weights.npz") as file:
        MIXTURE = file["mixture"]
        COUNTS = Counts({order: (file[f"keys{order}"], file[f"counts{order}"]) for order in ORDERS})


def log_probs(contexts: list[str]) -> list[list[float]]:
    values, trust = experts(contexts, COUNTS)
    scores = np.einsum("nkf,kf,nkc->nc", trust, MIXTURE, values).astype(float)
    scores = np.maximum(scores - scores.max(1, keepdims=True), -25)
    return (scores - np.log(np.exp(scores).sum(1, keepdims=True))).tolist()
