"""The training loop: collect a rollout, update the policy, evaluate it. Also its checkpoints.

A loop owns the environment, the policy and the algorithm. The recipe stores its results.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from palaestra.core.errors import EnvError, RewardError, RunError
from palaestra.core.records import Json, Listener, Trajectory, Usage, Values
from palaestra.core.seeding import Seeds
from palaestra.core.statistics import Mean, mean_interval, rate_interval
from palaestra.rl.distributed.ranks import broadcast, is_sharded, to_share, to_whole
from palaestra.rl.distributed.shards import read_shards, write_shards
from palaestra.rl.rollouts import Rollout
from palaestra.runs.files import write_folder, write_json
from palaestra.runs.provenance import LedgerEntry
from palaestra.runs.trust import forget_pickle

if TYPE_CHECKING:
    from palaestra.rl.optimizers import Optimizer
    from palaestra.runs.store import Store


_MAX_FAILURES = 0.1
"""The fraction of the episodes of an iteration or an evaluation that may fail before the run stops."""
WEIGHTS, POLICY = "policy.safetensors", "policy.json"
ENVIRONMENT, PICKLE = "environment.json", "environment.pkl"
SHARDS = "shards"
"""The files of a checkpoint. Several processes that shard a policy write the folder `SHARDS` instead of weights and optimizer."""
RECENT = 100
"""The number of episodes in the running mean of the returns, which `stop_at` refers to."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopConfig:
    """The settings of a run that its loop needs; `palaestra.TrainSettings` documents each."""

    env: str
    env_kwargs: Values
    policy: str
    seed: int
    iterations: int
    num_envs: int
    episodes: int
    n_steps: int
    group_size: int
    evaluation: int
    reward_scale: float
    rollout: Literal["step", "engine"]
    uses_workers: bool
    max_staleness: int
    overdue: Literal["wait", "drop", "cut", "continue"]
    importance_clip_max: float
    curriculum: str
    temperature: float
    max_tokens: int
    keep_trajectories: int
    keep_alternatives: int
    agent: str
    agent_timeout: float
    agent_start: Literal["spawn", "fork"]
    override_sampling: bool


_RATE = {0.0, 1.0}
"""The returns of episodes that succeed or fail."""


