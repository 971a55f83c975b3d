"""What passes between an agent and a turn environment: typed records, and their Gymnasium spaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from palaestra.core.records import Failure, ImagePart, Message, TextPart, ToolCall
from palaestra.core.spaces import Choice, RecordSpace, Several, UnicodeText
from palaestra.engines.openai_format import chat_messages

TEXT_LIMIT = 1 << 24
"""The most characters of one message, an assistant's or the environment's."""

MessageLike = Message | Mapping[str, Any] | str
"""A message as an environment may give it: OpenAI's dictionary of one will do, and a text is a user's."""


class TurnStopReason(StrEnum):
    """Why an episode of turns ended. (Why a single completion ended is `palaestra.core.records.TurnStopReason`.)"""

    SUBMITTED = "submitted"
    """The agent handed in its work."""
    SOLVED = "solved"
    """What was asked for is there; nothing is left to do."""
    ATTEMPTS = "attempts"
    """The last attempt was used, and was not right."""
    GAVE_UP = "gave_up"
    """The agent said that it stops, without handing anything in."""
    STEPS = "steps"
    """The limit of turns was reached."""
    TIME = "time"
    """The limit of wall time was reached."""
    COST = "cost"
    """The agent's model has spent what it may."""
    CONTEXT = "context"
    """The conversation no longer fits the agent's model."""
    FORMAT = "format"
    """Too many messages in a row held no action that can be read."""
    FAILED = "failed"
    """Something around the agent broke: its model, the sandbox, the evaluator. There is no score."""
    INTERRUPTED = "interrupted"
    """Somebody stopped it from outside."""

    @property
    def terminal(self) -> bool:
        """Whether the episode is over for good (`terminated`), rather than cut (`truncated`)."""
        return self in (
            TurnStopReason.SUBMITTED,
            TurnStopReason.SOLVED,
            TurnStopReason.ATTEMPTS,
            TurnStopReason.GAVE_UP,
        )


@dataclass(frozen=True, slots=True)
class Conversation:
    """The observation at the turn scale.

    Arguments:
        messages: everything that was said, in the OpenAI chat format. It only ever grows at its end.
        state: what else an agent may know of where it stands; what is in it is the environment's to say.
    """

    messages: tuple[Message, ...]
    state: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def openai(self) -> list[dict[str, Any]]:
        """The messages as plain dictionaries, as a client of OpenAI's format takes them; images as `data:` addresses."""
        return chat_messages(self.messages)


@dataclass(frozen=True, slots=True)
class Reply:
    """What an environment answers to an assistant's message.

    Arguments:
        messages: what is appended to the conversation: `Message`s, or OpenAI's dictionaries of them; a text is one message, a
            user's.
        reward: of this turn, a finite number.
        stop: why the episode is over with it, a `TurnStopReason` or its name; `None` goes on.
        failure: what broke around the agent; the episode then ends as `TurnStopReason.FAILED` and its reward says nothing.
        info: what else the step's `info` is to hold.
    """

    messages: Sequence[MessageLike] = ()
    reward: float = 0.0
    stop: TurnStopReason | str | None = None
    failure: Failure | None = None
    info: Mapping[str, Any] = field(default_factory=dict, hash=False)


def observation_space() -> RecordSpace:
    """The space of `Conversation`."""
    return RecordSpace(Conversation, {"messages": Several(message_space())})


def message_space() -> RecordSpace:
    """The space of the messages of a conversation."""
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
    """Actions at the turn scale: an assistant's text, or its whole message where it calls tools. Samples are texts.

    A message without content, as servers give it beside calls of tools, is one with the empty text.
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
