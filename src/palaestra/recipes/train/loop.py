"""The training loop: collect a rollout, update the policy, evaluate it. Also its checkpoints.

A loop owns the environment, the policy and the algorithm. The recipe stores its results.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import torch

from palaestra.core.errors import EnvError, RewardError, RunError
from palaestra.core.events import Event, Listener
from palaestra.core.records import Trajectory, Usage
from palaestra.core.secrets import mask_settings
from palaestra.core.seeding import Seeds
from palaestra.core.spaces import space_to_data
from palaestra.core.statistics import Mean, mean_interval
from palaestra.engines.cpu.kernels import select_matmul_kernels
from palaestra.envs.state import load_state, save_state
from palaestra.learn.collect import ControlCollector
from palaestra.learn.policies.control import ControlPolicy
from palaestra.learn.rollouts import Rollout
from palaestra.learn.sharding import to_share, to_whole
from palaestra.recipes.train.settings import TrainSettings, unwrap
from palaestra.runs.files import write_folder, write_json
from palaestra.runs.ledger import LedgerEntry
from palaestra.runs.trust import forget_pickle, is_own_pickle, record_pickle

if TYPE_CHECKING:
    from palaestra.runs.store import Store


MAX_FAILURES = 0.1
"""The fraction of the episodes of an iteration or an evaluation that may fail before the run stops."""
WEIGHTS, POLICY = "policy.safetensors", "policy.json"
ENVIRONMENT, PICKLE = "environment.json", "environment.pkl"
"""The files of a checkpoint."""
RECENT = 100
"""The number of episodes in the running mean of the returns, which `stop_at` refers to."""


class Loop(ABC):
    """The base class of the loops: counters, weights and their hash."""

    env: Any
    policy: Any
    algorithm: Any

    def __init__(self, settings: TrainSettings) -> None:
        self.settings, self.seeds = settings, Seeds(settings.seed)
        self.decisions = self.episodes = self.tokens = 0
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

    @abstractmethod
    def summarize(self, store: Store, iterations: int) -> dict[str, Any]:
        """The part of the summary that describes the evaluations."""

    @abstractmethod
    def save_model(self, folder: Path) -> None:
        """Save the trained model in `model/` of the run folder."""

    def close(self) -> None:  # noqa: B027  (optional)
        """Close the environments, for example running workspaces. The policy stays usable."""

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
        return {name: to_whole(tensor) for name, tensor in _list_trained(self.policy).items()}

    def save_policy(self, folder: Path) -> None:
        """Save the weights, and what `palaestra.load_policy` needs to build the policy without the environment."""
        from safetensors.torch import save_file

        save_file(self.weights(), folder / WEIGHTS)
        write_json(folder / POLICY, self.describe_policy())

    @abstractmethod
    def describe_policy(self) -> dict[str, Any]:
        """The properties of the policy that depend on the environment or the algorithm, as plain data."""

    def weights_sha256(self) -> str:
        digest = hashlib.sha256()
        for name, tensor in sorted(self.weights().items()):
            digest.update(name.encode())
            digest.update(tensor.cpu().float().numpy().tobytes())
        return digest.hexdigest()

    def counters(self) -> dict[str, Any]:
        return {
            "decisions": self.decisions, "episodes": self.episodes, "tokens": self.tokens, "failures": self.failures,
            "recent": list(self._recent), "stopped": self.stopped,
        }  # fmt: skip

    def load_counters(self, counters: Mapping[str, Any]) -> None:
        self.decisions, self.episodes = int(counters["decisions"]), int(counters["episodes"])
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
        """The metrics of held-out episodes. `returns` are the known returns; `what` is as in `_count`."""
        episodes, reward = len(rollout.first_sequences), mean_interval(returns)
        failed = episodes - len(returns)
        self._note_failures(rollout.failures[:failed], episodes, what, "held-out episodes failed")
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
                f"{len(failures)} of {total} {where}; first failure: {first}"
            )


def load_weights(policy: torch.nn.Module, weights: Mapping[str, torch.Tensor], where: str) -> None:
    """Load the tensors that training changes into a policy.

    Raises:
        RunError: the checkpoint at `where` belongs to another policy.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in _list_trained(policy).items()}
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


def _list_trained(policy: torch.nn.Module) -> dict[str, torch.Tensor]:
    trained = {name: p for name, p in policy.named_parameters() if p.requires_grad}
    buffers = {name: b for name, b in policy.named_buffers() if name in ("seen", "mean_F", "square_F")}
    return {**trained, **buffers}


