"""A turn environment with fixed replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from palaestra.core.records import Failure, FailureCause, Message
from palaestra.envs.turn import Reply, TurnEnv, TurnStopReason


class DialogueEnv(TurnEnv):
    """Talks for some turns about nothing. What it says and pays follows from the seed of the episode alone.

    Arguments:
        turns: the most turns of an episode.
        words: the most words of an answer.
        failing: the share of the turns in which it breaks.
    """

    def __init__(self, turns: int = 4, words: int = 6, failing: float = 0.0) -> None:
        super().__init__(max_turns=turns)
        self.turns, self.words, self.failing = turns, words, failing

    def opening(self, options: Mapping[str, Any]) -> Sequence[Message]:
        self.length = int(self.np_random.integers(1, self.turns + 1))
        first = [Message("system", self._words())] if self.np_random.random() < 0.3 else []
        return [*first, Message("user", self._words())]

    def respond(self, message: Message) -> Reply:
        if self.np_random.random() < self.failing:
            return Reply(failure=Failure(FailureCause.SANDBOX, "the sandbox is gone"))
        reward = float(np.round(self.np_random.normal(), 3))
        if self.turn >= self.length:
            cut = self.np_random.random() < 0.3
            return Reply(reward=reward, stop=TurnStopReason.TIME if cut else TurnStopReason.SUBMITTED)
        count = int(self.np_random.integers(1, 3))
        roles = self.np_random.choice(["tool", "user"], count)
        return Reply(tuple(Message(str(role), self._words()) for role in roles), reward)  # type: ignore[arg-type]

    def truncate(self, reason: TurnStopReason) -> Reply:
        return Reply(reward=-10.0, stop=reason)

    def _words(self) -> str:
        count = int(self.np_random.integers(1, self.words + 1))
        return " ".join(self.np_random.choice(["higher", "12*7", "What", "é", "1776", "lower."], count))
