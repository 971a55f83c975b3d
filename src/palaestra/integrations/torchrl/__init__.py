"""Research tasks as TorchRL environments: `make_mlgym`, its transforms and a pool.

TorchRL is an optional extra. Without it the import raises `MissingExtraError` with the install command.
"""

try:
    from torchrl.envs import ConditionalSkip
except ModuleNotFoundError as error:
    from palaestra.core.errors import MissingExtraError

    raise MissingExtraError("torchrl", "torchrl", "a TorchRL environment") from error

from palaestra.integrations.torchrl.base import MLGymEnv, MLGymWrapper
from palaestra.integrations.torchrl.chat_template import TemplateTransform
from palaestra.integrations.torchrl.make import MLGymPool, make_mlgym
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