class Loop(ABC):
    """The base class of the loops: counters, weights and their hash."""

    env: Any
    policy: Any
    algorithm: Any

    def __init__(self, config: LoopConfig) -> None:
        self.config, self.seeds = config, Seeds(config.seed)
        self.actions = self.episodes = self.tokens = 0
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
    def evaluate(
        self, iteration: int, store: Store | None, listener: Listener
    ) -> tuple[dict[str, float], LedgerEntry | None]:
        """Evaluate the policy on held-out episodes. Returns metrics, and a cost that is not stored yet.

        Arguments:
            store: for attempts at problems; `None` in the processes that store nothing.
        """

    @property
    def stores_attempts(self) -> bool:
        """Whether an evaluation stores attempts at the problems of a task, rather than returns of episodes."""
        return False

    def summarize(self, store: Store, iterations: int) -> Json:
        """The part of the summary that describes the returns of the evaluations."""
        return summarize_returns(store.metrics(), iterations) if self.config.evaluation else {}

    @abstractmethod
    def save_model(self, folder: Path) -> None:
        """Save the trained model in `model/` of the run folder."""

    def close(self) -> None:  # noqa: B027  (optional)
        """Close the environments, for example running workspaces. The policy stays usable."""

    def open_record(self, folder: Path) -> None:  # noqa: B027  (optional)
        """Record the order of stale rollouts in the run folder, and repeat the order that is recorded there."""

    def save_environment(self, folder: Path) -> None:  # noqa: B027  (optional)
        """Save the state of the environment between two iterations, if it has one."""

    def load_environment(self, folder: Path, trust: bool) -> None:  # noqa: B027  (optional)
        """Restore the state that `save_environment` has saved."""

    @property
    def recent_return(self) -> float:
        """The mean return of the last 100 episodes; minus infinity before 100 episodes."""
        return float(np.mean(self._recent)) if len(self._recent) == RECENT else float("-inf")

    def weights(self) -> dict[str, torch.Tensor]:
        """A copy of all tensors that training changes, by name. All processes must call this; rank 0 gets the weights."""
        return {name: to_whole(tensor) for name, tensor in list_trained(self.policy).items()}

    def save_policy(self, folder: Path) -> None:
        """Save the weights, and what `palaestra.load_policy` needs to build the policy without the environment."""
        from safetensors.torch import save_file

        save_file(self.weights(), folder / WEIGHTS)
        write_json(folder / POLICY, self.describe_policy())

    @abstractmethod
    def describe_policy(self) -> Json:
        """The properties of the policy that depend on the environment or the algorithm, as plain data."""

    def weights_sha256(self) -> str:
        """The hash of the weights. All processes must call this; rank 0 gets the hash."""
        digest = hashlib.sha256()
        for name, tensor in sorted(list_trained(self.policy).items()):
            digest.update(name.encode())
            digest.update(to_whole(tensor).cpu().float().numpy().tobytes())
        return digest.hexdigest()

    def save_shards(self, folder: Path | None = None) -> bool:
        """Write the shards of weights and optimizer, each process its own. Returns whether the policy is sharded.

        Arguments:
            folder: the folder of the checkpoint; given by rank 0 only.
        """
        weights = list_trained(self.policy)
        if not any(map(is_sharded, weights.values())):
            return False
        optimizer = self.algorithm.optimizer.state()
        state = {f"{_POLICY}/{k}": v for k, v in weights.items()} | {
            f"{_OPTIMIZER}/{k}": v for k, v in optimizer.items()
        }
        write_shards(Path(broadcast(str(folder))) / SHARDS, state)
        return True

    def counters(self) -> Json:
        return {
            "actions": self.actions, "episodes": self.episodes, "tokens": self.tokens, "failures": self.failures,
            "recent": list(self._recent), "stopped": self.stopped,
        }  # fmt: skip

    def load_counters(self, counters: Json) -> None:
        name = "actions" if "actions" in counters else "decisions"  # Its name in earlier versions.
        self.actions = int(counters[name])
        self.episodes = int(counters["episodes"])
        self.tokens = int(counters.get("tokens", 0))  # Missing in checkpoints of earlier versions.
        self.failures, self.stopped = dict(counters["failures"]), bool(counters["stopped"])
        self._recent.extend(counters["recent"])

    def _count(self, rollout: Rollout, what: str) -> dict[str, float]:
        """Add a rollout to the counters and return its metrics.

        Arguments:
            what: the cause of failed episodes; empty if each failure message starts with its cause.

        Raises:
            RewardError, EnvError: more than a tenth of the episodes failed.
        """
        self.actions += rollout.num_actions
        self.episodes += len(rollout.stats.returns)
        self._recent.extend(rollout.stats.returns)
        total = len(rollout.stats.returns) + len(rollout.stats.failures)
        self._note_failures(rollout.stats.failures, total, what, "episodes failed in one iteration")
        reward = _reward_interval(rollout)
        metrics = {
            "episodes": float(reward.count), "failures": float(len(rollout.stats.failures)),
            "actions": float(rollout.num_actions), "total_actions": float(self.actions),
        }  # fmt: skip
        if reward.count:
            metrics |= {"reward": reward.value, "reward_low": reward.low, "reward_high": reward.high}
            metrics |= {"reward_count": float(reward.count), "length": float(np.mean(rollout.stats.lengths))}
        metrics |= _measure_spread(rollout, rollout.stats.returns)
        if len(self._recent) == RECENT:
            metrics["recent_return"] = self.recent_return
        return metrics

    def _measure(self, rollout: Rollout, returns: Sequence[float], what: str) -> dict[str, float]:
        """The metrics of held-out episodes. `returns` are the known returns; `what` is as in `_count`."""
        episodes, reward = len(rollout.get_episodes().first_sequences), _mean_return(returns)
        failed = episodes - len(returns)
        self._note_failures(rollout.stats.failures[:failed], episodes, what, "held-out episodes failed")
        metrics = {"test_count": float(reward.count), "test_failures": float(failed)}
        if reward.count:
            metrics |= {"test_reward": reward.value, "test_reward_low": reward.low, "test_reward_high": reward.high}
        return metrics | _measure_spread(rollout, returns, "test_")

    def _note_failures(self, failures: Sequence[str], total: int, what: str, where: str) -> None:
        for failure in failures:
            name = what or failure.partition(":")[0]
            self.failures[name] = self.failures.get(name, 0) + 1
        if len(failures) > max(1.0, _MAX_FAILURES * total):
            first = " ".join(failures[0].split())
            raise (RewardError if what == "reward" else EnvError)(
                f"{len(failures)} of {total} {where}; first failure: {first}"
            )


