"""Turn environments: one action is one assistant message, one observation is the conversation so far.

Also the records that agents and turn environments exchange, and their Gymnasium spaces.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import ClassVar, TypeVar

import gymnasium
import numpy as np

from palaestra.core.errors import EnvError, RewardError
from palaestra.core.records import Failure, FailureCause, ImagePart, Json, Message, TextPart, ToolCall
from palaestra.core.registry import describe_location
from palaestra.core.settings import check_integer, check_number, short_repr
from palaestra.core.spaces import Choice, RecordSpace, Several, UnicodeText
from palaestra.engines.openai_format import parse_message, to_chat_messages
from palaestra.envs.base import Info, Options, ResetOptions, ToolSchemas

MAX_MESSAGE = 1 << 24
"""The maximum number of characters in one message."""

MessageLike = Message | Json | str
"""A message as an environment may return it: a `Message`, an OpenAI message dictionary, or a text from the user."""
Action = str | Message | Options
S = TypeVar("S")
T = TypeVar("T")


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
    state: Options = field(default_factory=dict, hash=False)

    def openai(self) -> list[Json]:
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
    info: Options = field(default_factory=dict, hash=False)


def observation_space() -> RecordSpace:
    """Return the space of `Conversation`."""
    return RecordSpace(Conversation, {"messages": Several(_message_space())})


def _message_space() -> RecordSpace:
    """Return the space of the messages of a conversation."""
    roles = Choice(("system", "user", "assistant", "tool"))
    return RecordSpace(Message, {"role": roles, "content": _Content()})


class _Content(UnicodeText):
    """The content of a message: a text, or a tuple of text and image parts."""

    def __init__(self, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(MAX_MESSAGE, seed=seed)

    def contains(self, x: object) -> bool:
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
        super().__init__(MAX_MESSAGE, seed=seed)

    def contains(self, x: object) -> bool:
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


_MESSAGES = _message_space()


class NoRewardError(EnvError, RewardError):
    """A reward is not a finite number. It may happen in a single episode, so it counts as a failure, not as a
    usage error.
    """


@dataclass(frozen=True, slots=True)
class _CheckedReply:
    """A `Reply` with validated fields."""

    messages: tuple[Message, ...]
    reward: float
    stop: TurnStopReason | None
    failure: Failure | None
    info: Options

    def before(self, then: _CheckedReply) -> _CheckedReply:
        """Combine two replies of the same turn."""
        messages, info = (*self.messages, *then.messages), {**self.info, **then.info}
        return _CheckedReply(messages, self.reward + then.reward, then.stop, then.failure, info)


def _check_messages(given: object) -> list[Message]:
    """Convert what an environment returned to messages: one or several `Message`s, OpenAI message dictionaries or texts.

    Raises:
        TypeError, ValueError: a value is something else.
    """
    if isinstance(given, (str, Message, Mapping)):
        return [_to_message(given)]
    if not isinstance(given, Iterable):
        raise TypeError("expected messages")
    return [_to_message(message) for message in given]


def _check_reply(given: object) -> _CheckedReply:
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
    return _CheckedReply(tuple(_check_messages(given.messages)), reward, stop, given.failure, dict(given.info))


def _to_message(given: object) -> Message:
    if isinstance(given, str):
        return Message("user", given)
    message = parse_message(given) if isinstance(given, Mapping) else given
    if not isinstance(message, Message) or message not in _MESSAGES:
        raise ValueError(f"expected a Message, its dictionary or a text; got {short_repr(given)}")
    return message


TurnStep = tuple[Conversation, float, bool, bool, Info]


class TurnEnv(gymnasium.Env[Conversation, Action]):
    """Base class of conversation environments. Subclasses define the opening messages and the reply to each message.

    An action is an assistant's text, or its whole `Message` if it calls tools; an OpenAI message dictionary is accepted
    too. The observation is a `Conversation`: the messages so far (`openai()` returns them as dictionaries), which only
    grow at the end, and the environment's `state`. `step` returns the reward of this turn. `terminated` and `truncated`
    follow from the `TurnStopReason` in `info["stop_reason"]`. A closed environment cannot be reopened.

    `info` contains `turn` (the number of assistant messages), at the end `stop_reason`, and `failure` if something
    outside the agent failed. The reward of a failed episode is 0 and must not be learned from.

    Arguments:
        max_turns: the maximum number of assistant messages in an episode; 0 for no limit.
        max_seconds: the maximum wall time of an episode, checked between turns; 0 for no limit.

    Raises:
        EnvError: `opening`, `respond`, `truncate` or `state` returned a value of the wrong type.

    Example:
        >>> class Echo(TurnEnv):
        ...     def opening(self, options):
        ...         return [Message("user", "Say a word.")]
        ...     def respond(self, message):
        ...         return Reply(reward=float(len(message.text) == 5), stop=TurnStopReason.SOLVED)
        >>> env = Echo()
        >>> observation, info = env.reset(seed=0)
        >>> env.step("seven")[1:4]
        (1.0, True, False)
    """

    metadata: Info = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012  (as Gymnasium declares it)
    held_out: ClassVar[Options] = {}
    """Arguments that select held-out episodes, for example `{"split": "test"}`."""
    learned_from: ClassVar[Options] = {}
    """Default arguments for training, if the class defaults are those of `held_out`."""
    bootstrap_truncated: bool = False
    """Whether training adds the critic's value of its last state to the rewards of a truncated episode. False: a limit
    is part of the task and ends it, and `truncate` gives the last reward."""
    tools: ToolSchemas = ()
    """The tools that the agent may call, in OpenAI's format. See `ToolEnv` for tools that are Python functions."""

    def __init__(self, *, max_turns: int = 0, max_seconds: float = 0.0, render_mode: str | None = None) -> None:
        self.max_turns = check_integer("max_turns", max_turns, minimum=0)
        self.max_seconds = check_number("max_seconds", max_seconds, minimum=0)
        self.render_mode = render_mode
        self.observation_space = observation_space()
        self.action_space = AssistantSpace()
        self._messages: list[Message] = []
        self._turn, self._started = 0, 0.0
        self._over, self._closed = True, False

    # Defined by subclasses

    def opening(self, options: Options) -> Sequence[MessageLike]:
        """Return the first messages of an episode, in the forms that `Reply` accepts. Use `self.np_random` for random
        choices.
        """
        raise NotImplementedError(f"{type(self).__name__} needs `opening`: the messages that an episode starts with")

    def respond(self, message: Message) -> Reply:
        """Return the reply to an assistant's message."""
        raise NotImplementedError(f"{type(self).__name__} needs `respond`: the reply to an assistant's message")

    def truncate(self, reason: TurnStopReason) -> Reply:
        """Return the last reply of an episode that a limit ends, for example a submission of the current state."""
        return Reply(stop=reason)

    def state(self) -> Options:
        """Return the part of the observation besides the messages."""
        return {}

    # Gymnasium's contract

    def reset(self, *, seed: int | None = None, options: ResetOptions = None) -> tuple[Conversation, Info]:
        self._check_open()
        super().reset(seed=seed)
        self._over, self._messages, self._turn = True, [], 0
        try:
            opened = self.opening(options or {})
        finally:
            self._closed = False  # Some environments begin by closing the last episode.
        self._messages = self._check("opening", _check_messages, opened)
        self._started, self._over = time.monotonic(), False
        return self.conversation(), {"turn": 0, **self._check("opening_info", dict, self.opening_info())}

    def step(self, action: Action) -> TurnStep:
        self._check_open()
        if self._over:
            raise gymnasium.error.ResetNeeded("the episode is over; call reset() before step()")
        message = self.read(action)
        self._turn += 1
        self._messages.append(message)
        self._over = True  # Until the reply is complete: an environment that raises must be reset.
        reply = self._check("respond", _check_reply, self.respond(message))
        if reply.stop is None and reply.failure is None:
            limit = self._limit()
            if limit is not None:
                reply = reply.before(self._check("truncate", _check_reply, self.truncate(limit)))
        return self._finish(reply)

    def read(self, action: Action) -> Message:
        """Convert an action to a message, without any effect on the environment.

        Raises:
            EnvError: the action is not an assistant's message.
        """
        if isinstance(action, Mapping):
            try:
                action = parse_message(action)
            except ValueError as error:
                raise EnvError(f"expected an assistant's text or message as the action: {error}") from error
        if isinstance(action, str):
            action = Message("assistant", action)
        if action not in self.action_space:
            received = f"a message of role '{action.role}'" if isinstance(action, Message) else type(action).__name__
            raise EnvError(f"expected an assistant's text or message as the action; got {received}")
        return action if action.content is not None else replace(action, content="")

    def stop(self, reason: TurnStopReason) -> TurnStep:
        """End the episode from outside, for example because the model's budget or context is exhausted.

        Returns the same five values as `step`. The environment may make a submission.
        """
        self._check_open()
        if self._over:
            raise gymnasium.error.ResetNeeded("the episode is over; call reset() before stop()")
        self._over = True
        return self._finish(self._check("truncate", _check_reply, self.truncate(reason)))

    def close(self) -> None:
        """Release the environment's resources. It cannot be used afterwards. An override calls `super().close()`."""
        self._closed = True

    def render(self) -> str | None:
        """Return the conversation as text."""
        if self.render_mode != "ansi" or not self._messages:
            return None
        return "\n".join(f"[{message.role}]\n{transcript(message)}" for message in self._messages)

    def conversation(self) -> Conversation:
        """Return the current observation."""
        return Conversation(tuple(self._messages), self._check("state", dict, self.state()))

    def opening_info(self) -> Options:
        """Return the entries of the `info` of `reset` besides the turn."""
        return {}

    @property
    def turn(self) -> int:
        """The number of assistant messages so far."""
        return self._turn

    @property
    def over(self) -> bool:
        """Whether no episode is in progress."""
        return self._over

    def _limit(self) -> TurnStopReason | None:
        if self.max_turns and self._turn >= self.max_turns:
            return TurnStopReason.STEPS
        if self.max_seconds and time.monotonic() - self._started >= self.max_seconds:
            return TurnStopReason.TIME
        return None

    def _check(self, method: str, check: Callable[[S], T], given: S) -> T:
        """Check the return value of a method. An error names the method with its file and line."""
        try:
            return check(given)
        except (TypeError, ValueError, EnvError) as error:
            kind = NoRewardError if isinstance(error, NoRewardError) else EnvError
            where = describe_location(getattr(self, method))
            raise kind(f"{type(self).__name__}.{method} returned {short_repr(given)}: {error}{where}") from error

    def _check_open(self) -> None:
        if self._closed:
            raise EnvError(f"this {type(self).__name__} is closed; make another")

    def _finish(self, reply: _CheckedReply) -> TurnStep:
        self._messages.extend(reply.messages)
        stop = TurnStopReason.FAILED if reply.failure is not None else reply.stop
        reward = 0.0 if reply.failure is not None else reply.reward
        info: Info = {"turn": self._turn, **reply.info}
        self._over = stop is not None
        if stop is not None:
            info["stop_reason"] = stop
        if reply.failure is not None:
            info["failure"] = reply.failure
        terminated = stop is not None and stop.terminal
        return self.conversation(), reward, terminated, stop is not None and not terminated, info


def transcript(message: Message) -> str:
    """Return a message as readable text, with its tool calls."""
    calls = [f"{call.name}({call.arguments})" for call in message.tool_calls]
    return "\n".join(part for part in (message.text, *calls) if part)


def format_transcript(messages: Sequence[Message]) -> str:
    """Messages as readable text with their tool calls; a single message without its role."""
    if len(messages) == 1 and not messages[0].tool_calls:
        return messages[0].text
    return "\n".join(
        " ".join(
            (
                f"[{message.role}] {message.text}".rstrip(),
                *(f"{call.name}({call.arguments})" for call in message.tool_calls),
            )
        )
        for message in messages
    )


def to_failure(error: BaseException, cause: FailureCause) -> Failure:
    """Convert an exception to a failure record."""
    return Failure(cause, f"{type(error).__name__}: {error}")
