"""A language model learns in a turn environment: several messages an episode, every token of them exactly as sampled."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from palaestra.core.events import Event, Listener
from palaestra.core.records import Trajectory
from palaestra.core.seeding import Seeds
from palaestra.core.statistics import Mean, mean_interval
from palaestra.learn.chat_encoder import ChatEncoder
from palaestra.learn.policies.language_model import LanguageModelPolicy
from palaestra.learn.reference import Reference, penalise
from palaestra.learn.rollouts import Rollout
from palaestra.learn.turns import TurnEpisode, collect_turns
from palaestra.recipes.train.loop import before_after
from palaestra.recipes.train.token_loop import TokenLoop, usage_of
from palaestra.runs.ledger import LedgerEntry

if TYPE_CHECKING:
    from palaestra.recipes.train.recipe import TrainSettings
    from palaestra.runs.store import Store


class TurnLoop(TokenLoop):
    """A language model learns in a turn environment.

    Between two iterations nothing goes on in the environment: every episode starts from a seed of its own, so a
    checkpoint needs no state of it.

    Arguments:
        env: the environment, and `held_out` that of the episodes that it is measured on (`None` without an evaluation).
        encoder: of the policy's tokenizer.
        end_ids: the tokens that end a message.
        group_size: episodes that start alike.
    """

    broken = ""

    def __init__(
        self,
        settings: TrainSettings,
        env: Any,
        policy: LanguageModelPolicy,
        algorithm: Any,
        reference: Reference | None,
        kl: float,
        held_out: Any,
        encoder: ChatEncoder,
        *,
        end_ids: Sequence[int],
        group_size: int,
    ) -> None:
        self.encoder, self.end_ids, self.group_size = encoder, tuple(end_ids), group_size
        self._returns: dict[int, list[float | None]] = {}
        super().__init__(settings, env, policy, algorithm, reference, kl, held_out, encoder.name, encoder.tokenizer)

    def prepare(self) -> None:
        """Nothing to do: every episode is reset to its own start."""

    def close(self) -> None:
        for env in (self.env, self.held_out):
            if env is not None:
                env.close()

    def collect(self, first: int) -> Rollout:
        return self._play(self.env, self.settings.episodes, self.seeds, self.group_size, first)

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
        """Play the same held-out episodes with the same random numbers every time, so that they can be compared in pairs."""
        listener(Event("evaluate", 0, 0, iteration))
        rollout = self._play(self.held_out, self.settings.evaluation, self.seeds.derive("evaluation"), 1, 0)
        self._returns[iteration] = [None if episode.failure else episode.reward for episode in rollout.records]
        metrics = self._measured(rollout, rollout.episode_returns, self.broken)
        metrics["test_turns"] = rollout.metrics["turns"]
        if self.reference is not None:
            metrics["test_reference_kl"] = penalise(rollout, self.reference.logprobs_BT(rollout), 0.0)
        return metrics, LedgerEntry("", self.engine_name, rollout.num_sequences, usage_of(rollout))

    def outcome(self, store: Store, iterations: int) -> dict[str, Any]:
        if not self.settings.evaluation:
            return {}
        gain = self.compute_paired_gain(iterations)
        # JSON knows neither the gain of no episode nor the endless interval of one.
        values = {"test_gain": gain.value, "test_gain_low": gain.low, "test_gain_high": gain.high}
        known = {name: value if math.isfinite(value) else None for name, value in values.items()}
        return before_after(store.metrics(), iterations) | known | {"test_gain_episodes": gain.count}

    def compute_paired_gain(self, iteration: int) -> Mean:
        """How much more reward an episode had after `iteration` than before the first, over those known both times."""
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