_POLICY, _OPTIMIZER = "policy", "optimizer"


def read_weights(checkpoint: Path, policy: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The weights of a checkpoint: shards of those that the policy shards, and the others as a whole."""
    from safetensors.torch import load_file

    if not (checkpoint / SHARDS).is_dir():
        weights: dict[str, torch.Tensor] = load_file(checkpoint / WEIGHTS)
        return weights
    return read_shards(checkpoint / SHARDS, f"{_POLICY}/", list_trained(policy))


def _read_optimizer(checkpoint: Path, optimizer: Optimizer) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    if not (checkpoint / SHARDS).is_dir():
        state: dict[str, torch.Tensor] = load_file(checkpoint / "optimizer.safetensors")
        return state
    return read_shards(checkpoint / SHARDS, f"{_OPTIMIZER}/", optimizer.list_moments())


def load_weights(policy: torch.nn.Module, weights: Mapping[str, torch.Tensor], where: str) -> None:
    """Load the tensors that training changes into a policy.

    Raises:
        RunError: the checkpoint at `where` belongs to another policy.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in list_trained(policy).items()}
    stored = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    for name in sorted(shapes.keys() | stored.keys()):
        if shapes.get(name) != stored.get(name):
            raise RunError(
                f"the checkpoint {where} belongs to another policy: {name} has the shape {stored.get(name)}; "
                f"expected {shapes.get(name)}"
            )
    with torch.no_grad():
        for name, tensor in [*policy.named_parameters(), *policy.named_buffers()]:
            if name in weights:
                tensor.copy_(to_share(weights[name], tensor))


_STATISTICS = ("seen", "mean_F", "square_F", "return_moments")
"""The buffers of a policy that training changes: statistics of observations and of returns."""


def list_trained(policy: torch.nn.Module) -> dict[str, torch.Tensor]:
    """All tensors of a policy that training changes, by name."""
    trained = {name: p for name, p in policy.named_parameters() if p.requires_grad}
    buffers = {name: b for name, b in policy.named_buffers() if name in _STATISTICS}
    return {**trained, **buffers}


def _measure_spread(rollout: Rollout, returns: Sequence[float], prefix: str = "") -> dict[str, float]:
    """The minimum and maximum return of some episodes, and the number of truncated episodes."""
    if not returns:
        return {}
    cut = rollout.stats.num_truncated
    if rollout.episodes is not None:
        cut = int(rollout.episodes.truncated_B[rollout.episodes.first_sequences].sum())
    spread = {"reward_min": min(returns), "reward_max": max(returns), "cut_episodes": float(cut)}
    return {f"{prefix}{name}": value for name, value in spread.items()}


