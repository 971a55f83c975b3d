"""Collect the rollouts of a run on the workers of an executor, in the background of the updates.

Each worker has its own environment, model and, with `--rollout engine`, its own engine. It receives the learner's weights
and plays a part of the episodes. The samples of an episode depend on its number only, so the rollout equals that of one
process. With `max_staleness` S, the rollout of an iteration is sampled with the weights of at most S updates earlier, while
the learner updates on previous ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

from palaestra.core.errors import ExecutorError
from palaestra.core.records import Failure, Listener
from palaestra.executors.base import Executor, Resources
from palaestra.rl.collection import join_rollouts
from palaestra.rl.loop import LoopConfig, load_weights
from palaestra.rl.rollouts import Rollout

if TYPE_CHECKING:
    import torch

    from palaestra.executors.workers import Shared


class Actor(Protocol):
    """The state of a worker: the loop of the run without its learner."""

    version: int | None
    """The number of updates of its weights; `None` before it has received any."""

    policy: Any

    def collect(self, first: int, episodes: int, version: int, prompts: Sequence[int]) -> Rollout: ...


@dataclass(frozen=True, slots=True)
class _Part:
    """Some episodes of an iteration, and the weights that sample them."""

    weights: Shared[dict[str, torch.Tensor]]
    version: int
    first: int
    episodes: int
    prompts: Sequence[int]


class RolloutWorkers:
    """Samples rollouts on the workers of an executor.

    Arguments:
        executor: is closed with the workers.
        resources: of each worker.
        make_actor: called once in each worker.
        listener: receives a notice for each lost worker.
    """

    def __init__(
        self,
        config: LoopConfig,
        executor: Executor,
        resources: Resources,
        make_actor: Callable[[], Actor],
        listener: Listener,
    ) -> None:
        self.config, self._executor, self._resources = config, executor, resources
        self._pool = executor.open_pool(make_actor, resources=resources, listener=listener)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rollouts")
        self._rollouts: dict[int, Future[Rollout]] = {}

    def collect(
        self,
        iteration: int,
        weights: dict[str, torch.Tensor] | Shared[dict[str, torch.Tensor]] | None,
        prompts: Mapping[int, Sequence[int]],
    ) -> Rollout:
        """Return the rollout of an iteration, and start the rollouts of the next `max_staleness` iterations.

        Arguments:
            weights: a copy of the learner's weights after `iteration - 1` updates, or a handle of it.
            prompts: the chosen prompts of iterations; see `TokenLoop.choose_prompts`.

        Raises:
            ExecutorError: the workers of some episodes died several times.
        """
        last = min(iteration + self.config.max_staleness, self.config.iterations)
        missing = [number for number in range(iteration, last + 1) if number not in self._rollouts]
        if missing:
            assert weights is not None
            shared = self._executor.share(weights)
            for number in missing:
                self._rollouts[number] = self._thread.submit(
                    self._play, number, shared, iteration - 1, prompts.get(number, ())
                )
            self._rollouts[missing[-1]].add_done_callback(lambda _: shared.release())
        return self._rollouts.pop(iteration).result()

    def close(self) -> None:
        """Stop the workers. Rollouts in progress are lost."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._pool.close()
        self._thread.shutdown(wait=True)
        self._executor.close()

    def _play(
        self, iteration: int, weights: Shared[dict[str, torch.Tensor]], version: int, prompts: Sequence[int]
    ) -> Rollout:
        episodes, group_size = self.config.episodes, self.config.group_size
        groups = episodes // group_size
        count = min(groups, self._executor.count_workers(self._resources))
        bounds = [groups * k // count * group_size for k in range(count + 1)]
        first = (iteration - 1) * episodes
        parts = [
            _Part(weights, version, first + begin, end - begin, prompts[begin // group_size : end // group_size])
            for begin, end in pairwise(bounds)
        ]
        rollouts = []
        for result in self._pool.map(_play_part, parts):
            if isinstance(result, Failure):
                raise ExecutorError(f"the rollout of iteration {iteration} failed: {result.message}")
            rollouts.append(result)
        return join_rollouts(rollouts)


def _play_part(actor: Actor, part: _Part) -> Rollout:
    """Play some episodes in a worker."""
    if actor.version != part.version:
        load_weights(actor.policy, part.weights.get(), "of the learner")
        actor.version = part.version
    rollout = actor.collect(part.first, part.episodes, part.version, part.prompts)
    rollout.version = part.version
    return rollout
