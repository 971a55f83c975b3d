"""A language model as the agent, on any engine."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from palaestra.core.errors import BudgetSpentError, SettingsError, TotalSpentError
from palaestra.core.records import Completion, Failure, FailureCause, Message, ToolCall
from palaestra.core.seeding import Seeds
from palaestra.engines.base import Engine, Request
from palaestra.engines.cached import prompt_size
from palaestra.engines.factory import check_model
from palaestra.engines.models import MODELS
from palaestra.envs.turn.records import Conversation, StopReason
from palaestra.research.agents.base import Agent, Halt, Outfit, settled_path, turns_of
from palaestra.research.agents.history import make_history

BYTES = 3.5
"""Of one token, where a service has not yet shown how many it makes of them."""
SMALLEST = 16
"""Tokens that there must be room for, for an answer to be worth asking for."""


class ModelAgent(Agent):
    """Asks a model for every message.

    It stops by itself with `StopReason.COST` where the next call might pass a limit of the budget, with
    `StopReason.CONTEXT` where the conversation leaves no room for an answer, and with `StopReason.FAILED` where the
    engine broke, which is nobody's score.

    Arguments:
        argument: the model's name; empty for the outfit's.

    Raises:
        UnknownNameError, SettingsError: no model is named, there is no such model, or no such history processor.
    """

    takes = "MODEL"

    def __init__(self, argument: str, outfit: Outfit) -> None:
        super().__init__(argument, outfit)
        self.model, self.prompts = argument or outfit.model, outfit.prompts
        if not self.model:
            raise SettingsError(
                "the agent 'model' asks a language model; name one with --model: openai:MODEL, http://HOST:PORT/v1#MODEL, "
                "a folder or a hub id"
            )
        check_model(self.model)
        self.histories = [make_history(spec) for spec in outfit.history]
        self._engine: Engine | None = None
        self._tools, self._seeds = "", Seeds(0)

    @classmethod
    def settled(cls, argument: str) -> str:
        here = argument not in ("", *MODELS) and Path(argument).expanduser().is_dir()
        return settled_path(argument) if here else argument

    def begin(self, seed: int, tools: Sequence[Mapping[str, Any]]) -> None:
        if self._engine is None:
            self._engine = self.outfit.engine(self.model)
        self._tools, self._seeds = json.dumps(list(tools)) if tools else "", Seeds(seed)
        for history in self.histories:
            history.restore({})

    def act(self, conversation: Conversation) -> Message | Halt:
        messages: Sequence[Message] = conversation.messages
        where = {name: conversation.state.get(name, "") for name in ("open_file", "working_dir", "remaining_steps")}
        self.prompts = self.outfit.prompts.given(
            task=self.outfit.task, command_docs=self.outfit.command_docs, current_step=turns_of(conversation), **where
        )
        for history in self.histories:
            shortened = history.shorten(messages, self)
            if isinstance(shortened, Halt):
                return shortened
            messages = shortened
        turn = turns_of(conversation)
        seed = self._seeds.derive("turn", turn).integer()
        answer = self._ask(Request(tuple(messages), self.outfit.sampling, seed, tools=self._tools))
        if isinstance(answer, Halt):
            return answer
        return Message("assistant", answer.text, self._numbered(answer.tool_calls, conversation))

    def state(self) -> Mapping[str, Any]:
        return {"histories": [dict(history.state()) for history in self.histories], "tokens_per_byte": self._seen()}

    def restore(self, state: Mapping[str, Any]) -> None:
        if (estimate := getattr(self._engine, "estimate", None)) is not None:
            # Without it a history processor could cut elsewhere than before the kill, and ask something else.
            estimate.seen = max(estimate.seen, float(state.get("tokens_per_byte", 0.0)))
        for history, known in zip(self.histories, state.get("histories", ()), strict=False):
            history.restore(known)

    # What history processors use

    def tokens(self, messages: Sequence[Message]) -> int:
        return self._prompt_tokens(Request(tuple(messages), self.outfit.sampling, tools=self._tools))

    def write(self, messages: Sequence[Message]) -> str | Halt:
        seed = self._seeds.derive("history").integer()
        answer = self._ask(Request(tuple(messages), self.outfit.sampling, seed))
        return answer if isinstance(answer, Halt) else answer.text

    def _ask(self, request: Request) -> Completion | Halt:
        assert self._engine is not None, "an agent is asked after `begin`"
        context = self._context()
        if context:
            tokens = self._prompt_tokens(request)
            least = min(SMALLEST, request.sampling.max_tokens)
            if tokens + least > context:
                return Halt(StopReason.CONTEXT, f"the prompt has {tokens} tokens; {self.model} reads {context}")
        try:
            answer = self._engine.generate([request])[0][0]
        except TotalSpentError:
            raise  # Nothing of this episode: it waits until there is more for all of them.
        except BudgetSpentError as error:
            return Halt(StopReason.COST, str(error))
        if isinstance(answer, Completion):
            return answer
        if answer.cause is FailureCause.CONTEXT_LENGTH:
            return Halt(StopReason.CONTEXT, answer.message)
        return Halt(StopReason.FAILED, answer.message, Failure(answer.cause, answer.message))

    def _context(self) -> int:
        """The most tokens of prompt and answer; 0 where only the service knows."""
        own = int(getattr(self._inner(), "context", 0))
        return min(own, self.outfit.context) if own and self.outfit.context else own or self.outfit.context

    def _prompt_tokens(self, request: Request) -> int:
        """Exactly, of weights in this process; of a service by what its answers have shown."""
        count = getattr(self._inner(), "prompt_tokens", None)
        if count is not None:
            return int(count(request))
        return math.ceil(prompt_size(request) * (self._seen() or 1 / BYTES))

    def _seen(self) -> float:
        """Tokens per byte of prompt, as the service's answers have shown so far; 0 before the first."""
        return float(getattr(getattr(self._engine, "estimate", None), "seen", 0.0))

    def _inner(self) -> Any:
        """The engine itself, without its cache and whatever else is around it."""
        inner: Any = self._engine
        while hasattr(inner, "engine"):
            inner = inner.engine
        return inner

    def _numbered(self, calls: tuple[ToolCall, ...], conversation: Conversation) -> tuple[ToolCall, ...]:
        """The calls with ids that the conversation has not had yet; some servers count anew in every answer."""
        used = {call.id for message in conversation.messages for call in message.tool_calls}
        made = []
        for place, call in enumerate(calls, 1):
            fresh = call.id if call.id and call.id not in used else f"call_{turns_of(conversation) + 1}_{place}"
            used.add(fresh)
            made.append(replace(call, id=fresh))
        return tuple(made)
