"""The turn scale: one action is an assistant's message, one observation the conversation so far."""

from palaestra.envs.turn.base import TurnEnv
from palaestra.envs.turn.records import AssistantSpace, Conversation, Reply, StopReason
from palaestra.envs.turn.vector import TurnVectorEnv

__all__ = ["AssistantSpace", "Conversation", "Reply", "StopReason", "TurnEnv", "TurnVectorEnv"]
