"""The taskset of the packages that `palaestra export --to verifiers` writes for environments with tools.

The task executes the calls of each message in the turn environment, before the harness sees the message. So a message
with several calls is one turn, as in our own recipes. `AnswerToolset` returns the answers to the harness.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from typing import Any

import verifiers.v1 as vf

from palaestra.core.records import Message, ToolCall
from palaestra.integrations.episodes import EpisodeSession
from palaestra.integrations.verifiers.exported import SeedData, SeedTask, SeedTaskset, SeedTasksetConfig, check_failure
from palaestra.integrations.verifiers.toolset import AnswerState, AnswerToolset, AnswerToolsetConfig, CallAnswer


class ToolSeedTask(SeedTask, vf.Task[SeedData, AnswerState]):  # type: ignore[misc]
    """An episode of a turn environment with tools."""

    session: EpisodeSession

    def attach(self, session: EpisodeSession) -> ToolSeedTask:
        task = copy.copy(self)
        task.session = session
        return task

    @vf.intercept  # type: ignore[untyped-decorator]
    async def execute_calls(self, response: vf.Response, trace: vf.Trace) -> None:
        """Play a message with calls and store the environment's answers for the tool server."""
        calls = tuple(ToolCall(call.name, call.arguments, call.id) for call in response.message.tool_calls or ())
        if calls:
            message = Message("assistant", response.message.content or "", calls)
            messages = await asyncio.to_thread(self.session.send, message)
            check_failure(self.session)
            trace.state.answers = pair_answers(calls, messages)

    @vf.stop  # type: ignore[untyped-decorator]
    async def is_over(self, response: vf.Response) -> bool:
        """Whether a message with calls ended the episode."""
        return self.session.is_over


class ToolSeedTaskset(SeedTaskset, vf.Taskset[ToolSeedTask, SeedTasksetConfig]):  # type: ignore[misc]
    """The episodes of a turn environment with tools. Packages set `env_id` and `env_options`."""

    @classmethod
    def toolsets(cls, config: Any) -> list[Any]:
        session = EpisodeSession(cls.env_id, {**cls.env_options, **config.env_options})
        try:
            return [AnswerToolset(AnswerToolsetConfig(tools=[dict(tool) for tool in session.inside.tools]))]
        finally:
            session.close()


def pair_answers(calls: Sequence[ToolCall], messages: Sequence[Message]) -> list[CallAnswer]:
    """Pair the calls of a message with the environment's new messages.

    A harness takes one text for each call. Messages that answer none of the calls are appended to the last text.
    """
    tools = [message for message in messages if message.role == "tool"]
    ids = {call.id for call in calls}
    others = [message.text for message in messages if message.role != "tool" or message.tool_call_id not in ids]
    answers = []
    for call in calls:
        texts = [message.text for message in tools if message.tool_call_id == call.id]
        texts += others if call is calls[-1] else []
        answers.append(CallAnswer(name=call.name, arguments=call.arguments, text="\n".join(texts)))
    return answers