def measure_spread(rollout: Rollout, returns: Sequence[float], prefix: str = "") -> dict[str, float]:
    """The minimum and maximum return of some episodes, and the number of truncated episodes."""
    if not returns:
        return {}
    cut = rollout.num_truncated
    if rollout.truncated_B is not None:
        cut = int(rollout.truncated_B[rollout.first_sequences].sum())
    spread = {"reward_min": min(returns), "reward_max": max(returns), "cut_episodes": float(cut)}
    return {f"{prefix}{name}": value for name, value in spread.items()}


def reward_interval(rollout: Rollout) -> Mean:
    """The mean return with its interval. Groups are independent; the episodes of one group are not."""
    plain = mean_interval(rollout.episode_returns)
    groups: dict[int, list[float]] = {}
    if rollout.group_B is not None and rollout.valid_B is not None:
        known = [sequence for sequence in rollout.first_sequences if bool(rollout.valid_B[sequence])]
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


class ControlLoop(Loop):
    """Trains a control policy in a classic environment."""

    policy: ControlPolicy

    def __init__(self, settings: TrainSettings, env: Any, policy: ControlPolicy, algorithm: Any) -> None:
        super().__init__(settings)
        self.env, self.policy, self.algorithm = env, policy, algorithm
        self.collector = ControlCollector(env, policy)
        self._started = False
        self._is_data: bool | None = None  # Whether the state of the environment is data; unknown before the first.

    def iterate(
        self, iteration: int, progress_remaining: float, listener: Listener
    ) -> tuple[dict[str, float], list[Trajectory]]:
        settings = self.settings
        generator = torch.Generator().manual_seed(self.seeds.derive("act", iteration).integer())
        with self._select_kernels():
            self.policy.train()
            if self.algorithm.config.whole_episodes:
                seed = self.seeds.derive("episodes", iteration).integer()
                rollout = self.collector.collect_episodes(
                    self.algorithm.config.group_size, seed, generator, _max_steps(self.env)
                )
            else:
                if not self._started:
                    self.collector.start(self.seeds.derive("environment", iteration).integer() % 2**31)
                    self._started = True
                rollout = self.collector.collect(unwrap(settings.n_steps), generator)
            self.policy.eval()
            metrics = self._count(rollout, "environment")
            if settings.reward_scale != 1.0:
                rollout.rewards_BT = rollout.rewards_BT * unwrap(settings.reward_scale)
            start = time.perf_counter()
            metrics |= self.algorithm.update(rollout, iteration, progress_remaining)
        metrics |= {name: value for name, value in rollout.metrics.items() if name.startswith("seconds_")}
        metrics["seconds_update"] = time.perf_counter() - start
        spent = sum(value for name, value in metrics.items() if name.startswith("seconds_"))
        metrics["steps_per_second"] = rollout.decisions / spent
        kept = [
            Trajectory(settings.env, settings.seed, (value,), infos=({"length": length},))
            for value, length in list(zip(rollout.episode_returns, rollout.episode_lengths, strict=True))[
                : settings.keep_trajectories
            ]
        ]
        return metrics, kept

    def evaluate(
        self, iteration: int, store: Store | None, listener: Listener
    ) -> tuple[dict[str, float], LedgerEntry | None]:
        """Play whole episodes with the most likely actions, in separate environments."""
        from palaestra.envs.factory import make_control_env

        listener(Event("evaluate", 0, 0, iteration))
        env = make_control_env(
            self.settings.env, unwrap(self.settings.evaluation), self.settings.options, own_seeds=True
        )
        memory = self.policy.memory
        try:
            seed = self.seeds.derive("evaluation").integer()
            with self._select_kernels():
                self.policy.eval()
                collector = ControlCollector(env, self.policy)
                rollout = collector.collect_episodes(1, seed, torch.Generator(), _max_steps(env), greedy=True)
        finally:
            self.policy.memory = memory
            env.close()
        metrics = self._measure(rollout, rollout.sequence_returns(), "environment")
        return metrics, LedgerEntry("", unwrap(self.settings.policy), rollout.num_sequences)

    def describe_policy(self) -> dict[str, Any]:
        spaces = {"observation_space": self.policy.observation_space, "action_space": self.policy.head.space}
        return {name: space_to_data(space) for name, space in spaces.items()}

    def _select_kernels(self) -> AbstractContextManager[None]:
        """Use the CPU kernels that are fastest for the policy. Torch's own convolutions are slower than oneDNN's."""
        return select_matmul_kernels(small=True) if self.policy.trunk is None else nullcontext()

    def summarize(self, store: Store, iterations: int) -> dict[str, Any]:
        summary: dict[str, Any] = {"recent_return": self.recent_return if len(self._recent) == RECENT else None}
        return summary | (summarize_returns(store.metrics(), iterations) if self.settings.evaluation else {})

    def counters(self) -> dict[str, Any]:
        return {**super().counters(), "environment": self._describe_env()}

    def load_counters(self, counters: Mapping[str, Any]) -> None:
        for name, stored in counters.get("environment", {}).items():
            if (value := self._describe_env()[name]) != stored:
                raise RunError(
                    f"setting '{name}' is {value!r} in settings.json; the checkpoint is in the middle of episodes with "
                    f"{stored!r}: restore it, or start a new run"
                )
        super().load_counters(counters)

    def _describe_env(self) -> dict[str, Any]:
        """The settings that the environment is made from, without secrets."""
        settings = self.settings
        options: list[str] = mask_settings(list(settings.env_options))
        return {"env": settings.env, "env_options": options, "num_envs": settings.num_envs}

    def save_environment(self, folder: Path) -> None:
        """Save the environment and the episodes in progress, so that a resumed run continues them.

        The state is data in `environment.json`, or a pickle if the environment has objects that only a pickle can hold. An
        environment that cannot be pickled either is reset here with a seed of the run. An uninterrupted run does the same,
        so both have the same result.
        """
        import cloudpickle

        if self.algorithm.config.whole_episodes:
            return
        state = {"env": self.env, "collector": self.collector.state()}
        if self._is_data is not False:
            try:
                text = save_state(state)
                self._is_data = self._is_data or self._check_state(text)
            except Exception:  # Not only StateError: a copy of the user's environment may raise anything.
                self._is_data = False
        if self._is_data:
            (folder / ENVIRONMENT).write_text(text, encoding="utf-8")
            return
        if not _loses_state(self.env):
            with suppress(Exception):  # Pickling may raise anything.
                pickled: bytes = cloudpickle.dumps(state)
                record_pickle(pickled)
                (folder / PICKLE).write_bytes(pickled)
                return
        self._started = False

    def _check_state(self, text: str) -> bool:
        """Whether a fresh environment with a stored state has the same state."""
        fresh = self._make_env()
        try:
            return save_state(load_state(text, {"env": fresh})) == text
        finally:
            fresh.close()

    def _make_env(self) -> Any:
        from palaestra.envs.factory import make_control_env

        return make_control_env(self.settings.env, unwrap(self.settings.num_envs), self.settings.options)

    def load_environment(self, folder: Path, trust: bool) -> None:
        if (folder / ENVIRONMENT).exists():
            loaded = load_state((folder / ENVIRONMENT).read_text(encoding="utf-8"), {"env": self.env})
            self._is_data = True
        elif (folder / PICKLE).exists():
            pickled = (folder / PICKLE).read_bytes()
            if not trust and not is_own_pickle(pickled):
                raise RunError(
                    f"{folder / PICKLE} is a pickle, which can run any code, and no run of yours on this machine has "
                    "written it; if you trust the run folder, resume it with --trust (in Python, trust=True)"
                )
            loaded = pickle.loads(pickled)
        else:
            return
        self.env = loaded["env"]
        self.collector = ControlCollector(self.env, self.policy)
        self.collector.load_state(loaded["collector"])
        self._started = True

    def save_model(self, folder: Path) -> None:
        write_folder(folder / "model", self.save_policy)


