"""A language model as the agent, on any engine."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from palaestra.core.errors import BudgetSpentError, SettingsError, TotalSpentError
from palaestra.core.records import Completion, Engine, Failure, FailureCause, Json, Message, Request, ToolCall
from palaestra.core.seeding import Seeds
from palaestra.engines.base import apply_engine, strip_scheme
from palaestra.engines.cached import prompt_size
from palaestra.engines.factory import check_model
from palaestra.envs.turn.base import Conversation, TurnStopReason
from palaestra.models.registry import MODELS
from palaestra.research.agents.base import Agent, AgentContext, Halt, absolute_path, count_turns
from palaestra.research.agents.history import make_history

_BYTES = 3.5
"""Bytes per token, before a service has reported token counts."""
_MIN_ANSWER_TOKENS = 16
"""The minimum tokens for an answer; below that the agent stops."""


class ModelAgent(Agent):
    """Asks a model for every message.

    It stops with `TurnStopReason.COST` if the next call could exceed the budget, with `TurnStopReason.CONTEXT` if the
    conversation leaves no room for an answer, and with `TurnStopReason.FAILED` if the engine failed.

    Arguments:
        argument: the model's name; empty for the default model.

    Raises:
        UnknownNameError, SettingsError: no model is named, or the model or a history processor does not exist.
    """

    takes = "MODEL"

    def __init__(self, argument: str, context: AgentContext) -> None:
        super().__init__(argument, context)
        self.model, self.prompts = apply_engine(argument or context.model, context.engine_name), context.prompts
        if not self.model:
            raise SettingsError(
                "the agent 'model' needs a language model; set --model to openai:MODEL, http://HOST:PORT/v1#MODEL, "
                "a folder or a hub id"
            )
        check_model(self.model)
        self.histories = [make_history(spec) for spec in context.history]
        self._engine: Engine | None = None
        self._tools, self._seeds = "", Seeds(0)

    @classmethod
    def resolve_argument(cls, argument: str) -> str:
        model = strip_scheme(argument)
        here = model not in ("", *MODELS) and Path(model).expanduser().is_dir()
        return argument.removesuffix(model) + absolute_path(model) if here else argument

    def begin(self, seed: int, tools: Sequence[Mapping[str, object]]) -> None:
        if self._engine is None:
            assert self.context.engine is not None
            self._engine = self.context.engine(self.model)
        self._tools, self._seeds = json.dumps(list(tools)) if tools else "", Seeds(seed)
        for history in self.histories:
            history.restore({})

    def act(self, conversation: Conversation) -> Message | Halt:
        messages: Sequence[Message] = conversation.messages
        turn = count_turns(conversation)
        where = {name: conversation.state.get(name, "") for name in ("open_file", "working_dir", "remaining_steps")}
        self.prompts = self.context.prompts.bind(
            task=self.context.task, command_docs=self.context.command_docs, current_step=turn, **where
        )
        for history in self.histories:
            shortened = history.shorten(messages, self)
            if isinstance(shortened, Halt):
                return shortened
            messages = shortened
        seed = self._seeds.derive("turn", turn).integer()
        answer = self._ask(Request(tuple(messages), self.context.sampling, seed, tools=self._tools))
        if isinstance(answer, Halt):
            return answer
        return Message("assistant", answer.text, self._unique_ids(answer.tool_calls, conversation))

    def state(self) -> Json:
        histories = [dict(history.state()) for history in self.histories]
        return {"histories": histories, "tokens_per_byte": self._tokens_per_byte()}

    def restore(self, state: Json) -> None:
        if (estimate := getattr(self._engine, "estimate", None)) is not None:
            # Without it, a history processor could cut at another message than before the kill and change the prompt.
            estimate.seen = max(estimate.seen, float(state.get("tokens_per_byte", 0.0)))
        for history, known in zip(self.histories, state.get("histories", ()), strict=False):
            history.restore(known)

    # For history processors

    def tokens(self, messages: Sequence[Message]) -> int:
        return self._prompt_tokens(Request(tuple(messages), self.context.sampling, tools=self._tools))

    def write(self, messages: Sequence[Message]) -> str | Halt:
        seed = self._seeds.derive("history").integer()
        answer = self._ask(Request(tuple(messages), self.context.sampling, seed))
        return answer if isinstance(answer, Halt) else answer.text

    def _ask(self, request: Request) -> Completion | Halt:
        assert self._engine is not None, "call `begin` before `act`"
        context = self._context()
        if context:
            tokens = self._prompt_tokens(request)
            least = min(_MIN_ANSWER_TOKENS, request.sampling.max_tokens)
            if tokens + least > context:
                return Halt(TurnStopReason.CONTEXT, f"the prompt has {tokens} tokens; {self.model} reads {context}")
        try:
            answer = self._engine.generate([request])[0][0]
        except TotalSpentError:
            raise  # Does not end the episode, which waits until the shared budget is raised.
        except BudgetSpentError as error:
            return Halt(TurnStopReason.COST, str(error))
        if isinstance(answer, Completion):
            return answer
        if answer.cause is FailureCause.CONTEXT_LENGTH:
            return Halt(TurnStopReason.CONTEXT, answer.message)
        return Halt(TurnStopReason.FAILED, answer.message, Failure(answer.cause, answer.message))

    def _context(self) -> int:
        """Return the maximum tokens of prompt and answer; 0 if unknown."""
        limits = int(getattr(self._inner(), "context", 0)), self.context.context_tokens
        return min(filter(None, limits), default=0)

    def _prompt_tokens(self, request: Request) -> int:
        """Count prompt tokens, exactly for local weights and by estimate for a service."""
        count = getattr(self._inner(), "prompt_tokens", None)
        if count is not None:
            return int(count(request))
        return math.ceil(prompt_size(request) * (self._tokens_per_byte() or 1 / _BYTES))

    def _tokens_per_byte(self) -> float:
        """Return the tokens per byte of the service's prompts so far; 0 before the first answer."""
        return float(getattr(getattr(self._engine, "estimate", None), "seen", 0.0))

    def _inner(self) -> object:
        """Return the engine without its wrappers."""
        inner: object = self._engine
        while hasattr(inner, "engine"):
            inner = inner.engine
        return inner

    def _unique_ids(self, calls: tuple[ToolCall, ...], conversation: Conversation) -> tuple[ToolCall, ...]:
        """Give the calls ids that are new in the conversation; some servers restart their numbering in every answer."""
        used = {call.id for message in conversation.messages for call in message.tool_calls}
        renumbered = []
        for place, call in enumerate(calls, 1):
            fresh = call.id if call.id and call.id not in used else f"call_{count_turns(conversation) + 1}_{place}"
            used.add(fresh)
            renumbered.append(replace(call, id=fresh))
        return tuple(renumbered)
