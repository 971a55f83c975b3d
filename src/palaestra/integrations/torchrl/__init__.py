"""Research tasks as TorchRL environments: `make_mlgym`, its transforms and a pool.

TorchRL is an optional extra. It is loaded when a name of this package is first used; without it that raises
`MissingExtraError` with the install command.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from palaestra.core.errors import MissingExtraError

if TYPE_CHECKING:
    from torchrl.envs import ConditionalSkip

    from palaestra.integrations.torchrl.base import MLGymEnv, MLGymWrapper
    from palaestra.integrations.torchrl.chat_template import TemplateTransform
    from palaestra.integrations.torchrl.make import make_mlgym
    from palaestra.integrations.torchrl.pool import MLGymPool
    from palaestra.integrations.torchrl.transforms import (
        IsolateCodeBlock,
        MessageToHistory,
        MLGymRewardAssignment,
        ReadState,
        ResetModule,
        StateToMessage,
        TaskSampler,
    )

__all__ = [
    "ConditionalSkip",
    "IsolateCodeBlock",
    "MLGymEnv",
    "MLGymPool",
    "MLGymRewardAssignment",
    "MLGymWrapper",
    "MessageToHistory",
    "ReadState",
    "ResetModule",
    "StateToMessage",
    "TaskSampler",
    "TemplateTransform",
    "make_mlgym",
]

_MODULES = {
    "MLGymEnv": "base",
    "MLGymWrapper": "base",
    "TemplateTransform": "chat_template",
    "ConditionalSkip": "make",
    "make_mlgym": "make",
    "MLGymPool": "pool",
    "IsolateCodeBlock": "transforms",
    "MLGymRewardAssignment": "transforms",
    "MessageToHistory": "transforms",
    "ReadState": "transforms",
    "ResetModule": "transforms",
    "StateToMessage": "transforms",
    "TaskSampler": "transforms",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for package in ("torchrl", "tensordict"):
        if find_spec(package) is None:
            raise MissingExtraError(package, "torchrl", "a TorchRL environment")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
