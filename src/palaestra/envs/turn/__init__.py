"""The turn scale: one action is one assistant message, one observation is the conversation so far."""

from palaestra.envs.turn.base import AssistantSpace, Conversation, Reply, TurnEnv, TurnStopReason
from palaestra.envs.turn.tools import ToolEnv
from palaestra.envs.turn.vector import TurnVectorEnv

StopReason = TurnStopReason
"""The former name, for existing environments."""

__all__ = [
    "AssistantSpace",
    "Conversation",
    "Reply",
    "StopReason",
    "ToolEnv",
    "TurnEnv",
    "TurnStopReason",
    "TurnVectorEnv",
]
