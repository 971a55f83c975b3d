"""All prompts at once, with the keys and values of earlier tokens kept. Prompts of different lengths begin at different columns of the batch."""

from __future__ import annotations

import numpy as np

HEADS, LAYERS = 4, 2
MODEL = dict(np.load("/data/model.npz"))
JOINED = [np.concatenate([MODEL[f"{name}{layer}"] for name in ("query", "key", "value")], 1) for layer in range(LAYERS)]


def generate(prompts: list[list[int]], count: int) -> list[list[int]]:
    """Return the `count` most likely tokens after each prompt, one after the other."""
    batch, width = len(prompts), MODEL["tokens"].shape[1]
    lengths = np.array([len(prompt) for prompt in prompts])
    longest, rows = int(lengths.max()), np.arange(batch)
    # Aligned at the end: column longest - 1 is the last token of every prompt.
    tokens = np.zeros((batch, longest), dtype=int)
    for row, prompt in enumerate(prompts):
        tokens[row, longest - len(prompt) :] = prompt
    places = np.arange(longest) - (longest - lengths)[:, None]
    exists = np.zeros((batch, longest + count), dtype=bool)
    exists[:, :longest] = places >= 0
    exists[:, longest:] = True
    cache = [np.zeros((2, batch, HEADS, longest + count, width // HEADS)) for _ in range(LAYERS)]
    hidden = MODEL["tokens"][tokens] + MODEL["positions"][np.maximum(places, 0)]
    result = np.zeros((batch, count), dtype=int)
    for number in range(count):
        start = 0 if number == 0 else longest + number - 1
        result[:, number] = read(hidden, start, cache, exists).argmax(-1)
        hidden = (MODEL["tokens"][result[:, number]] + MODEL["positions"][lengths + number])[:, None]
    return [result[row].tolist() for row in rows]


def read(hidden: np.ndarray, start: int, cache: list[np.ndarray], exists: np.ndarray) -> np.ndarray:
    """The logits after the last of the new tokens, which begin at column `start`."""
    batch, new, width = hidden.shape
    size, end = width // HEADS, start + new
    seen = exists[:, None, None, :end] & (np.arange(end) <= np.arange(start, end)[:, None])
    for layer in range(LAYERS):
        parts = (normalize(hidden) @ JOINED[layer]).reshape(batch, new, 3, HEADS, size).transpose(2, 0, 3, 1, 4)
        cache[layer][:, :, :, start:end] = parts[1:]
        keys, values = cache[layer][:, :, :, :end]
        scores = np.where(seen, parts[0] @ keys.swapaxes(-1, -2) / size**0.5, -1e30)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (weights / weights.sum(-1, keepdims=True)) @ values
        hidden = hidden + mixed.transpose(0, 2, 1, 3).reshape(batch, new, width) @ MODEL[f"mix{layer}"]
        hidden = hidden + np.maximum(normalize(hidden) @ MODEL[f"up{layer}"], 0) @ MODEL[f"down{layer}"]
    return normalize(hidden[:, -1]) @ MODEL["output"]


def normalize(inputs: np.ndarray) -> np.ndarray:
    return inputs / np.sqrt((inputs**2).mean(-1, keepdims=True) + 1e-6)
