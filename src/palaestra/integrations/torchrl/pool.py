"""A pool of environments in which each member continues as soon as its own step is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from tensordict import NonTensorData, NonTensorStack, TensorDictBase
from torchrl.envs import EnvBase, ThreadingAsyncEnvPool

from palaestra.core.errors import EnvError


class MLGymPool(ThreadingAsyncEnvPool):  # type: ignore[misc]  # TorchRL has no types.
    """TorchRL's threaded `AsyncEnvPool` for environments of `make_mlgym`.

    It differs from TorchRL's pool in four ways. `rollout`, `step` and `step_and_maybe_reset` work with members that
    have batches: the batch size is `(members, num_envs)`, that of a rollout `(members, num_envs, steps)`. Results are
    stacked lazily, because conversations differ in length. `set_seed` works and gives every member its own seed.
    Closing the pool, also through `LLMCollector.shutdown`, closes the members and their workspaces.

    Arguments:
        env_makers: functions that make the members, or the members themselves.
        create_env_kwargs: keyword arguments of all makers, or a list with one dictionary per maker.

    Example:
        >>> pool = MLGymPool([partial(make_mlgym, tasks=["prisoners_dilemma", "grid_maze"])] * 8)  # doctest: +SKIP
        >>> collector = LLMCollector(pool, policy=policy, yield_completed_trajectories=True)  # doctest: +SKIP
    """

    def __init__(
        self,
        env_makers: Sequence[Callable[..., EnvBase] | EnvBase],
        *,
        create_env_kwargs: dict[str, Any] | list[dict[str, Any]] | None = None,
    ) -> None:
        super().__init__(env_makers, stack="lazy", create_env_kwargs=create_env_kwargs)
        self.is_closed = False  # TorchRL marks a new pool as closed, and a collector does not close it then.

    def set_seed(self, seed: int | None = None, static_seed: bool = False) -> int | None:
        """Seed the members in order, as `SerialEnv` does.

        Arguments:
            static_seed: give all members the same seed.

        Returns:
            the next unused seed.
        """
        for env in self.envs:
            seed = env.set_seed(seed, static_seed=static_seed)
        return seed

    def reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self._check_open()
        return super().reset(tensordict, **kwargs)

    def step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Step all members. The batch may have more dimensions than the pool."""
        self._check_open()
        self.async_step_send(self._set_indices(tensordict))
        return self.async_step_recv(min_get=self.num_envs)

    def step_and_maybe_reset(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """Step all members and reset those whose episode has ended."""
        self._check_open()
        self.async_step_and_maybe_reset_send(self._set_indices(tensordict))
        stepped: tuple[TensorDictBase, TensorDictBase] = self.async_step_and_maybe_reset_recv(min_get=self.num_envs)
        return stepped

    def _set_indices(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Set the member index of each row, in the shape of the batch."""
        rows = [[NonTensorData(k)] * self.env_batch_sizes[k].numel() for k in range(self.num_envs)]
        tensordict.set(self._env_idx_key, NonTensorStack(*(NonTensorStack(*row) for row in rows)))
        return tensordict

    def _maybe_make_tensordict(self, tensordict: Any, env_index: Any, make_if_none: bool) -> tuple[Any, list[int]]:
        # TorchRL flattens the batch and would treat every slot of a member as a member.
        if env_index is None and tensordict.ndim > 1:
            return tensordict, [self._number(member) for member in tensordict.unbind(0)]
        result: tuple[Any, list[int]] = super()._maybe_make_tensordict(tensordict, env_index, make_if_none)
        return result

    def _sort_results(self, results: list[Any], *others: list[Any]) -> tuple[Any, ...]:
        numbers = [self._number(member) for member in results]
        order = sorted(range(len(results)), key=numbers.__getitem__)
        return (*([several[k] for k in order] for several in (results, *others)), numbers)

    def _number(self, member: TensorDictBase) -> int:
        """Read the index of a member from its data."""
        number = member.get(self._env_idx_key).tolist()
        while isinstance(number, list):
            number = number[0]
        return int(number)

    def _check_open(self) -> None:
        if self.is_closed:
            raise EnvError("this pool of environments is closed; make another")

    def shutdown(self) -> None:
        """Wait for running steps, stop the threads and close the members."""
        super().shutdown()
        with ExitStack() as stack:  # If closing one raises, the others are still closed.
            for env in self.envs:
                stack.callback(env.close, raise_if_closed=False)
        self.is_closed = True
