"""Environments side by side, of which each goes on as soon as its own step is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from tensordict import NonTensorData, NonTensorStack, TensorDictBase
from torchrl.envs import EnvBase, ThreadingAsyncEnvPool

from palaestra.core.errors import EnvError


class MLGymPool(ThreadingAsyncEnvPool):  # type: ignore[misc]  # TorchRL has no types.
    """TorchRL's `AsyncEnvPool` in threads, for environments of `make_mlgym`.

    It is other than TorchRL's own in four things: `rollout`, `step` and `step_and_maybe_reset` work, whose members have
    batches of their own: the batch is `(members, num_envs)`, and that of a rollout `(members, num_envs, steps)`; what its members say is stacked lazily, as conversations differ in
    length; `set_seed` works, and gives every member a seed of its own; and closing it closes the members, so that
    no workspace is left, also where a collector does it (`LLMCollector.shutdown`).

    Arguments:
        env_makers: what makes a member, for each of them; or the members.
        create_env_kwargs: arguments of all makers, or of each.

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
        self.is_closed = False  # A collector leaves alone what is closed, and TorchRL takes a pool for that.

    def set_seed(self, seed: int | None = None, static_seed: bool = False) -> int | None:
        """Seed the members one after the other, as `SerialEnv` does.

        Arguments:
            static_seed: give all of them the same.

        Returns:
            the seed for whoever comes next.
        """
        for env in self.envs:
            seed = env.set_seed(seed, static_seed=static_seed)
        return seed

    def reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self._check_open()
        return super().reset(tensordict, **kwargs)

    def step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Step all members. As TorchRL's, but the batch may have more dimensions than the pool."""
        self._check_open()
        self.async_step_send(self._numbered(tensordict))
        return self.async_step_recv(min_get=self.num_envs)

    def step_and_maybe_reset(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """Step all members, and reset those whose episode is over."""
        self._check_open()
        self.async_step_and_maybe_reset_send(self._numbered(tensordict))
        stepped: tuple[TensorDictBase, TensorDictBase] = self.async_step_and_maybe_reset_recv(min_get=self.num_envs)
        return stepped

    def _numbered(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write which member each row is for, in the shape of the batch."""
        rows = [[NonTensorData(k)] * self.env_batch_sizes[k].numel() for k in range(self.num_envs)]
        tensordict.set(self._env_idx_key, NonTensorStack(*(NonTensorStack(*row) for row in rows)))
        return tensordict

    def _maybe_make_tensordict(self, tensordict: Any, env_index: Any, make_if_none: bool) -> tuple[Any, list[int]]:
        # TorchRL flattens the batch, and so takes every slot of a member for a member.
        if env_index is None and tensordict.ndim > 1:
            return tensordict, [self._number(member) for member in tensordict.unbind(0)]
        made: tuple[Any, list[int]] = super()._maybe_make_tensordict(tensordict, env_index, make_if_none)
        return made

    def _sort_results(self, results: list[Any], *others: list[Any]) -> tuple[Any, ...]:
        numbers = [self._number(member) for member in results]
        order = sorted(range(len(results)), key=numbers.__getitem__)
        return (*([several[k] for k in order] for several in (results, *others)), numbers)

    def _number(self, member: TensorDictBase) -> int:
        """The number of a member that is in its data, in every slot."""
        number = member.get(self._env_idx_key).tolist()
        while isinstance(number, list):
            number = number[0]
        return int(number)

    def _check_open(self) -> None:
        if self.is_closed:
            raise EnvError("this pool of environments is closed; make another")

    def shutdown(self) -> None:
        """Wait for the steps that are under way, end the threads, and close the members."""
        super().shutdown()
        with ExitStack() as stack:  # Where closing one raises, the others are closed before it is raised.
            for env in self.envs:
                stack.callback(env.close, raise_if_closed=False)
        self.is_closed = True
