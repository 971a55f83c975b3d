"""Train a control policy in a classic environment."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

from palaestra.core.events import Event, Listener
from palaestra.core.records import Trajectory
from palaestra.engines.cpu.kernels import select_matmul_kernels
from palaestra.learn.collect import ControlCollector
from palaestra.learn.policies.control import ControlPolicy
from palaestra.recipes.train.loop import RECENT, Loop, summarize_returns
from palaestra.recipes.train.settings import TrainSettings, unwrap
from palaestra.runs.ledger import LedgerEntry

if TYPE_CHECKING:
    from pathlib import Path

    from palaestra.runs.store import Store


class ControlLoop(Loop):
    """Trains a control policy in a classic environment."""

    policy: ControlPolicy

    def __init__(self, settings: TrainSettings, env: Any, policy: ControlPolicy, algorithm: Any) -> None:
        super().__init__(settings)
        self.env, self.policy, self.algorithm = env, policy, algorithm
        self.collector = ControlCollector(env, policy)
        self._started = False

    def iterate(
        self, iteration: int, progress_remaining: float, listener: Listener
    ) -> tuple[dict[str, float], list[Trajectory]]:
        settings = self.settings
        generator = torch.Generator().manual_seed(self.seeds.derive("act", iteration).integer())
        with select_matmul_kernels(small=True):
            self.policy.train()
            if self.algorithm.config.group_size > 1:
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

    def evaluate(self, iteration: int, store: Store, listener: Listener) -> tuple[dict[str, float], LedgerEntry | None]:
        """Play whole episodes with the most likely actions, in separate environments."""
        from palaestra.envs.factory import make_control_env

        listener(Event("evaluate", 0, 0, iteration))
        env = make_control_env(
            self.settings.env, unwrap(self.settings.evaluation), self.settings.options, own_seeds=True
        )
        memory = self.policy.memory
        try:
            seed = self.seeds.derive("evaluation").integer()
            with select_matmul_kernels(small=True):
                self.policy.eval()
                collector = ControlCollector(env, self.policy)
                rollout = collector.collect_episodes(1, seed, torch.Generator(), _max_steps(env), greedy=True)
        finally:
            self.policy.memory = memory
            env.close()
        metrics = self._measure(rollout, rollout.sequence_returns(), "environment")
        return metrics, LedgerEntry("", unwrap(self.settings.policy), rollout.num_sequences)

    def summarize(self, store: Store, iterations: int) -> dict[str, Any]:
        summary: dict[str, Any] = {"recent_return": self.recent_return if len(self._recent) == RECENT else None}
        return summary | (summarize_returns(store.metrics(), iterations) if self.settings.evaluation else {})

    def environment_state(self) -> bytes | None:
        """The pickled environment, so that a resumed run continues its episodes.

        An environment that cannot be pickled is reset here with a seed of the run. An uninterrupted run does the same,
        so both have the same result.
        """
        import cloudpickle

        if self.algorithm.config.group_size > 1:
            return None
        try:
            pickled: bytes = cloudpickle.dumps({"env": self.env, "collector": self.collector.state()})
            return pickled
        except Exception:  # Pickling may raise anything.
            self._started = False
            return None

    def load_environment_state(self, state: bytes) -> None:
        import pickle

        loaded = pickle.loads(state)
        self.env = loaded["env"]
        self.collector = ControlCollector(self.env, self.policy)
        self.collector.load_state(loaded["collector"])
        self._started = True

    def save_model(self, folder: Path) -> None:
        from safetensors.torch import save_file

        from palaestra.runs.files import write_folder

        write_folder(folder / "model", lambda target: save_file(self.weights(), target / "policy.safetensors"))


def _max_steps(env: Any) -> int:
    """The maximum number of steps of an episode, from the environment's spec."""
    spec = getattr(env, "spec", None)
    return int(getattr(spec, "max_episode_steps", None) or 10_000)
