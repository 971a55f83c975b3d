"""Selects the best of several episodes of any agent by validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from palaestra.core.errors import SettingsError
from palaestra.core.records import Message
from palaestra.envs.turn.records import Conversation
from palaestra.research.agents.base import Agent, AgentContext, Halt, make_agent, resolve_agent, split_spec


class BestOfAgent(Agent):
    """Plays n episodes with different seeds.

    Each submission is judged on the validation split only. The best one is judged on the test split, and that is the
    agent's score; the test split plays no part in the selection.

    Raises:
        SettingsError: `argument` is not `N:AGENT`.
    """

    takes = "N:AGENT"

    def __init__(self, argument: str, context: AgentContext) -> None:
        super().__init__(argument, context)
        count, _, spec = argument.partition(":")
        if not count.isdecimal() or int(count) < 1 or not spec:
            raise SettingsError(f"expected best_of:N:AGENT, for example best_of:4:model; got 'best_of:{argument}'")
        self.inner = make_agent(spec, context)
        self.episodes, self.parser, self.model = int(count) * self.inner.episodes, self.inner.parser, self.inner.model
        self.interactive, self.note = self.inner.interactive, self.inner.note
        if self.episodes > 1 and split_spec(spec)[0] == "model" and context.sampling.temperature == 0:
            raise SettingsError(f"{count} episodes at temperature 0 would all be the same; set a temperature")

    @classmethod
    def resolve_argument(cls, argument: str) -> str:
        count, colon, spec = argument.partition(":")
        return f"{count}{colon}{resolve_agent(spec)}" if spec else argument

    def environment(self) -> Mapping[str, Any]:
        return self.inner.environment()

    def begin(self, seed: int, tools: Sequence[Mapping[str, Any]]) -> None:
        self.inner.begin(seed, tools)

    def act(self, conversation: Conversation) -> Message | Halt:
        return self.inner.act(conversation)

    def state(self) -> Mapping[str, Any]:
        return self.inner.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        self.inner.restore(state)
