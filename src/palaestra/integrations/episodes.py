"""Episodes of a turn environment that another library plays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from palaestra.core.errors import EnvError, RewardError
from palaestra.core.records import Failure, FailureCause, Message
from palaestra.envs.factory import make_single_turn_env
from palaestra.envs.turn.base import Action, to_failure
from palaestra.envs.turn.records import TurnStopReason


class EpisodeSession:
    """One turn environment, played episode by episode from outside our recipes.

    `total` is the sum of the rewards of the episode, `is_over` tells whether it has ended, `messages` is the conversation,
    and `failure` is set if something outside the agent failed. A failed episode has no reward: `result` is `None`.

    Arguments:
        env_id: an environment as `palaestra train --env` accepts it.
        env_options: arguments of the environment.

    Raises:
        EnvError: it cannot be made, or it is not a turn environment.

    Example:
        >>> session = EpisodeSession("palaestra/Guess-v0", {"high": 4})
        >>> [message.text for message in session.start(seed=1)]
        ['Guess a number from 1 to 4.']
        >>> [message.text for message in session.send("3")], session.is_over
        (['Lower.'], False)
        >>> session.send("2"), session.is_over, session.result
        ((), True, 1.0)
    """

    def __init__(self, env_id: str, env_options: Mapping[str, Any] | None = None) -> None:
        self.env_id, self.env = env_id, make_single_turn_env(env_id, env_options or {})
        self.total, self.is_over = 0.0, True
        self.failure: Failure | None = None
        self.messages: tuple[Message, ...] = ()

    @property
    def result(self) -> float | None:
        """The sum of the rewards so far; `None` if the episode failed."""
        return None if self.failure is not None else self.total

    def start(self, seed: int) -> Sequence[Message]:
        """Start an episode. Returns its first messages; none if the environment failed."""
        self.total, self.is_over, self.failure, self.messages = 0.0, False, None, ()
        self._call(lambda: (self.env.reset(seed=seed)[0], 0.0, False, False, {}))
        return self.messages

    def send(self, action: Action) -> Sequence[Message]:
        """Take one turn. Returns the new messages of the environment."""
        if self.is_over:
            raise EnvError(f"the episode of {self.env_id} is over; call start() before send()")
        known = len(self.messages) + 1  # The action itself.
        self._call(lambda: self.env.step(action))
        return self.messages[known:]

    def stop(self, reason: TurnStopReason = TurnStopReason.STEPS) -> None:
        """End the episode at a limit of the other library. The environment may reward its current state."""
        if not self.is_over:
            self._call(lambda: self.env.stop(reason))

    def close(self) -> None:
        self.env.close()

    def _call(self, move: Callable[[], tuple[Any, ...]]) -> None:
        try:
            conversation, reward, terminated, truncated, info = move()
        except Exception as error:  # A user-defined environment may raise anything.
            if isinstance(error, EnvError) and not isinstance(error, RewardError):
                raise
            self.failure, self.is_over = to_failure(error, FailureCause.ENVIRONMENT), True
            return
        self.messages, self.total = conversation.messages, self.total + reward
        self.failure, self.is_over = info.get("failure"), bool(terminated or truncated)
