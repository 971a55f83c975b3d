"""The training loop of control policies in classic environments, with the state of the environment in checkpoints."""

from __future__ import annotations

import pickle
import time
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import torch

from palaestra.core.errors import RunError
from palaestra.core.records import Event, Json, Listener, Trajectory
from palaestra.core.spaces import space_to_data
from palaestra.core.text import mask_settings
from palaestra.envs.state import load_state, save_state
from palaestra.kernels.cpu import select_matmul_kernels
from palaestra.rl.collection import ControlCollector
from palaestra.rl.loop import ENVIRONMENT, PICKLE, RECENT, Loop, LoopConfig
from palaestra.rl.policies.control import ControlPolicy
from palaestra.runs.files import write_folder
from palaestra.runs.provenance import LedgerEntry
from palaestra.runs.trust import is_own_pickle, record_pickle

if TYPE_CHECKING:
    from palaestra.rl.algorithms import Algorithm
    from palaestra.runs.store import Store


class RewardScale:
    """Divides rewards by the standard deviation of the discounted returns so far, as Gymnasium's `NormalizeReward`.

    Arguments:
        moments: count, mean and variance of the returns. It is a buffer of the policy and changed in place.
        gamma: discount of the returns.
        slots: number of environments.
    """

    LIMIT = 10.0
    """Maximum absolute value of a scaled reward."""

    def __init__(self, moments: torch.Tensor, gamma: float, slots: int) -> None:
        self.moments, self.gamma, self.returns_B = moments, gamma, np.zeros(slots)

    def scale(self, rewards_BT: torch.Tensor, mask_BT: torch.Tensor, ended_BT: torch.Tensor) -> torch.Tensor:
        """The scaled rewards of a rollout, whose slots continue those of the last one."""
        rewards, mask, ended = (tensor.cpu().numpy() for tensor in (rewards_BT.double(), mask_BT, ended_BT))
        scales = np.ones(rewards.shape[1])
        for t in range(rewards.shape[1]):
            self.returns_B = np.where(mask[:, t], self.returns_B * self.gamma + rewards[:, t], self.returns_B)
            self._add(self.returns_B[mask[:, t]])
            self.returns_B[ended[:, t]] = 0.0
            scales[t] = 1.0 / np.sqrt(float(self.moments[2]) + 1e-8)
        scaled = np.clip(rewards * scales, -self.LIMIT, self.LIMIT)
        return torch.from_numpy(scaled.astype(np.float32)).to(rewards_BT.device)

    def _add(self, values: np.ndarray) -> None:
        """Add values to the moments, by the formula for two parts of a sample."""
        if not len(values):
            return
        count, mean, variance = self.moments.tolist()
        total, change = count + len(values), float(values.mean()) - mean
        squares = variance * count + values.var() * len(values) + change**2 * count * len(values) / total
        self.moments.copy_(torch.tensor([total, mean + change * len(values) / total, squares / total]))


