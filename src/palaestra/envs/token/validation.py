"""Checks of the arguments of `reset` and `step` of token environments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from palaestra.core.errors import EnvError


def check_seed(seed: int | list[int | None] | None, name: str) -> int | None:
    """Return the one seed for all slots. Episodes are numbered over all slots and share one order.

    Raises:
        EnvError: a list with different seeds.
    """
    if isinstance(seed, (list, tuple)):
        if any(value != seed[0] for value in seed):
            raise EnvError(f"{name} takes one seed for all slots; got {seed}")
        seed = seed[0] if seed else None
    return None if seed is None else int(seed)


def check_count(options: Mapping[str, Any], name: str) -> int | None:
    """Return a reset option that is a non-negative integer; `None` if it is missing."""
    value = options.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 0:
        raise EnvError(f"the reset option {name} is an integer of at least 0; got {value!r}")
    return int(value)


def check_tokens(actions: Any, active: np.ndarray, vocabulary: int) -> np.ndarray:
    """Return the actions of a step as an array of tokens.

    Raises:
        EnvError: no slot is active, the shape is wrong, or the action of an active slot is not in the vocabulary.
    """
    tokens: np.ndarray = np.asarray(actions)
    if tokens.shape != active.shape:
        raise EnvError(f"step needs one token per slot, shape {active.shape}; got shape {tokens.shape}")
    if not np.issubdtype(tokens.dtype, np.integer):
        raise EnvError(f"tokens are integers; got actions of the type {tokens.dtype}")
    if not active.any():
        raise EnvError("no slot is active: all episodes are done; call reset")
    chosen = tokens[active]
    wrong = chosen[(chosen < 0) | (chosen >= vocabulary)]
    if len(wrong):
        raise EnvError(f"tokens are from 0 to {vocabulary - 1}; got {wrong[0]}")
    return tokens