def _loses_state(env: Any) -> bool:
    """Whether a pickle of an environment only has its constructor's arguments (`gymnasium.utils.EzPickle`, as in Atari)."""
    for layer in getattr(env, "envs", (env,)):
        while layer is not None:
            if getattr(type(layer), "__getstate__", None) is gymnasium.utils.EzPickle.__getstate__:
                return True
            layer = layer.env if isinstance(layer, (gymnasium.Wrapper, gymnasium.vector.VectorWrapper)) else None
    return False


def _max_steps(env: Any) -> int:
    """The maximum number of steps of an episode, from the environment's spec."""
    spec = getattr(env, "spec", None)
    return int(getattr(spec, "max_episode_steps", None) or 10_000)


def save_checkpoint(folder: Path, iteration: int, loop: Loop, last: bool) -> None:
    """Write the checkpoint of an iteration atomically and remove all but the newest two.

    It contains the weights, the optimizer, the environment state and the counters. The last checkpoint of a run has no
    environment state.
    """
    from safetensors.torch import save_file

    def write(target: Path) -> None:
        loop.save_policy(target)
        save_file({k: v.clone() for k, v in loop.algorithm.optimizer.state().items()}, target / "optimizer.safetensors")
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
    from safetensors.torch import load_file

    newest = find_newest_checkpoint(folder)
    if newest is None:
        return 0
    try:
        load_weights(loop.policy, load_file(newest / WEIGHTS), str(newest))
        loop.algorithm.optimizer.load_state(load_file(newest / "optimizer.safetensors"))
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
