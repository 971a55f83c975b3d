"""Research tasks as TorchRL environments: `make_mlgym`, and what it is made of.

TorchRL is an extra. Importing this module does not load it; the first use of a name does, and says how to install it
where it is missing.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from palaestra.core.errors import MissingExtraError

if TYPE_CHECKING:
    from palaestra.integrations.torchrl.base import MLGymWrapper
    from palaestra.integrations.torchrl.code_block import IsolateCodeBlock
    from palaestra.integrations.torchrl.environment import ConditionalSkip, MLGymEnv
    from palaestra.integrations.torchrl.history import MessageToHistory
    from palaestra.integrations.torchrl.make import make_mlgym
    from palaestra.integrations.torchrl.message import StateToMessage
    from palaestra.integrations.torchrl.pool import MLGymPool
    from palaestra.integrations.torchrl.reset import ResetModule
    from palaestra.integrations.torchrl.reward import MLGymRewardAssignment
    from palaestra.integrations.torchrl.sampler import TaskSampler
    from palaestra.integrations.torchrl.state import ReadState
    from palaestra.integrations.torchrl.template import TemplateTransform

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

_HOMES = {
    "ConditionalSkip": "environment",
    "IsolateCodeBlock": "code_block",
    "MLGymEnv": "environment",
    "MLGymPool": "pool",
    "MLGymRewardAssignment": "reward",
    "MLGymWrapper": "base",
    "MessageToHistory": "history",
    "ReadState": "state",
    "ResetModule": "reset",
    "StateToMessage": "message",
    "TaskSampler": "sampler",
    "TemplateTransform": "template",
    "make_mlgym": "make",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for package in ("torchrl", "tensordict"):
        if find_spec(package) is None:
            raise MissingExtraError(package, "torchrl", "a TorchRL environment")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