class ControlLoop(Loop):
    """Trains a control policy in a classic environment."""

    policy: ControlPolicy

    def __init__(self, config: LoopConfig, env: Any, policy: ControlPolicy, algorithm: Algorithm) -> None:
        super().__init__(config)
        self.env, self.policy, self.algorithm = env, policy, algorithm
        self.collector = ControlCollector(env, policy)
        moments, gamma = getattr(policy, "return_moments", None), getattr(algorithm.config, "gamma", 0.99)
        self.scale = None if moments is None else RewardScale(moments, gamma, config.num_envs)
        self._started = False
        self._is_data: bool | None = None  # Whether the state of the environment is data; unknown before the first.

    def iterate(
        self, iteration: int, progress_remaining: float, listener: Listener
    ) -> tuple[dict[str, float], list[Trajectory]]:
        config = self.config
        generator = torch.Generator().manual_seed(self.seeds.derive("act", iteration).integer())
        with self._select_kernels():
            self.policy.train()
            if self.scale is not None and (self.algorithm.config.whole_episodes or not self._started):
                self.scale.returns_B[:] = 0.0
            if self.algorithm.config.whole_episodes:
                seed = self.seeds.derive("episodes", iteration).integer()
                rollout = self.collector.collect_episodes(
                    self.algorithm.config.group_size, seed, generator, _max_steps(self.env)
                )
            else:
                if not self._started:
                    self.collector.start(self.seeds.derive("environment", iteration).integer() % 2**31)
                    self._started = True
                rollout = self.collector.collect(config.n_steps, generator)
            self.policy.eval()
            metrics = self._count(rollout, "environment")
            if self.scale is not None:
                rollout.rewards_BT = self.scale.scale(rollout.rewards_BT, rollout.mask_BT, rollout.ended_BT)
            if config.reward_scale != 1.0:
                rollout.rewards_BT = rollout.rewards_BT * config.reward_scale
            start = time.perf_counter()
            metrics |= self.algorithm.update(rollout, iteration, progress_remaining)
        metrics |= {name: value for name, value in rollout.metrics.items() if name.startswith("seconds_")}
        metrics["seconds_update"] = time.perf_counter() - start
        spent = sum(value for name, value in metrics.items() if name.startswith("seconds_"))
        metrics["steps_per_second"] = rollout.num_actions / spent
        kept = [
            Trajectory(config.env, config.seed, (value,), infos=({"length": length},))
            for value, length in list(zip(rollout.stats.returns, rollout.stats.lengths, strict=True))[
                : config.keep_trajectories
            ]
        ]
        return metrics, kept

    def evaluate(
        self, iteration: int, store: Store | None, listener: Listener
    ) -> tuple[dict[str, float], LedgerEntry | None]:
        """Play whole episodes with the most likely actions, in separate environments."""
        from palaestra.envs.factory import make_control_env

        listener(Event("evaluate", 0, 0, iteration))
        config = self.config
        env = make_control_env(config.env, config.evaluation, dict(config.env_kwargs), own_seeds=True)
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
        metrics = self._measure(rollout, rollout.returns_B[rollout.valid_B].tolist(), "environment")
        return metrics, LedgerEntry("", config.policy, rollout.num_sequences)

    def summarize(self, store: Store, iterations: int) -> Json:
        recent = self.recent_return if len(self._recent) == RECENT else None
        return {"recent_return": recent, **super().summarize(store, iterations)}

    def describe_policy(self) -> Json:
        spaces = {"observation_space": self.policy.observation_space, "action_space": self.policy.head.space}
        return {name: space_to_data(space) for name, space in spaces.items()}

    def _select_kernels(self) -> AbstractContextManager[None]:
        """Use the CPU kernels that are fastest for the policy. Torch's own convolutions are slower than oneDNN's."""
        return select_matmul_kernels(small=True) if self.policy.trunk is None else nullcontext()

    def counters(self) -> Json:
        returns = {} if self.scale is None else {"discounted_returns": self.scale.returns_B.tolist()}
        return {**super().counters(), "environment": self._describe_env(), **returns}

    def load_counters(self, counters: Json) -> None:
        for name, stored in counters.get("environment", {}).items():
            if (value := self._describe_env()[name]) != stored:
                raise RunError(
                    f"setting '{name}' is {value!r} in settings.json; the checkpoint is in the middle of episodes with "
                    f"{stored!r}: restore it, or start a new run"
                )
        super().load_counters(counters)
        if self.scale is not None:
            self.scale.returns_B = np.array(counters["discounted_returns"])

    def _describe_env(self) -> Json:
        """The settings that the environment is made from, without secrets."""
        config = self.config
        options = mask_settings(dict(config.env_kwargs))
        return {"env": config.env, "env_kwargs": options, "num_envs": config.num_envs}

    def save_environment(self, folder: Path) -> None:
        """Save the environment and the episodes in progress, so that a resumed run continues them.

        The state is data in `environment.json`, or a pickle if the environment has objects that only a pickle can hold. An
        environment that cannot be pickled either is reset here with a seed of the run. An uninterrupted run does the same,
        so both have the same result.
        """
        import cloudpickle

        if self.algorithm.config.whole_episodes:
            return
        if getattr(getattr(self.env, "unwrapped", None), "restarts_at_checkpoints", False):
            self._started = False
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

        return make_control_env(self.config.env, self.config.num_envs, dict(self.config.env_kwargs))

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
