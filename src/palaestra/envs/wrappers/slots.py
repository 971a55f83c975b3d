"""A vector environment of single environments in which one may fail without affecting the others."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array

from palaestra.core.errors import EnvError
from palaestra.core.seeding import Seeds
from palaestra.envs.wrappers.checked import ReturnError, check_inside, describe_failure

GIVE_UP = 3
"""Number of consecutive failures of a slot, without a successful step between, that end the run."""


class SlotVectorEnv(VectorEnv[Any, Any, Any]):
    """Environments of one kind in slots, stepped one after the other.

    It is like Gymnasium's `SyncVectorEnv` with `AutoresetMode.SAME_STEP`, with one difference: if an environment raises
    or its reward is not finite, only its own episode ends. `infos["failed"]` marks the slot, `infos["failures"]` has the
    causes, and the environment is made again. The environments' own infos are left out. A result that violates
    Gymnasium's API, such as a tuple of the wrong length, raises a `ReturnError`.

    Arguments:
        make: makes one environment.
        num_envs: number of slots.
        name: the name in messages.
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(self, make: Callable[[], gymnasium.Env[Any, Any]], num_envs: int, name: str = "environment") -> None:
        self.make, self.num_envs, self.name = make, num_envs, name
        self.envs = [check_inside(make()) for _ in range(num_envs)]
        self.spec = self.envs[0].spec
        self.single_observation_space = self.envs[0].observation_space
        self.single_action_space = self.envs[0].action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._observations: list[Any] = [None] * num_envs
        self._breaks = [0] * num_envs
        self._remade = [0] * num_envs
        self._seeds = [0] * num_envs

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all slots. With a single seed, slot k starts from seed + k; a list has one seed per slot."""
        seeds = seed if isinstance(seed, list) else [None if seed is None else seed + k for k in range(self.num_envs)]
        if len(seeds) != self.num_envs:
            raise EnvError(f"{self.name} needs one seed per slot, {self.num_envs} in all; got {len(seeds)}")
        for slot, slot_seed in enumerate(seeds):
            if slot_seed is not None:
                self._seeds[slot], self._remade[slot] = slot_seed, 0
            try:
                self._observations[slot], _ = self.envs[slot].reset(seed=slot_seed, options=options)
            except ReturnError:
                raise
            except Exception as error:  # User code may raise anything.
                raise EnvError(f"{describe_failure(self.name, error)} in reset of slot {slot}") from error
        return self._batch(), {}

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        rewards = np.zeros(self.num_envs)
        terminated, truncated = np.zeros(self.num_envs, dtype=bool), np.zeros(self.num_envs, dtype=bool)
        failed = np.zeros(self.num_envs, dtype=bool)
        final_obs = np.full(self.num_envs, None, dtype=object)
        failures: list[str] = []
        for slot, env in enumerate(self.envs):
            try:
                observation, rewards[slot], terminated[slot], truncated[slot], _ = env.step(actions[slot])
                self._breaks[slot] = 0
            except ReturnError:
                raise
            except Exception as error:
                failed[slot] = truncated[slot] = True
                terminated[slot], rewards[slot] = False, 0.0
                failures.append(f"{describe_failure(self.name, error)} in slot {slot}")
                observation = self._observations[slot]
                self._remake(slot, failures[-1])
            self._observations[slot] = observation
            if terminated[slot] or truncated[slot]:
                # Copy, because an environment may write its next observation into the same array.
                final_obs[slot] = copy.deepcopy(observation)
                self._observations[slot] = self._restart(slot, bool(failed[slot]))
        infos: dict[str, Any] = {}
        ended = terminated | truncated
        if ended.any():
            infos["final_obs"], infos["_final_obs"] = final_obs, ended
        if failures:
            infos["failed"], infos["failures"] = failed, failures
        return self._batch(), rewards, terminated, truncated, infos

    def close_extras(self, **kwargs: Any) -> None:
        for env in self.envs:
            env.close()

    def _restart(self, slot: int, remade: bool) -> Any:
        """Return the first observation of the slot's next episode. An environment that fails in its reset is made again."""
        while True:
            try:
                return self.envs[slot].reset(seed=self._fresh_seed(slot, remade))[0]
            except ReturnError:
                raise
            except Exception as error:
                self._remake(slot, f"{describe_failure(self.name, error)} in reset of slot {slot}")
                remade = True

    def _remake(self, slot: int, failure: str) -> None:
        self._breaks[slot] += 1
        if self._breaks[slot] >= GIVE_UP:
            raise EnvError(f"{failure}, for the {GIVE_UP}rd time in a row; it cannot be trained in")
        self._remade[slot] += 1
        with suppress(Exception):  # Closing a broken environment may fail as well.
            self.envs[slot].close()
        self.envs[slot] = check_inside(self.make())

    def _fresh_seed(self, slot: int, failed: bool) -> int | None:
        """Return the seed for a new environment; `None` for one that continues with its own generator."""
        if not failed:
            return None
        return Seeds(self._seeds[slot]).derive("remade", slot, self._remade[slot]).integer() % 2**31

    def _batch(self) -> Any:
        space = self.single_observation_space
        return concatenate(space, self._observations, create_empty_array(space, n=self.num_envs))  # type: ignore[arg-type]
