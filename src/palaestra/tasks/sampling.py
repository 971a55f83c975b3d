"""Shared helpers of problem generators: random choices, and the format of a worked response."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np


def between(rng: np.random.Generator, low: int, high: int) -> int:
    """A whole number from `low` to `high`, both included."""
    return int(rng.integers(low, high + 1))


def pick(rng: np.random.Generator, choices: Sequence[str]) -> str:
    return choices[int(rng.integers(len(choices)))]


def format_response(steps: Iterable[str], answer: str) -> str:
    """The reasoning and the answer, as a student should write them.

    >>> format_response(["3+4=7", "7+1=8."], "8")
    '3+4=7. 7+1=8. Answer: 8'
    """
    return "".join(f"{step.strip().removesuffix('.')}. " for step in steps) + f"Answer: {answer}"
