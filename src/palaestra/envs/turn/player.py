"""Play the episodes of a turn environment for an agent that is another program."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from palaestra.core.errors import EnvError, SandboxError
from palaestra.core.foreign import ForeignTimeoutError, call_foreign
from palaestra.core.records import Failure, FailureCause, Json, Message
from palaestra.engines.openai_format import to_chat_messages
from palaestra.envs.base import GymEnv, GymStep
from palaestra.envs.turn.base import Action, TurnEnv, TurnStopReason, to_failure

T = TypeVar("T")


class TurnEpisodePlayer:
    """One episode at a time. States and replies are JSON values; messages are in OpenAI's format.

    An environment that raises, or does not return in time, ends the episode with a failure. A step with an invalid
    action, or after the end, raises an `EnvError` and has no effect.

    Arguments:
        env: a turn environment. The player resets it.
        seed: the seed of an episode that starts at once; `None` to call `start` later.
        max_call_seconds: maximum time of a reset or a step.

    Attributes:
        rewards: the rewards so far.
        stop_reason: why the episode ended; `None` while it is in progress.
        failure: what failed, if something outside the agent did.
        error: the exception behind the failure, if there is one.
        is_blocked: whether a call of the environment did not return. The environment cannot be used any more.

    Example:
        >>> from palaestra.envs.turn.games import GuessEnv
        >>> player = TurnEpisodePlayer(GuessEnv(), seed=0)
        >>> player.observe()["messages"]
        [{'role': 'user', 'content': 'Guess a number from 1 to 8.'}]
        >>> player.step("1")
        {'messages': [{'role': 'user', 'content': 'Higher.'}], 'reward': 0.0, 'done': False, 'stop_reason': None}
    """

    def __init__(self, env: GymEnv, seed: int | None = None, max_call_seconds: float = 60.0) -> None:
        inside = env.unwrapped
        assert isinstance(inside, TurnEnv)
        self.env, self.inside, self.max_call_seconds = env, inside, max_call_seconds
        self._lock = threading.Lock()
        self._is_playing = False
        self._clear()
        if seed is not None:
            self.start(seed)

    def _clear(self) -> None:
        self.messages: tuple[Message, ...] = ()
        self.rewards: list[float] = []
        self.stop_reason: TurnStopReason | None = None
        self.failure: Failure | None = None
        self.error: Exception | None = None
        self.is_blocked = self.terminated = self.truncated = False

    @property
    def is_over(self) -> bool:
        return not self._is_playing or self.stop_reason is not None

    @property
    def total(self) -> float:
        """The sum of the rewards so far."""
        return float(sum(self.rewards))

    def start(self, seed: int) -> Sequence[Message]:
        """Start an episode. Returns its first messages; none if the environment failed."""
        self._clear()
        self._is_playing = True
        result = self._call("reset", lambda: self.env.reset(seed=seed))
        if result is not None:
            self.messages = result[0].messages
        return self.messages

    def observe(self) -> Json:
        """Return the messages so far, the tools, the sum of the rewards, and whether the episode is over."""
        return {
            "messages": to_chat_messages(self.messages),
            "tools": [dict(tool) for tool in self.inside.tools],
            "reward": self.total,
            "done": self.is_over,
            "stop_reason": self.stop_reason,
        }

    def step(self, action: Action) -> Json:
        """Send the agent's message. Returns the new messages, the reward, and whether the episode is over.

        Arguments:
            action: a text, or a message in OpenAI's format.

        Raises:
            EnvError: the action is invalid, or the episode is over.
        """
        with self._lock:
            if self.is_over:
                raise EnvError(f"the episode is over ({self.stop_reason})")
            message = self.inside.read(action)
            known = len(self.messages) + 1
            self._record(self._call("step", lambda: self.env.step(message)))
            return {
                "messages": to_chat_messages(self.messages)[known:],
                "reward": self.rewards[-1] if self.rewards and self.failure is None else 0.0,
                "done": self.is_over,
                "stop_reason": self.stop_reason,
            }

    def stop(self, reason: TurnStopReason) -> None:
        """End the episode from outside, if it is in progress. The environment may give a last reward."""
        with self._lock:
            if not self.is_over:
                self._record(self._call("stop", lambda: self.inside.stop(reason)))

    def finish(self) -> None:
        """End the episode, if it is in progress, and close the environment."""
        self.stop(TurnStopReason.GAVE_UP)
        if not self.is_blocked:
            self.env.close()

    def _record(self, step: GymStep | None) -> None:
        if step is None:
            return
        observation, reward, self.terminated, self.truncated, info = step
        self.messages = observation.messages
        self.rewards.append(float(reward))
        self.failure = info.get("failure")
        if self.terminated or self.truncated:
            self.stop_reason = TurnStopReason(info.get("stop_reason", TurnStopReason.STEPS))

    def _call(self, method: str, function: Callable[[], T]) -> T | None:
        """Call the environment; `None` if it failed."""
        name = f"{method} of {type(self.inside).__name__}"
        try:
            return call_foreign(name, function, seconds=self.max_call_seconds)
        except Exception as error:
            cause = FailureCause.SANDBOX if isinstance(error, SandboxError) else FailureCause.ENVIRONMENT
            self.error, self.is_blocked = error, isinstance(error, ForeignTimeoutError)
            self.failure, self.stop_reason, self.truncated = to_failure(error, cause), TurnStopReason.FAILED, True
            return None
