"""Turn environments: one action is one assistant message, one observation is the conversation so far."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

import gymnasium

from palaestra.core.checks import check_integer, check_number, short_repr
from palaestra.core.errors import EnvError
from palaestra.core.plugins import describe_location
from palaestra.core.records import Failure, FailureCause, Message
from palaestra.engines.openai_format import parse_message
from palaestra.envs.turn.records import (
    AssistantSpace,
    CheckedReply,
    Conversation,
    MessageLike,
    NoRewardError,
    Reply,
    TurnStopReason,
    check_messages,
    check_reply,
    observation_space,
)

Action = str | Message | Mapping[str, Any]
T = TypeVar("T")


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

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012  (as Gymnasium declares it)
    held_out: ClassVar[Mapping[str, Any]] = {}
    """Arguments that select held-out episodes, for example `{"split": "test"}`."""
    learned_from: ClassVar[Mapping[str, Any]] = {}
    """Default arguments for training, if the class defaults are those of `held_out`."""
    bootstrap_truncated: bool = False
    """Whether training adds the critic's value of its last state to the rewards of a truncated episode. False: a limit
    is part of the task and ends it, and `truncate` gives the last reward."""
    tools: Sequence[Mapping[str, Any]] = ()
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

    def opening(self, options: Mapping[str, Any]) -> Sequence[MessageLike]:
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

    def state(self) -> Mapping[str, Any]:
        """Return the part of the observation besides the messages."""
        return {}

    # Gymnasium's contract

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Conversation, dict[str, Any]]:
        self._check_open()
        super().reset(seed=seed)
        self._over, self._messages, self._turn = True, [], 0
        try:
            opened = self.opening(options or {})
        finally:
            self._closed = False  # Some environments begin by closing the last episode.
        self._messages = self._check("opening", check_messages, opened)
        self._started, self._over = time.monotonic(), False
        return self.conversation(), {
            "turn": 0,
            **self._check("opening_info", dict, self.opening_info()),
        }

    def step(self, action: Action) -> tuple[Conversation, float, bool, bool, dict[str, Any]]:
        self._check_open()
        if self._over:
            raise gymnasium.error.ResetNeeded("the episode is over; call reset() before step()")
        message = self.read(action)
        self._turn += 1
        self._messages.append(message)
        self._over = True  # Until the reply is complete: an environment that raises must be reset.
        reply = self._check("respond", check_reply, self.respond(message))
        if reply.stop is None and reply.failure is None:
            limit = self._limit()
            if limit is not None:
                reply = reply.before(self._check("truncate", check_reply, self.truncate(limit)))
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

    def stop(self, reason: TurnStopReason) -> tuple[Conversation, float, bool, bool, dict[str, Any]]:
        """End the episode from outside, for example because the model's budget or context is exhausted.

        Returns the same five values as `step`. The environment may make a submission.
        """
        self._check_open()
        if self._over:
            raise gymnasium.error.ResetNeeded("the episode is over; call reset() before stop()")
        self._over = True
        return self._finish(self._check("truncate", check_reply, self.truncate(reason)))

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

    def opening_info(self) -> Mapping[str, Any]:
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

    def _check(self, method: str, check: Callable[[Any], T], given: Any) -> T:
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

    def _finish(self, reply: CheckedReply) -> tuple[Conversation, float, bool, bool, dict[str, Any]]:
        self._messages.extend(reply.messages)
        stop = TurnStopReason.FAILED if reply.failure is not None else reply.stop
        reward = 0.0 if reply.failure is not None else reply.reward
        info: dict[str, Any] = {"turn": self._turn, **reply.info}
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


def to_failure(error: BaseException, cause: FailureCause) -> Failure:
    """Convert an exception to a failure record."""
    return Failure(cause, f"{type(error).__name__}: {error}")
