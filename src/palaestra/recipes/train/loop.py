"""The training loop: collect a rollout, update the policy, evaluate it.

A loop owns the environment, the policy and the algorithm. It does not access the run folder; the recipe stores its
results.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from palaestra.core.errors import EnvError, RewardError, RunError
from palaestra.core.events import Listener
from palaestra.core.records import Trajectory, Usage
from palaestra.core.seeding import Seeds
from palaestra.core.statistics import Mean, mean_interval
from palaestra.learn.rollouts import Rollout
from palaestra.recipes.train.settings import TrainSettings
from palaestra.recipes.train.signals import measure_spread
from palaestra.runs.ledger import LedgerEntry

if TYPE_CHECKING:
    from pathlib import Path

    from palaestra.runs.store import Store

MAX_FAILURES = 0.1
"""The fraction of the episodes of an iteration or an evaluation that may fail before the run stops."""
RECENT = 100
"""The number of episodes in the running mean of the returns, which `stop_at` refers to."""


class Loop(ABC):
    """The base class of the loops: counters, weights and their hash."""

    env: Any
    policy: Any
    algorithm: Any

    def __init__(self, settings: TrainSettings) -> None:
        self.settings, self.seeds = settings, Seeds(settings.seed)
        self.decisions = self.episodes = 0
        self.stopped = False
        self.failures: dict[str, int] = {}
        self.usage = Usage()
        self.responses: list[Any] = []
        self._recent: deque[float] = deque(maxlen=RECENT)

    @abstractmethod
    def iterate(
        self, iteration: int, progress_remaining: float, listener: Listener
    ) -> tuple[dict[str, float], list[Trajectory]]:
        """Collect a rollout and update the policy. Returns the metrics and the episodes to store."""

    @abstractmethod
    def evaluate(self, iteration: int, store: Store, listener: Listener) -> tuple[dict[str, float], LedgerEntry | None]:
        """Evaluate the policy on held-out episodes. Returns metrics, and a cost that is not stored yet."""

    @abstractmethod
    def summarize(self, store: Store, iterations: int) -> dict[str, Any]:
        """The part of the summary that describes the evaluations."""

    @abstractmethod
    def save_model(self, folder: Path) -> None:
        """Save the trained model in `model/` of the run folder."""

    def close(self) -> None:  # noqa: B027  (optional)
        """Close the environments, for example running workspaces. The policy stays usable."""

    def environment_state(self) -> bytes | None:
        """The state of the environment between two iterations; `None` if it has no such state."""
        return None

    def load_environment_state(self, state: bytes) -> None:
        """Restore the state that `environment_state` returned."""
        raise RunError("the checkpoint contains the state of an environment, and this environment has no such state")

    @property
    def recent_return(self) -> float:
        """The mean return of the last 100 episodes; minus infinity before 100 episodes."""
        return float(np.mean(self._recent)) if len(self._recent) == RECENT else float("-inf")

    def weights(self) -> dict[str, torch.Tensor]:
        """All tensors that training changes, by name."""
        trained = {name: p.detach() for name, p in self.policy.named_parameters() if p.requires_grad}
        buffers = {name: b for name, b in self.policy.named_buffers() if name in ("seen", "mean_F", "square_F")}
        return {name: tensor.contiguous().clone() for name, tensor in {**trained, **buffers}.items()}

    def load_weights(self, weights: Mapping[str, torch.Tensor], where: str) -> None:
        _check_shapes(self.weights(), weights, where)
        with torch.no_grad():
            for name, tensor in [*self.policy.named_parameters(), *self.policy.named_buffers()]:
                if name in weights:
                    tensor.copy_(weights[name])

    def weights_sha256(self) -> str:
        digest = hashlib.sha256()
        for name, tensor in sorted(self.weights().items()):
            digest.update(name.encode())
            digest.update(tensor.cpu().float().numpy().tobytes())
        return digest.hexdigest()

    def counters(self) -> dict[str, Any]:
        return {
            "decisions": self.decisions, "episodes": self.episodes, "failures": self.failures,
            "recent": list(self._recent), "stopped": self.stopped,
        }  # fmt: skip

    def load_counters(self, counters: Mapping[str, Any]) -> None:
        self.decisions, self.episodes = int(counters["decisions"]), int(counters["episodes"])
        self.failures, self.stopped = dict(counters["failures"]), bool(counters["stopped"])
        self._recent.extend(counters["recent"])

    def _count(self, rollout: Rollout, what: str) -> dict[str, float]:
        """Add a rollout to the counters and return its metrics.

        Arguments:
            what: the cause of failed episodes; empty if each failure message starts with its cause.

        Raises:
            RewardError, EnvError: more than a tenth of the episodes failed.
        """
        self.decisions += rollout.decisions
        self.episodes += len(rollout.episode_returns)
        self._recent.extend(rollout.episode_returns)
        total = len(rollout.episode_returns) + len(rollout.failures)
        self._note_failures(rollout.failures, total, what, "episodes failed in one iteration")
        reward = reward_interval(rollout)
        metrics = {
            "episodes": float(reward.count), "failures": float(len(rollout.failures)),
            "decisions": float(rollout.decisions), "total_decisions": float(self.decisions),
        }  # fmt: skip
        if reward.count:
            metrics |= {"reward": reward.value, "reward_low": reward.low, "reward_high": reward.high}
            metrics |= {"reward_count": float(reward.count), "length": float(np.mean(rollout.episode_lengths))}
        metrics |= measure_spread(rollout, rollout.episode_returns)
        if len(self._recent) == RECENT:
            metrics["recent_return"] = self.recent_return
        return metrics

    def _measure(self, rollout: Rollout, returns: Sequence[float], what: str) -> dict[str, float]:
        """The metrics of held-out episodes. `returns` are the known returns; `what` is that of `_count`."""
        failed, reward = rollout.num_sequences - len(returns), mean_interval(returns)
        self._note_failures(rollout.failures[:failed], rollout.num_sequences, what, "held-out episodes failed")
        metrics = {"test_count": float(reward.count), "test_failures": float(failed)}
        if reward.count:
            metrics |= {"test_reward": reward.value, "test_reward_low": reward.low, "test_reward_high": reward.high}
        return metrics | measure_spread(rollout, returns, "test_")

    def _note_failures(self, failures: Sequence[str], total: int, what: str, where: str) -> None:
        for failure in failures:
            name = what or failure.partition(":")[0]
            self.failures[name] = self.failures.get(name, 0) + 1
        if len(failures) > max(1.0, MAX_FAILURES * total):
            first = " ".join(failures[0].split())
            raise (RewardError if what == "reward" else EnvError)(
                f"{len(failures)} of {total} {where}; the first: {first}"
            )


def reward_interval(rollout: Rollout) -> Mean:
    """The mean return with its interval. The episodes of a group are not independent, the groups are."""
    plain = mean_interval(rollout.episode_returns)
    groups: dict[int, list[float]] = {}
    if rollout.group_B is not None and rollout.valid_B is not None:
        known = [sequence for sequence in range(rollout.num_sequences) if bool(rollout.valid_B[sequence])]
        if len(known) == len(rollout.episode_returns):
            for sequence, value in zip(known, rollout.episode_returns, strict=True):
                groups.setdefault(int(rollout.group_B[sequence]), []).append(value)
    if len(groups) in (0, len(rollout.episode_returns)):
        return plain
    clustered = mean_interval([float(np.mean(values)) for values in groups.values()])
    half = (clustered.high - clustered.low) / 2
    return Mean(plain.value, plain.value - half, plain.value + half, plain.count)


def summarize_returns(table: Mapping[int, Mapping[str, float]], iterations: int) -> dict[str, Any]:
    """The held-out returns of a summary; `None` if no return is known, or too few for an interval."""
    summary: dict[str, Any] = {"unit": "return"}
    for name, iteration in (("before", 0), ("after", iterations)):
        row = table.get(iteration, {})
        summary[name] = row.get("test_reward")
        summary |= {f"{name}_low": row.get("test_reward_low"), f"{name}_high": row.get("test_reward_high")}
        summary |= {f"{name}_episodes": row.get("test_count"), f"{name}_failures": row.get("test_failures")}
    return summary


def _check_shapes(expected: Mapping[str, torch.Tensor], loaded: Mapping[str, torch.Tensor], where: str) -> None:
    """Raise `RunError` if the tensors of a checkpoint do not fit a policy."""
    missing, extra = sorted(set(expected) - set(loaded)), sorted(set(loaded) - set(expected))
    if missing or extra:
        raise RunError(
            f"the checkpoint {where} is of another policy: missing {missing[:2] or 'nothing'}, unexpected {extra[:2] or 'nothing'}"
        )
    for name, tensor in expected.items():
        if tensor.shape != loaded[name].shape:
            raise RunError(
                f"the checkpoint {where} is of another shape: {name} is {tuple(loaded[name].shape)} there and "
                f"{tuple(tensor.shape)} in this policy"
            )
