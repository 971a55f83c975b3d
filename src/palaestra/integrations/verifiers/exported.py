"""The taskset and the environment of the packages that `palaestra export --to verifiers` writes.

A task is a seed. The environment plays the turn environment and sends its messages to the model as the user's."""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import Iterator, Sequence
from typing import ClassVar

import verifiers.v1 as vf
from pydantic import Field

from palaestra.core.errors import RewardError
from palaestra.core.records import Json, Message, ToolCall
from palaestra.engines.openai_format import to_chat_messages
from palaestra.envs.base import Options
from palaestra.envs.turn.base import TurnStopReason
from palaestra.integrations.episodes import EpisodeSession
from palaestra.integrations.verifiers.toolset import AnswerState, AnswerToolset, AnswerToolsetConfig, CallAnswer


class SeedData(vf.TaskData):  # type: ignore[misc]
    """A task: the first messages of an episode, and its seed."""

    seed: int


class SeedTask(vf.Task[SeedData]):  # type: ignore[misc]
    """An episode of a turn environment. `SeedEnv` records its reward."""

    def attach(self, session: EpisodeSession) -> SeedTask:
        """Return the task for a rollout that `session` plays."""
        return self


class SeedTasksetConfig(vf.TasksetConfig):  # type: ignore[misc]
    """Which episodes are played."""

    first_seed: int = 0
    """The seed of the first task; the others follow."""
    env_kwargs: Json = Field(default_factory=dict)
    """Arguments of the turn environment, besides those of the package."""


class SeedTaskset(vf.Taskset[SeedTask, SeedTasksetConfig]):  # type: ignore[misc]
    """The episodes of a turn environment. Packages set `env_id` and `env_kwargs`."""

    INFINITE = True
    env_id: ClassVar[str]
    env_kwargs: ClassVar[Options] = {}

    def open_session(self) -> EpisodeSession:
        return EpisodeSession(self.env_id, {**self.env_kwargs, **self.config.env_kwargs})

    def load(self) -> Iterator[SeedTask]:
        session = self.open_session()
        for seed in itertools.count(self.config.first_seed):
            opening = session.start(seed)
            if session.failure is not None:
                raise RewardError(f"{self.env_id} cannot start an episode with seed {seed}: {session.failure.message}")
            system, prompt = _split_prompt(opening)
            name = f"{self.env_id}#{seed}"
            data = SeedData(name=name, prompt=prompt, system_prompt=system, seed=seed)
            yield self.task_type()(data, self.config.task)


class SeedEnvConfig(vf.EnvConfig):  # type: ignore[misc]
    """One agent plays. By default it runs on this machine."""

    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())


class SeedEnv(vf.Env[SeedEnvConfig]):  # type: ignore[misc]
    """Plays one episode with the agent. The reward is the sum of the rewards of its turns.

    If something outside the agent fails, the episode fails with an error and has no reward.
    """

    async def run(self, task: SeedTask, agents: vf.Agents) -> None:
        session = await asyncio.to_thread(self.taskset.open_session)
        try:
            await asyncio.to_thread(session.start, task.data.seed)
            _check_failure(session)
            async with agents.agent.interaction(task.attach(session)) as interaction:
                segment = await interaction.turn()
                while not segment.terminated and not session.is_over:
                    reply = next(m for m in reversed(segment.messages) if m.role == "assistant")
                    if reply.tool_calls and session.inside.tools:
                        break  # The task has executed the calls; then verifiers has ended the exchange.
                    answers = await asyncio.to_thread(session.send, reply.content or "")
                    _check_failure(session)
                    if session.is_over:
                        break
                    segment = await interaction.turn(to_chat_messages(answers))
            if interaction.trace.ok:
                # verifiers has ended the exchange at one of its limits, if the episode is not over.
                await asyncio.to_thread(session.stop, TurnStopReason.STEPS)
                _check_failure(session)
                interaction.trace.record_reward("reward", session.total)
        finally:
            session.close()


def _split_prompt(opening: Sequence[Message]) -> tuple[str | None, str | list[Json]]:
    """Split the first messages of an episode into a system prompt and a prompt, as verifiers wants them."""
    system = opening[0].text if opening and opening[0].role == "system" else None
    rest = opening[1:] if system is not None else opening
    if len(rest) == 1 and rest[0].role == "user" and isinstance(rest[0].content, str):
        return system, rest[0].text
    return system, to_chat_messages(rest)


def _check_failure(session: EpisodeSession) -> None:
    """Raise if the turn environment failed, so that verifiers records an error instead of a reward."""
    if session.failure is not None:
        raise RewardError(f"{session.failure.cause}: {session.failure.message}")


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
            _check_failure(self.session)
            trace.state.answers = _pair_answers(calls, messages)

    @vf.stop  # type: ignore[untyped-decorator]
    async def is_over(self, response: vf.Response) -> bool:
        """Whether a message with calls ended the episode."""
        return self.session.is_over


class ToolSeedTaskset(SeedTaskset, vf.Taskset[ToolSeedTask, SeedTasksetConfig]):  # type: ignore[misc]
    """The episodes of a turn environment with tools. Packages set `env_id` and `env_kwargs`."""

    @classmethod
    def toolsets(cls, config: SeedTasksetConfig) -> list[AnswerToolset]:
        session = EpisodeSession(cls.env_id, {**cls.env_kwargs, **config.env_kwargs})
        try:
            return [AnswerToolset(AnswerToolsetConfig(tools=[dict(tool) for tool in session.inside.tools]))]
        finally:
            session.close()


def _pair_answers(calls: Sequence[ToolCall], messages: Sequence[Message]) -> list[CallAnswer]:
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
