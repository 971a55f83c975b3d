"""Episodes of a turn environment that another library plays."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from palaestra.core.errors import EnvError, RewardError
from palaestra.core.records import Message
from palaestra.envs.base import Options
from palaestra.envs.factory import make_single_turn_env
from palaestra.envs.turn.base import Action
from palaestra.envs.turn.player import TurnEpisodePlayer

T = TypeVar("T")


class EpisodeSession(TurnEpisodePlayer):
    """One turn environment by its name, played episode by episode from outside our recipes.

    An environment that breaks its interface raises its `EnvError`. A failed episode has no reward: `result` is `None`.

    Arguments:
        env_id: an environment as `palaestra train --env` accepts it.
        env_kwargs: arguments of the environment.

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

    def __init__(self, env_id: str, env_kwargs: Options | None = None) -> None:
        self.env_id = env_id
        # The environments of other packages limit the time of a call themselves; a step of research may take hours.
        super().__init__(make_single_turn_env(env_id, env_kwargs or {}), max_call_seconds=threading.TIMEOUT_MAX)

    @property
    def result(self) -> float | None:
        """The sum of the rewards so far; `None` if the episode failed."""
        return None if self.failure is not None else self.total

    def send(self, action: Action) -> Sequence[Message]:
        """Take one turn. Returns the new messages of the environment."""
        known = len(self.messages) + 1  # The action itself.
        self.step(action)
        return self.messages[known:]

    def close(self) -> None:
        self.env.close()

    def _call(self, method: str, function: Callable[[], T]) -> T | None:
        result = super()._call(method, function)
        if isinstance(self.error, EnvError) and not isinstance(self.error, RewardError):
            raise self.error
        return result
