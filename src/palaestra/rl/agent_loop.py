"""Train a language model that an agent calls: `palaestra train --agent "python agent.py"`.

The agent is a program that plays one episode per process. It calls the model through the gateway of this process with any
client of OpenAI or Anthropic, and plays the turn environment over HTTP. It gets everything by environment variables:

    OPENAI_BASE_URL, OPENAI_API_KEY, OPENAI_MODEL    the policy
    ANTHROPIC_BASE_URL, ANTHROPIC_API_KEY            the same for Anthropic's client
    ENV_URL                                          the environment: GET the state, POST {"message": ...}
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import groupby
from queue import SimpleQueue
from typing import Any

import torch

from palaestra.core.records import Failure, FailureCause
from palaestra.core.seeding import Seeds
from palaestra.engines.transformers import TransformersEngine
from palaestra.envs.turn.base import TurnStopReason
from palaestra.envs.turn.player import TurnEpisodePlayer
from palaestra.rl.agent_program import AgentProgram
from palaestra.rl.interruptions import Interruptions
from palaestra.rl.loop import LoopConfig
from palaestra.rl.policies.engine import EnginePolicy
from palaestra.rl.policies.language_model import LanguageModelPolicy
from palaestra.rl.rollouts import EpisodeStats, Rollout
from palaestra.rl.token_loop import TurnLoop
from palaestra.rl.turns import TurnEpisode, count_max_actions, make_turn_rollout
from palaestra.serving.capture import CapturedSequence
from palaestra.serving.gateway import CaptureServer, ServerThread


class AgentLoop(TurnLoop):
    """Trains the model behind an agent. See `TurnLoop` for the arguments.

    Each slot of `env` and `held_out` is the environment of one agent at a time.
    """

    def __init__(self, config: LoopConfig, env: Any, policy: LanguageModelPolicy, *rest: Any, **options: Any) -> None:
        super().__init__(config, env, policy, *rest, **options)
        engine = (
            self.sampler.engine
            if self.sampler is not None
            else TransformersEngine(policy.model, self.tokenizer, self.engine_name, processed_logprobs=True)
        )
        self.program = AgentProgram(config.agent, config.agent_timeout, config.agent_start)
        self.gateway = CaptureServer(
            engine,
            self.engine_name,
            temperature=config.temperature,
            context=policy.context,
            max_tokens=config.max_tokens,
            override_sampling=config.override_sampling,
            api_key=secrets.token_urlsafe(24),
            max_requests=max(1024, 16 * config.num_envs),
        )
        self.server = ServerThread(self.gateway)

    def close(self) -> None:
        self.program.close()
        self.server.close()
        super().close()

    @contextmanager
    def open_sampler(self, version: int) -> Iterator[LanguageModelPolicy | EnginePolicy]:
        """Within the context the gateway samples with the weights after `version` updates."""
        with ExitStack() as stack:
            samplers: list[LanguageModelPolicy | EnginePolicy] = []
            # Calls of agents that were stopped may still be in progress.
            self.gateway.update_weights(
                version, lambda: samplers.append(stack.enter_context(TurnLoop.open_sampler(self, version)))
            )
            yield samplers[0]

    def _play(
        self,
        env: Any,
        version: int,
        episodes: int,
        seeds: Seeds,
        group_size: int,
        first: int,
        interruptions: Interruptions | None = None,
    ) -> Rollout:
        """Let agents play some episodes, as many at once as there are environments."""
        start = time.perf_counter()
        slots: SimpleQueue[Any] = SimpleQueue()
        for slot in env.envs:
            slots.put(slot)

        def play(number: int) -> list[TurnEpisode]:
            slot = slots.get()
            try:
                group = number // group_size
                seed = seeds.derive("episode", group).integer() % 2**31
                records, is_blocked = self._play_episode(slot, TurnEpisode(number, group, seed), seeds)
                slot = None if is_blocked else slot
                return records
            finally:
                slots.put(slot)

        with self.open_sampler(version):
            pool = ThreadPoolExecutor(len(env.envs), "agent")
            futures = [pool.submit(play, number) for number in range(first, first + episodes)]
            try:
                records = [record for future in futures for record in future.result()]
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
                while not all(future.done() for future in futures):  # The run is interrupted.
                    self.program.stop()
                    time.sleep(0.05)
        limit = count_max_actions(env, self.policy.context, self.config.max_tokens)
        rollout = make_captured_rollout(records, limit, version)
        rollout.metrics = {
            "seconds_model": time.perf_counter() - start,  # Agents and environments run meanwhile.
            "seconds_environment": 0.0,
            "turns": sum(record.turns for record in records) / episodes,
        }
        return rollout

    def _play_episode(self, env: Any, episode: TurnEpisode, seeds: Seeds) -> tuple[list[TurnEpisode], bool]:
        """Play one episode. Returns its records, and whether the environment has not returned."""
        if env is None:
            episode.stop_reason = TurnStopReason.FAILED
            episode.failure = (
                f"{FailureCause.ENVIRONMENT}: the environment of this slot did not return in an earlier episode"
            )
            return [episode], True
        player = TurnEpisodePlayer(env, episode.seed, self.config.agent_timeout)
        session = self.gateway.open_session(seeds.derive("agent", episode.number), player)
        reason = ""
        try:
            if player.failure is None:
                reason = self.program.run(self._make_variables(session.name))
        finally:
            self.gateway.close_session(session)
        sequences = session.build_sequences()
        if reason and session.context_exceeded:
            # Few agents handle this error. It is an end at a limit, as in other turn episodes.
            player.stop(TurnStopReason.CONTEXT)
        elif not reason:
            player.stop(TurnStopReason.GAVE_UP)
        failure = player.failure
        if failure is None and reason and not session.context_exceeded:
            failure = Failure(FailureCause.AGENT, reason)
        elif failure is None and not sequences:
            cause = FailureCause.CONTEXT_LENGTH if session.context_exceeded else FailureCause.AGENT
            failure = Failure(cause, reason or "the agent never called the model")
        episode.stop_reason = str(TurnStopReason.FAILED if failure is not None else player.stop_reason)
        episode.terminated, episode.truncated = player.terminated, player.truncated
        if failure is not None:
            episode.failure = f"{failure.cause}: {failure.message}"
        return to_episodes(episode, sequences, float(sum(player.rewards))), player.is_blocked

    def _make_variables(self, session: str) -> dict[str, str]:
        """The environment variables of an agent. Calls to this machine never pass a proxy."""
        url = f"{self.server.url}/sessions/{session}"
        direct = ",".join(filter(None, (os.environ.get("NO_PROXY") or os.environ.get("no_proxy"), "127.0.0.1")))
        return {
            "OPENAI_BASE_URL": f"{url}/v1",
            "OPENAI_API_KEY": self.gateway.api_key,
            "OPENAI_MODEL": self.engine_name,
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": self.gateway.api_key,
            "ENV_URL": f"{url}/env",
            "NO_PROXY": direct,
            "no_proxy": direct,
        }


def to_episodes(episode: TurnEpisode, sequences: Sequence[CapturedSequence], reward: float) -> list[TurnEpisode]:
    """Return one record per sequence of an episode. A failed episode without calls has one empty record.

    Arguments:
        episode: the number, group, seed and end of the episode; it has no tokens.
        reward: the return of the episode.
    """
    if not sequences:
        return [episode]
    return [
        replace(
            episode,
            branch=branch,
            opening=sequence.opening,
            messages=sequence.messages,
            ids=list(sequence.ids),
            prompt=sequence.chosen[0],
            chosen=list(sequence.chosen),
            logprobs=list(sequence.logprobs),
            # As in `EnginePolicy`: the mean of the negative log-probs is the entropy.
            entropies=[-logprob for logprob in sequence.logprobs],
            ends=list(sequence.ends),
            rewards=[0.0] * (len(sequence.ends) - 1) + [reward],
            cut_messages=sequence.cut_messages,
            calls=sequence.calls,
            samplings=list(sequence.samplings),
        )
        for branch, sequence in enumerate(sequences)
    ]


def make_captured_rollout(records: Sequence[TurnEpisode], limit: int, version: int) -> Rollout:
    """Make a rollout from the records of some episodes, in order of their numbers.

    An episode has one sequence per conversation of its agent. All of them get the return of the episode, at their last
    token: the environment's rewards belong to the agent's actions, which need not be single answers of the model. For the
    same reason no end is bootstrapped: the value of a later state would count the return again.

    Arguments:
        limit: maximum number of actions of a sequence.
        version: the number of updates of the oldest weights that sampled a token.
    """
    rollout = make_turn_rollout(records, limit)
    episodes = [list(group) for _, group in groupby(records, key=lambda record: record.number)]
    rollout.get_episodes().number_B = torch.tensor([k for k, branches in enumerate(episodes) for _ in branches])
    valid = [branches for branches in episodes if not branches[0].failure]
    rollout.stats = EpisodeStats(
        returns=[branches[0].reward for branches in valid],
        lengths=[sum(len(record.chosen) for record in branches) for branches in valid],
        failures=[branches[0].failure for branches in episodes if branches[0].failure],
    )
    return rollout.mark_version(version)
