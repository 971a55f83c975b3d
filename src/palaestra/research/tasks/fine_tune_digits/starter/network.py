"""The network: three layers with ReLU, as arrays w0, b0, w1, b1, w2, b2, and a plain training by gradient descent."""

from __future__ import annotations

import numpy as np

Weights = dict[str, np.ndarray]


def forward(weights: Weights, images: np.ndarray) -> list[np.ndarray]:
    """The inputs of each layer, and the logits at the end."""
    layers = [images]
    for number in range(3):
        output = layers[-1] @ weights[f"w{number}"] + weights[f"b{number}"]
        layers.append(np.maximum(output, 0) if number < 2 else output)
    return layers


def gradients(weights: Weights, images: np.ndarray, labels: np.ndarray) -> Weights:
    """The gradients of the mean cross-entropy."""
    layers = forward(weights, images)
    logits = layers[-1] - layers[-1].max(1, keepdims=True)
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    chances[np.arange(len(labels)), labels] -= 1
    error, result = chances / len(labels), {}
    for number in (2, 1, 0):
        result[f"w{number}"], result[f"b{number}"] = layers[number].T @ error, error.sum(0)
        error = (error @ weights[f"w{number}"].T) * (layers[number] > 0)
    return result


def train(
    weights: Weights,
    images: np.ndarray,
    labels: np.ndarray,
    epochs: int,
    rate: float,
    batch: int,
    rng: np.random.Generator,
) -> Weights:
    """Train by gradient descent in minibatches. Returns new weights."""
    weights = {name: array.copy() for name, array in weights.items()}
    for _ in range(epochs):
        order = rng.permutation(len(labels))
        for start in range(0, len(order), batch):
            part = order[start : start + batch]
            for name, gradient in gradients(weights, images[part], labels[part]).items():
                weights[name] -= (rate * gradient).astype(weights[name].dtype)
    return weights
