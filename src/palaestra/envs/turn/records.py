"""Records that agents and turn environments exchange, and their Gymnasium spaces."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from palaestra.core.checks import short_repr
from palaestra.core.errors import EnvError, RewardError
from palaestra.core.records import Failure, ImagePart, Message, TextPart, ToolCall
from palaestra.core.spaces import Choice, RecordSpace, Several, UnicodeText
from palaestra.engines.openai_format import parse_message, to_chat_messages

TEXT_LIMIT = 1 << 24
"""The maximum number of characters in one message."""

MessageLike = Message | Mapping[str, Any] | str
"""A message as an environment may return it: a `Message`, an OpenAI message dictionary, or a text from the user."""


class TurnStopReason(StrEnum):
    """Why a turn episode ended. `palaestra.core.records.StopReason` is why a single completion ended."""

    SUBMITTED = "submitted"
    """The agent submitted its work."""
    SOLVED = "solved"
    """The goal was reached."""
    LOST = "lost"
    """The game is over and was not won."""
    ATTEMPTS = "attempts"
    """The last attempt was wrong."""
    GAVE_UP = "gave_up"
    """The agent stopped without submitting anything."""
    STEPS = "steps"
    """The turn limit was reached."""
    TIME = "time"
    """The time limit was reached."""
    COST = "cost"
    """The budget of the agent's model is spent."""
    CONTEXT = "context"
    """The conversation no longer fits the context of the agent's model."""
    FORMAT = "format"
    """Too many consecutive messages contained no readable action."""
    FAILED = "failed"
    """Something outside the agent failed: its model, the sandbox or the evaluator. There is no score."""
    INTERRUPTED = "interrupted"
    """The episode was stopped from outside."""

    @property
    def terminal(self) -> bool:
        """Whether the episode ended by itself (`terminated`) rather than at a limit (`truncated`)."""
        return self in (
            TurnStopReason.SUBMITTED,
            TurnStopReason.SOLVED,
            TurnStopReason.LOST,
            TurnStopReason.ATTEMPTS,
            TurnStopReason.GAVE_UP,
        )


@dataclass(frozen=True, slots=True)
class Conversation:
    """The observation at the turn scale.

    Arguments:
        messages: all messages so far, in the OpenAI chat format. They only grow at the end.
        state: further information for the agent, defined by the environment.
    """

    messages: tuple[Message, ...]
    state: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def openai(self) -> list[dict[str, Any]]:
        """Return the messages as dictionaries for an OpenAI client; images become `data:` URLs."""
        return to_chat_messages(self.messages)


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply of an environment to an assistant's message.

    Arguments:
        messages: messages to append: `Message` objects, OpenAI message dictionaries or texts. A single text is one user
            message.
        reward: the reward of this turn, a finite number.
        stop: why the episode ends, a `TurnStopReason` or its value; `None` to continue.
        failure: what failed outside the agent. The episode ends as `TurnStopReason.FAILED`, and its reward is ignored.
        info: further entries of the step's `info`.
    """

    messages: Sequence[MessageLike] = ()
    reward: float = 0.0
    stop: TurnStopReason | str | None = None
    failure: Failure | None = None
    info: Mapping[str, Any] = field(default_factory=dict, hash=False)


def observation_space() -> RecordSpace:
    """Return the space of `Conversation`."""
    return RecordSpace(Conversation, {"messages": Several(message_space())})


def message_space() -> RecordSpace:
    """Return the space of the messages of a conversation."""
    roles = Choice(("system", "user", "assistant", "tool"))
    return RecordSpace(Message, {"role": roles, "content": Content()})


class Content(UnicodeText):
    """The content of a message: a text, or a tuple of text and image parts."""

    def __init__(self, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(TEXT_LIMIT, seed=seed)

    def contains(self, x: Any) -> bool:
        if isinstance(x, tuple):
            return all(isinstance(part, (TextPart, ImagePart)) for part in x)
        return super().contains(x)

    def __repr__(self) -> str:
        return "Content()"


class AssistantSpace(UnicodeText):
    """Actions at the turn scale: an assistant's text, or its whole message if it calls tools. Samples are texts.

    A message without content, as servers return it with tool calls, counts as an empty text.
    """

    def __init__(self, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(TEXT_LIMIT, seed=seed)

    def contains(self, x: Any) -> bool:
        if not isinstance(x, Message):
            return super().contains(x)
        calls = isinstance(x.tool_calls, tuple) and all(isinstance(call, ToolCall) for call in x.tool_calls)
        if x.role != "assistant" or not calls or not isinstance(x.content, str | tuple | None):
            return False
        parts = x.content if isinstance(x.content, tuple) else ()
        if not all(isinstance(p, ImagePart) or (isinstance(p, TextPart) and isinstance(p.text, str)) for p in parts):
            return False
        return super().contains(x.text if x.content else "")

    def __repr__(self) -> str:
        return "AssistantSpace()"


_MESSAGES = message_space()


class NoRewardError(EnvError, RewardError):
    """A reward is not a finite number. It may happen in a single episode, so it counts as a failure, not as a
    usage error.
    """


@dataclass(frozen=True, slots=True)
class CheckedReply:
    """A `Reply` with validated fields."""

    messages: tuple[Message, ...]
    reward: float
    stop: TurnStopReason | None
    failure: Failure | None
    info: Mapping[str, Any]

    def before(self, then: CheckedReply) -> CheckedReply:
        """Combine two replies of the same turn."""
        return CheckedReply(
            (*self.messages, *then.messages), self.reward + then.reward, then.stop, then.failure, {**self.info, **then.info}
        )  # fmt: skip


def check_messages(given: Any) -> list[Message]:
    """Convert what an environment returned to messages: one or several `Message`s, OpenAI message dictionaries or texts.

    Raises:
        TypeError, ValueError: a value is something else.
    """
    several = [given] if isinstance(given, (str, Message, Mapping)) else list(given)
    return [_to_message(message) for message in several]


def check_reply(given: Any) -> CheckedReply:
    """Check the reply of an environment.

    Raises:
        TypeError, ValueError: it is not a `Reply`, or a field has the wrong type.
        NoRewardError: the reward is not a finite number.
    """
    if not isinstance(given, Reply):
        raise TypeError("expected a Reply")
    if not isinstance(given.failure, Failure | None):
        raise TypeError("expected a Failure or None as the failure")
    reward = 0.0 if given.failure is not None else float(given.reward)  # The reward of a failed turn is ignored.
    if not math.isfinite(reward):
        raise NoRewardError("expected a finite number as the reward")
    stop = None if given.stop is None else TurnStopReason(given.stop)
    return CheckedReply(tuple(check_messages(given.messages)), reward, stop, given.failure, dict(given.info))


def _to_message(given: Any) -> Message:
    if isinstance(given, str):
        return Message("user", given)
    message = parse_message(given) if isinstance(given, Mapping) else given
    if message not in _MESSAGES:
        raise ValueError(f"expected a Message, its dictionary or a text; got {short_repr(given)}")
    return message