def _reward_interval(rollout: Rollout) -> Mean:
    """The mean return with its interval. Groups are independent; the episodes of one group are not."""
    returns, episodes, clusters = rollout.stats.returns, rollout.episodes, list[str]()
    if episodes is not None:
        known = [sequence for sequence in episodes.first_sequences if bool(episodes.valid_B[sequence])]
        if len(known) == len(returns):
            clusters = [str(int(episodes.group_B[sequence])) for sequence in known]
    if len(set(clusters)) in (0, len(returns)):
        return _mean_return(returns)
    if set(returns) <= _RATE:
        return rate_interval(returns, clusters)
    groups: dict[str, list[float]] = {}
    for cluster, value in zip(clusters, returns, strict=True):
        groups.setdefault(cluster, []).append(value)
    clustered, mean = mean_interval([float(np.mean(values)) for values in groups.values()]), mean_interval(returns)
    half = (clustered.high - clustered.low) / 2
    return Mean(mean.value, mean.value - half, mean.value + half, mean.count)


def _mean_return(returns: Sequence[float]) -> Mean:
    """The mean of returns with its interval: that of a rate, which stays within 0 and 1, if all of them are 0 or 1."""
    return rate_interval(returns) if returns and set(returns) <= _RATE else mean_interval(returns)


def summarize_returns(table: Mapping[int, Mapping[str, float]], iterations: int) -> Json:
    """The held-out returns of a summary; `None` if no return is known, or too few for an interval."""
    summary: Json = {"unit": "return"}
    for name, iteration in (("before", 0), ("after", iterations)):
        row = table.get(iteration, {})
        summary[name] = row.get("test_reward")
        summary |= {f"{name}_low": row.get("test_reward_low"), f"{name}_high": row.get("test_reward_high")}
        summary |= {f"{name}_episodes": row.get("test_count"), f"{name}_failures": row.get("test_failures")}
    return summary


def save_checkpoint(folder: Path, iteration: int, loop: Loop, last: bool) -> None:
    """Write the checkpoint of an iteration atomically and remove all but the newest two.

    It contains the weights, the optimizer, the environment state and the counters. The last checkpoint of a run has no
    environment state. Rank 0 calls this, while the other processes call `Loop.save_shards`.
    """
    from safetensors.torch import save_file

    def write(target: Path) -> None:
        if loop.save_shards(target):
            write_json(target / POLICY, loop.describe_policy())
        else:
            loop.save_policy(target)
            state = {k: v.clone() for k, v in loop.algorithm.optimizer.state().items()}
            save_file(state, target / "optimizer.safetensors")
        write_json(target / "counters.json", loop.counters())
        if not last:
            loop.save_environment(target)

    write_folder(folder / f"iteration-{iteration}", write)
    for old in _list_iterations(folder)[:-2]:
        if old != iteration:
            forget_pickle(folder / f"iteration-{old}" / PICKLE)
            shutil.rmtree(folder / f"iteration-{old}", ignore_errors=True)


def find_newest_checkpoint(folder: Path) -> Path | None:
    """Return the folder of the newest checkpoint; `None` if there is none."""
    iterations = _list_iterations(folder)
    return folder / f"iteration-{iterations[-1]}" if iterations else None


def load_newest_checkpoint(folder: Path, loop: Loop, *, trust: bool = False) -> int:
    """Load the newest checkpoint into `loop` and return its iteration; 0 if there is none.

    Arguments:
        trust: also load a pickle that this user has not written.

    Raises:
        RunError: a file is missing or damaged, or the checkpoint does not fit the policy.
    """
    newest = find_newest_checkpoint(folder)
    if newest is None:
        return 0
    try:
        load_weights(loop.policy, read_weights(newest, loop.policy), str(newest))
        loop.algorithm.optimizer.load_state(_read_optimizer(newest, loop.algorithm.optimizer))
        loop.load_counters(json.loads((newest / "counters.json").read_text(encoding="utf-8")))
        loop.load_environment(newest, trust)
    except RunError:
        raise
    except Exception as error:  # safetensors and pickle raise many types.
        cause = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RunError(
            f"the checkpoint {newest} is damaged: {cause}; delete it to resume from the previous checkpoint"
        ) from error
    return int(newest.name.removeprefix("iteration-"))


def _list_iterations(folder: Path) -> list[int]:
    names = [entry.name.removeprefix("iteration-") for entry in folder.glob("iteration-*")]
    return sorted(int(name) for name in names if name.isdigit())
