"""Turn environments: one action is one assistant message, one observation is the conversation so far."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, ClassVar, TypeVar

import gymnasium

from palaestra.core.checks import check_integer, check_number
from palaestra.core.errors import EnvError
from palaestra.core.records import Failure, FailureCause, Message
from palaestra.core.user_code import describe_location
from palaestra.engines.openai_format import assistant_message
from palaestra.envs.turn.records import AssistantSpace, Conversation, Reply, Said, StopReason, observation_space
from palaestra.envs.turn.replies import Checked, checked_mapping, checked_messages, checked_reply

Action = str | Message | Mapping[str, Any]
_NOTES = "_notes_the_end"
T = TypeVar("T")


class TurnEnv(gymnasium.Env[Conversation, Action]):
    """An environment of conversations. Say what opens one and what answers a message; that is all.

    An action is an assistant's text, or its whole `Message` where it calls tools; OpenAI's dictionary of one will do. The
    observation is a `Conversation`: the messages so far (`openai()` gives them as dictionaries), which only ever grow at
    their end, and the environment's `state`. `step` returns the reward of this turn in this very step. `terminated` and
    `truncated` follow from the `StopReason` in `info["stop_reason"]`. A closed environment stays closed.

    `info` holds `turn` (assistant messages so far), at the end `stop_reason`, and `failure` where something around the
    agent broke: then the reward is 0 because there is none, and nobody should learn from it.

    Arguments:
        max_turns: the most assistant messages of an episode; 0 means no limit.
        max_seconds: the most wall time of an episode, looked at between turns; 0 means no limit.

    Raises:
        EnvError: what `opening`, `respond`, `cut` or `state` gives back is not what was asked of them; says what it is.

    Example:
        >>> class Echo(TurnEnv):
        ...     def opening(self, options):
        ...         return [Message("user", "Say a word.")]
        ...     def respond(self, message):
        ...         return Reply(reward=float(len(message.text) == 5), stop=StopReason.SOLVED)
        >>> env = Echo()
        >>> observation, info = env.reset(seed=0)
        >>> env.step("seven")[1:4]
        (1.0, True, False)
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012  (as Gymnasium declares it)
    held_out: ClassVar[Mapping[str, Any]] = {}
    """Arguments that make an environment of episodes which nobody learns from, for example `{"split": "test"}`."""
    learned_from: ClassVar[Mapping[str, Any]] = {}
    """Arguments that it is trained with where the user gives no others, where its defaults are those of `held_out`."""

    def __init__(self, *, max_turns: int = 0, max_seconds: float = 0.0, render_mode: str | None = None) -> None:
        self.max_turns = check_integer("max_turns", max_turns, minimum=0)
        self.max_seconds = check_number("max_seconds", max_seconds, minimum=0)
        self.render_mode = render_mode
        self.observation_space = observation_space()
        self.action_space = AssistantSpace()
        self._messages: list[Message] = []
        self._turn, self._started = 0, 0.0
        self._over, self._closed = True, False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Note the end of an environment whose own `close` does not call ours: Gymnasium's does nothing, so few do."""
        super().__init_subclass__(**kwargs)
        if cls.close is not TurnEnv.close and not hasattr(cls.close, _NOTES):
            cls.close = _noted(cls.close)  # type: ignore[method-assign]

    # What an environment of one's own says

    def opening(self, options: Mapping[str, Any]) -> Sequence[Said]:
        """The first messages of an episode, as those of a `Reply`. Random choices come from `self.np_random`."""
        raise NotImplementedError(f"{type(self).__name__} needs `opening`: the messages that an episode starts with")

    def respond(self, message: Message) -> Reply:
        """The answer to an assistant's message."""
        raise NotImplementedError(f"{type(self).__name__} needs `respond`: what answers an assistant's message")

    def cut(self, reason: StopReason) -> Reply:
        """The end of an episode that a limit cuts, for example a submission of what is there."""
        return Reply(stop=reason)

    def state(self) -> Mapping[str, Any]:
        """What the observation holds beside the messages."""
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
            self._closed = False  # Some begin by closing what the last episode left.
        self._messages = self._check("opening", checked_messages, opened)
        self._started, self._over = time.monotonic(), False
        return self.conversation(), {
            "turn": 0,
            **self._check("opening_info", checked_mapping, self.opening_info()),
        }

    def step(self, action: Action) -> tuple[Conversation, float, bool, bool, dict[str, Any]]:
        self._check_open()
        if self._over:
            raise gymnasium.error.ResetNeeded("the episode is over; call reset() before step()")
        said = self.read(action)
        self._turn += 1
        self._messages.append(said)
        self._over = True  # Until the answer is there: an environment that raises has to be reset.
        reply = self._check("respond", checked_reply, self.respond(said))
        if reply.stop is None and reply.failure is None:
            limit = self._limit()
            if limit is not None:
                reply = reply.before(self._check("cut", checked_reply, self.cut(limit)))
        return self._ended(reply)

    def read(self, action: Action) -> Message:
        """The message that an action is. Nothing happens in the environment.

        Raises:
            EnvError: it is none.
        """
        if isinstance(action, Mapping):
            try:
                action = assistant_message(action)
            except ValueError as error:
                raise EnvError(f"an action is an assistant's text or message: {error}") from error
        if isinstance(action, str):
            action = Message("assistant", action)
        if action not in self.action_space:
            got = f"a message of role '{action.role}'" if isinstance(action, Message) else type(action).__name__
            raise EnvError(f"an action is an assistant's text or message; got {got}")
        return action if action.content is not None else replace(action, content="")

    def stop(self, reason: StopReason) -> tuple[Conversation, float, bool, bool, dict[str, Any]]:
        """End the episode from outside: the agent's model has no money or room left, or somebody wants it to stop.

        The same five values as of `step`; there is a submission where the environment makes one.
        """
        self._check_open()
        if self._over:
            raise gymnasium.error.ResetNeeded("the episode is over; call reset() before stop()")
        self._over = True
        return self._ended(self._check("cut", checked_reply, self.cut(reason)))

    def close(self) -> None:
        """End what the environment keeps running. It cannot be used after that."""
        self._closed = True

    def render(self) -> str | None:
        """The conversation as text."""
        if self.render_mode != "ansi" or not self._messages:
            return None
        return "\n".join(f"[{message.role}]\n{transcript(message)}" for message in self._messages)

    def conversation(self) -> Conversation:
        """The observation as it is now."""
        return Conversation(tuple(self._messages), self._check("state", checked_mapping, self.state()))

    def opening_info(self) -> Mapping[str, Any]:
        """What the `info` of `reset` holds beside the turn."""
        return {}

    @property
    def turn(self) -> int:
        """Assistant messages so far."""
        return self._turn

    @property
    def over(self) -> bool:
        """Whether the episode has ended, or none has begun."""
        return self._over

    def _limit(self) -> StopReason | None:
        if self.max_turns and self._turn >= self.max_turns:
            return StopReason.STEPS
        if self.max_seconds and time.monotonic() - self._started >= self.max_seconds:
            return StopReason.TIME
        return None

    def _check(self, method: str, check: Callable[[str, Any], T], given: Any) -> T:
        """Check what a method gave; an error names the method, its file and its line."""
        try:
            return check(f"{type(self).__name__}.{method}", given)
        except EnvError as error:
            raise type(error)(f"{error}{describe_location(getattr(self, method))}") from error

    def _check_open(self) -> None:
        if self._closed:
            raise EnvError(f"this {type(self).__name__} is closed; make another")

    def _ended(self, reply: Checked) -> tuple[Conversation, float, bool, bool, dict[str, Any]]:
        self._messages.extend(reply.messages)
        stop = StopReason.FAILED if reply.failure is not None else reply.stop
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
    """A message as a person reads it: its text, and its calls of tools."""
    calls = [f"{call.name}({call.arguments})" for call in message.tool_calls]
    return "\n".join(part for part in (message.text, *calls) if part)


def failed(error: Exception, cause: FailureCause) -> Failure:
    """What broke, as a record."""
    return Failure(cause, f"{type(error).__name__}: {error}")


def _noted(close: Callable[..., None]) -> Callable[..., None]:
    """A `close` after which its environment knows that it is closed."""

    @wraps(close)
    def closing(self: TurnEnv, *arguments: Any, **named: Any) -> None:
        self._closed = True
        close(self, *arguments, **named)

    setattr(closing, _NOTES, True)
    return closing
