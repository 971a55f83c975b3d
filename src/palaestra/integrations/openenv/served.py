"""The episodes of a turn environment in the terms of OpenEnv: what a server of an exported package answers with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from palaestra.core.errors import EnvError
from palaestra.core.records import Message
from palaestra.engines.openai_format import to_chat_messages
from palaestra.envs.factory import make_single_turn_env


class ServedEpisodes:
    """Plays a turn environment, one episode after the other. A server has one for each session.

    Arguments:
        env_id, env_options: the environment, as for `palaestra train`.

    Example:
        >>> episodes = ServedEpisodes("palaestra/Guess-v0", {})
        >>> episodes.reset(seed=1)["text"]
        'Guess a number from 1 to 8.'
        >>> fields = episodes.step("8")
        >>> fields["text"], fields["reward"], fields["done"]
        ('Lower.', 0.0, False)
    """

    def __init__(self, env_id: str, env_options: Mapping[str, Any]) -> None:
        self._env = make_single_turn_env(env_id, env_options)
        self._length = 0

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Start an episode. Returns the fields of its first observation."""
        conversation, _ = self._env.reset(seed=seed, options=dict(options or {}) or None)
        self._length = 0
        return {**self._describe(conversation.messages), "reward": None, "done": False, "tools": list(self._env.tools)}

    def step(self, message: str, tool_calls: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
        """Play one turn. Returns the fields of the observation.

        Arguments:
            tool_calls: calls of tools in OpenAI's format.

        Raises:
            EnvError: the episode failed outside the agent. It has no reward.
        """
        action: Any = message
        if tool_calls:
            action = {"role": "assistant", "content": message, "tool_calls": [dict(call) for call in tool_calls]}
        conversation, reward, terminated, truncated, info = self._env.step(action)
        if (failure := info.get("failure")) is not None:
            raise EnvError(f"the episode failed ({failure.cause.value}): {failure.message}")
        return {
            **self._describe(conversation.messages),
            "reward": float(reward),
            "done": terminated or truncated,
            "truncated": truncated,
            "stop_reason": str(info.get("stop_reason", "")),
        }

    def close(self) -> None:
        self._env.close()

    def _describe(self, messages: Sequence[Message]) -> dict[str, Any]:
        """The new messages of the environment, in OpenAI's format and as one text."""
        fresh = [message for message in messages[self._length :] if message.role != "assistant"]
        self._length = len(messages)
        return {"text": "\n".join(message.text for message in fresh), "messages": to_chat_messages(fresh)}
