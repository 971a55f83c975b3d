"""Other people's environments in slots."""

from palaestra.envs.wrappers.plain_tokens import PlainTokenVectorEnv
from palaestra.envs.wrappers.slots import SlotVectorEnv

__all__ = ["PlainTokenVectorEnv", "SlotVectorEnv"]
