"""Vector environments made of single environments."""

from palaestra.envs.wrappers.plain_tokens import PlainTokenVectorEnv
from palaestra.envs.wrappers.slots import SlotVectorEnv

__all__ = ["PlainTokenVectorEnv", "SlotVectorEnv"]
