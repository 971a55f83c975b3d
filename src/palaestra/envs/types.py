"""Types that environments share. Gymnasium's classes are generic; here their values may be anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, SupportsFloat, TypeAlias

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv

from palaestra.core.errors import EnvError

Info: TypeAlias = dict[str, Any]
"""The `info` of `reset` and `step`, by name."""
ResetOptions: TypeAlias = dict[str, Any] | None
"""The `options` of `reset`."""
Options: TypeAlias = Mapping[str, Any]
"""Arguments of an environment or a task, by name."""
ToolSchemas: TypeAlias = Sequence[Mapping[str, Any]]
"""Descriptions of tools in OpenAI's format."""
GymStep: TypeAlias = tuple[Any, SupportsFloat, bool, bool, Info]
"""The result of `gymnasium.Env.step`."""
GymEnv: TypeAlias = gymnasium.Env[Any, Any]
GymVectorEnv: TypeAlias = VectorEnv[Any, Any, Any]
GymSpace: TypeAlias = gymnasium.Space[Any]


def read_reset_mask(options: Options, num_envs: int) -> np.ndarray:
    """The reset option `reset_mask`: the slots to reset, by default all.

    Raises:
        EnvError: it does not have one bool per slot.
    """
    mask = np.asarray(options.get("reset_mask", np.ones(num_envs, dtype=bool)))
    if mask.shape != (num_envs,) or mask.dtype != bool:
        raise EnvError(f"reset_mask must have one bool per slot, shape ({num_envs},); got {mask.dtype} {mask.shape}")
    return mask
