"""The baseline: a small decoder in NumPy that computes everything again for every token, one prompt after the other."""

from __future__ import annotations

import numpy as np

HEADS = 4
MODEL = dict(np.load("/data/model.npz"))


def generate(prompts: list[list[int]], count: int) -> list[list[int]]:
    """Return the `count` most likely tokens after each prompt, one after the other."""
    return [generate_one(prompt, count) for prompt in prompts]


def generate_one(prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(np.argmax(logits(tokens)[-1])))
    return tokens[len(prompt) :]


def logits(tokens: list[int]) -> np.ndarray:
    """The logits after each token."""
    hidden = MODEL["tokens"][tokens] + MODEL["positions"][: len(tokens)]
    for layer in range(2):
        hidden = hidden + attention(normalize(hidden), layer)
        hidden = hidden + np.maximum(normalize(hidden) @ MODEL[f"up{layer}"], 0) @ MODEL[f"down{layer}"]
    return normalize(hidden) @ MODEL["output"]


def attention(inputs: np.ndarray, layer: int) -> np.ndarray:
    length, width = inputs.shape
    query, key, value = (inputs @ MODEL[f"{name}{layer}"] for name in ("query", "key", "value"))
    result = np.zeros_like(inputs)
    size = width // HEADS
    for head in range(HEADS):
        part = slice(head * size, (head + 1) * size)
        scores = query[:, part] @ key[:, part].T / size**0.5
        scores = np.where(np.tril(np.ones((length, length), dtype=bool)), scores, -np.inf)
        weights = np.exp(scores - scores.max(1, keepdims=True))
        result[:, part] = weights / weights.sum(1, keepdims=True) @ value[:, part]
    return result @ MODEL[f"mix{layer}"]


def normalize(inputs: np.ndarray) -> np.ndarray:
    return inputs / np.sqrt((inputs**2).mean(-1, keepdims=True) + 1e-6)
