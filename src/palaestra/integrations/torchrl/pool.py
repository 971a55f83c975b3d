"""Environments side by side, of which each goes on as soon as its own step is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from torchrl.envs import EnvBase, ThreadingAsyncEnvPool


class MLGymPool(ThreadingAsyncEnvPool):  # type: ignore[misc]  # TorchRL has no types.
    """TorchRL's `AsyncEnvPool` in threads, for environments of `make_mlgym`.

    It is other than TorchRL's own in three things: what its members say is stacked lazily, as conversations differ in
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

    def shutdown(self) -> None:
        """Wait for the steps that are under way, end the threads, and close the members."""
        super().shutdown()
        with ExitStack() as stack:  # Where closing one raises, the others are closed before it is raised.
            for env in self.envs:
                stack.callback(env.close, raise_if_closed=False)
        self.is_closed = True
