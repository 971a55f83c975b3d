"""Train a language model in a turn environment: several messages per episode, with the exact sampled tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from palaestra.core.events import Event, Listener
from palaestra.core.records import Trajectory
from palaestra.core.seeding import Seeds
from palaestra.core.statistics import Mean, mean_interval
from palaestra.engines.chat import ChatEncoder
from palaestra.learn.policies.language_model import LanguageModelPolicy, ReferencePolicy, apply_kl_penalty
from palaestra.learn.rollouts import Rollout
from palaestra.learn.turns import TurnEpisode, collect_turns
from palaestra.recipes.train.loop import summarize_returns
from palaestra.recipes.train.settings import TrainSettings, unwrap
from palaestra.recipes.train.token_loop import TokenLoop, count_usage
from palaestra.runs.ledger import LedgerEntry

if TYPE_CHECKING:
    from palaestra.runs.store import Store


class TurnLoop(TokenLoop):
    """Trains a language model in a turn environment.

    Every episode starts from its own seed. The environment has no state between iterations, and checkpoints contain none.

    Arguments:
        held_out: the environment of the evaluation; `None` without an evaluation.
        encoder: the chat encoder of the policy's tokenizer.
        end_ids: the tokens that end a message.
    """

    broken = ""

    def __init__(
        self,
        settings: TrainSettings,
        env: Any,
        policy: LanguageModelPolicy,
        algorithm: Any,
        reference: ReferencePolicy | None,
        held_out: Any,
        encoder: ChatEncoder,
        *,
        end_ids: Sequence[int],
    ) -> None:
        self.encoder, self.end_ids = encoder, tuple(end_ids)
        self._returns: dict[int, list[float | None]] = {}
        super().__init__(settings, env, policy, algorithm, reference, held_out, encoder.name, encoder.tokenizer)

    def prepare(self) -> None:
        """Do nothing: every episode is reset with its own seed."""

    def close(self) -> None:
        for env in (self.env, self.held_out):
            if env is not None:
                env.close()

    def collect(self, first: int) -> Rollout:
        return self._play(self.env, unwrap(self.settings.episodes), self.seeds, self.algorithm.config.group_size, first)

    def trajectory(self, rollout: Rollout, sequence: int) -> Trajectory:
        episode: TurnEpisode = rollout.records[sequence]
        return episode.to_trajectory(self.settings.env)

    def iterate(
        self, iteration: int, progress_remaining: float, listener: Listener
    ) -> tuple[dict[str, float], list[Trajectory]]:
        metrics, trajectories = super().iterate(iteration, progress_remaining, listener)
        played = [episode for episode in self.responses if not episode.failure]
        messages = sum(episode.turns for episode in played)
        metrics["turns"] = math.fsum(episode.turns for episode in self.responses) / len(self.responses)
        metrics["truncated"] = sum(episode.cut_messages for episode in played) / max(1, messages)
        return metrics, trajectories

    def evaluate(self, iteration: int, store: Store, listener: Listener) -> tuple[dict[str, float], LedgerEntry | None]:
        """Play the same held-out episodes with the same random numbers every time, so that evaluations can be paired."""
        listener(Event("evaluate", 0, 0, iteration))
        rollout = self._play(self.held_out, unwrap(self.settings.evaluation), self.seeds.derive("evaluation"), 1, 0)
        self._returns[iteration] = [None if episode.failure else episode.reward for episode in rollout.records]
        metrics = self._measure(rollout, rollout.episode_returns, self.broken)
        metrics["test_turns"] = rollout.metrics["turns"]
        if self.reference is not None:
            metrics["test_reference_kl"] = apply_kl_penalty(rollout, self.reference.logprobs_BT(rollout), 0.0)
        return metrics, LedgerEntry("", self.engine_name, rollout.num_sequences, count_usage(rollout))

    def summarize(self, store: Store, iterations: int) -> dict[str, Any]:
        if not self.settings.evaluation:
            return {}
        gain = self.compute_gain(iterations)
        # JSON has neither the NaN gain of no episode nor the infinite interval of one.
        values = {"gain": gain.value, "gain_low": gain.low, "gain_high": gain.high}
        known = {name: value if math.isfinite(value) else None for name, value in values.items()}
        return summarize_returns(store.metrics(), iterations) | known | {"gain_episodes": gain.count}

    def compute_gain(self, iteration: int) -> Mean:
        """The mean difference between the returns after `iteration` and before training, over the same episodes."""
        pairs = zip(self._returns.get(0, ()), self._returns.get(iteration, ()), strict=True)
        return mean_interval([after - before for before, after in pairs if before is not None and after is not None])

    def counters(self) -> dict[str, Any]:
        return {**super().counters(), "returns": {str(iteration): r for iteration, r in self._returns.items()}}

    def load_counters(self, counters: Mapping[str, Any]) -> None:
        super().load_counters(counters)
        self._returns = {int(iteration): list(returns) for iteration, returns in counters["returns"].items()}

    def _play(self, env: Any, episodes: int, seeds: Seeds, group_size: int, first: int) -> Rollout:
        return collect_turns(
            env, self.policy, self.encoder, episodes, seeds, end_ids=self.end_ids, max_tokens=self.settings.max_tokens,
            group_size=group_size, first=first,
        )  # fmt: skip
