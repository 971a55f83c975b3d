"""Train a language model that an agent calls: `palaestra train --agent "python agent.py"`.

The agent is a program that plays one episode per process. It calls the model through the gateway of this process with any
OpenAI client, and plays the turn environment over HTTP. It gets everything by environment variables:

    OPENAI_BASE_URL, OPENAI_API_KEY, OPENAI_MODEL    the policy
    ENV_URL                                          the environment: GET the state, POST {"message": ...}
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from queue import SimpleQueue
from typing import Any

from palaestra.core.events import Listener
from palaestra.core.records import Failure, FailureCause, Trajectory
from palaestra.core.seeding import Seeds
from palaestra.engines.gateway import CaptureServer, ServerThread
from palaestra.engines.transformers import TransformersEngine
from palaestra.envs.turn.player import TurnEpisodePlayer
from palaestra.envs.turn.records import TurnStopReason
from palaestra.learn.captured import make_captured_rollout, to_episodes
from palaestra.learn.policies.engine import EnginePolicy
from palaestra.learn.policies.language_model import LanguageModelPolicy
from palaestra.learn.rollouts import Rollout
from palaestra.learn.turns import TurnEpisode
from palaestra.recipes.train.agent_program import AgentProgram
from palaestra.recipes.train.settings import TrainSettings
from palaestra.recipes.train.token_loop import TurnLoop


class AgentLoop(TurnLoop):
    """Trains the model behind an agent. See `TurnLoop` for the arguments.

    Each slot of `env` and `held_out` is the environment of one agent at a time.
    """

    def __init__(
        self, settings: TrainSettings, env: Any, policy: LanguageModelPolicy, *rest: Any, **options: Any
    ) -> None:
        super().__init__(settings, env, policy, *rest, **options)
        engine = (
            self.sampler.engine
            if self.sampler is not None
            else TransformersEngine(policy.model, self.tokenizer, self.engine_name, processed_logprobs=True)
        )
        self.program = AgentProgram(settings.agent, settings.agent_timeout, settings.agent_start)
        self.gateway = CaptureServer(
            engine, self.engine_name, temperature=settings.temperature, context=policy.context,
            max_tokens=settings.max_tokens, override_sampling=settings.override_sampling,
            api_key=secrets.token_urlsafe(24), max_requests=max(1024, 16 * (settings.num_envs or 0)),
        )  # fmt: skip
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

    def iterate(
        self, iteration: int, progress_remaining: float, listener: Listener
    ) -> tuple[dict[str, float], list[Trajectory]]:
        metrics, trajectories = super().iterate(iteration, progress_remaining, listener)
        episodes = len({record.number for record in self.responses})
        metrics["turns"] = sum(record.turns for record in self.responses) / episodes
        metrics["sequences"] = len(self.responses) / episodes
        return metrics, trajectories

    def _play(self, env: Any, version: int, episodes: int, seeds: Seeds, group_size: int, first: int) -> Rollout:
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
        max_turns = int(getattr(env.envs[0].unwrapped, "max_turns", 0))
        limit = min(self.policy.context, max_turns * self.settings.max_tokens or self.policy.context)
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
        player = TurnEpisodePlayer(env, episode.seed, self.settings.agent_timeout)
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
            "ENV_URL": f"{url}/env",
            "NO_PROXY": direct,
            "no_proxy": direct,
        }
