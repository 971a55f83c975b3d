"""Wrappers for the user's environments: `SlotVectorEnv` runs several, `CheckedEnv` checks their return values."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorWrapper
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from palaestra.core.errors import EnvError
from palaestra.core.registry import describe_error, describe_location
from palaestra.core.seeding import Seeds
from palaestra.envs.base import GymEnv, GymSpace, GymVectorEnv, Info, ResetOptions

_GIVE_UP = 3
"""Number of consecutive failures of a slot that end the run."""


class SlotVectorEnv(GymVectorEnv):
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

    def __init__(self, make: Callable[[], GymEnv], num_envs: int, name: str = "environment") -> None:
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

    def reset(self, *, seed: int | list[int | None] | None = None, options: ResetOptions = None) -> tuple[Any, Info]:
        """Reset all slots. With a single seed, slot k starts from seed + k; a list has one seed per slot."""
        seeds = seed if isinstance(seed, list) else [None if seed is None else seed + k for k in range(self.num_envs)]
        if len(seeds) != self.num_envs:
            raise EnvError(f"{self.name} needs one seed per slot, {self.num_envs} in total; got {len(seeds)}")
        for slot, slot_seed in enumerate(seeds):
            if slot_seed is not None:
                self._seeds[slot], self._remade[slot] = slot_seed, 0
            try:
                self._observations[slot], _ = self.envs[slot].reset(seed=slot_seed, options=options)
            except (ReturnError, KeyboardInterrupt):
                raise
            except BaseException as error:  # User code may raise anything, also SystemExit.
                raise EnvError(f"{describe_failure(self.name, error)} in reset of slot {slot}") from error
        return self._batch(), {}

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, Info]:
        rewards = np.zeros(self.num_envs)
        terminated, truncated = np.zeros(self.num_envs, dtype=bool), np.zeros(self.num_envs, dtype=bool)
        failed = np.zeros(self.num_envs, dtype=bool)
        final_obs = np.full(self.num_envs, None, dtype=object)
        failures: list[str] = []
        for slot, env in enumerate(self.envs):
            try:
                observation, rewards[slot], terminated[slot], truncated[slot], _ = env.step(actions[slot])
                self._breaks[slot] = 0
            except (ReturnError, KeyboardInterrupt):
                raise
            except BaseException as error:
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
        infos: Info = {}
        ended = terminated | truncated
        if ended.any():
            infos["final_obs"], infos["_final_obs"] = final_obs, ended
        if failures:
            infos["failed"], infos["failures"] = failed, failures
        return self._batch(), rewards, terminated, truncated, infos

    @property
    def bootstrap_truncated(self) -> bool:
        """Whether the critic estimates the rewards after a truncated episode: by default true, as after a `TimeLimit`."""
        return read_bootstrap(self.envs[0], True)

    def close_extras(self, **kwargs: Any) -> None:
        for env in self.envs:
            env.close()

    def _restart(self, slot: int, remade: bool) -> Any:
        """Return the first observation of the slot's next episode. An environment that fails in its reset is made again."""
        while True:
            try:
                return self.envs[slot].reset(seed=self._fresh_seed(slot, remade))[0]
            except (ReturnError, KeyboardInterrupt):
                raise
            except BaseException as error:
                self._remake(slot, f"{describe_failure(self.name, error)} in reset of slot {slot}")
                remade = True

    def _remake(self, slot: int, failure: str) -> None:
        self._breaks[slot] += 1
        if self._breaks[slot] >= _GIVE_UP:
            raise EnvError(f"{failure}, for the {_GIVE_UP}rd time in a row; training cannot continue")
        self._remade[slot] += 1
        with suppress(Exception, SystemExit):  # Closing a broken environment may fail as well.
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


_STEP = ("observation", "reward", "terminated", "truncated", "info")
_RESET = ("observation", "info")
_FULL_CHECK_STEPS = 200
"""Number of steps whose observations are compared with the bounds of their space. Later ones are compared with its shape
and dtype only, because the full check would double the cost of a small environment."""
_FINITE = "finite numbers"
_ROUNDING = 1e-4
"""Relative tolerance of a float beyond a bound."""

_UNCHANGING = (OrderEnforcing, PassiveEnvChecker, TimeLimit)


class ReturnError(EnvError):
    """A method of an environment returned something that breaks Gymnasium's contract."""


class NonFiniteError(EnvError):
    """A number is NaN or infinite. The cause may be the simulation, not a bug."""


class CheckedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Checks the return values of `reset` and `step`. Gymnasium's own wrappers would fail far from the mistake.

    Arguments:
        env: the environment.
        observations: whether to compare observations with the observation space.

    Raises:
        ReturnError: the result is not a tuple of the right length, the observation is not in its space, the reward is
            not a number, or a flag is not a bool.
        NonFiniteError: the reward or an element of the observation is NaN or infinite.
    """

    def __init__(self, env: GymEnv, observations: bool = True) -> None:
        super().__init__(env)
        self._observations, self._steps = observations, 0

    @property
    def spec(self) -> EnvSpec | None:  # type: ignore[override]
        return self.env.spec

    def reset(self, *, seed: int | None = None, options: ResetOptions = None) -> tuple[Any, Info]:
        observation, info = _unpack(self.env, "reset", self.env.reset(seed=seed, options=options), _RESET)
        if self._observations:
            _check_observation(self.env, "reset", observation)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Info]:
        observation, reward, terminated, truncated, info = _unpack(self.env, "step", self.env.step(action), _STEP)
        self._steps += 1
        if self._observations and (self._steps <= _FULL_CHECK_STEPS or not _is_plausible(self.env, observation)):
            _check_observation(self.env, "step", observation)
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(flag, (bool, np.bool_, int, np.integer)):
                raise _refuse(self.env, "step", f"{_describe(flag)} as {name}", "a bool")
        if type(reward) is not float or not math.isfinite(reward):
            reward = self._to_number(reward)
        return observation, reward, bool(terminated), bool(truncated), info

    def _to_number(self, reward: object) -> float:
        if not isinstance(reward, (int, float, np.number, np.bool_)) or isinstance(reward, np.complexfloating):
            raise _refuse(self.env, "step", f"{_describe(reward)} as reward", "a number")
        value = float(reward)
        if not math.isfinite(value):
            raise _refuse(self.env, "step", f"the reward {value}", _FINITE)
        return value


class CheckedVectorEnv(VectorWrapper[Any, Any, Any]):
    """Checks the return values of a native vector environment, as `CheckedEnv` does.

    Arguments:
        name: the name in messages.
        bootstrap_truncated: the value if the environment does not declare one.

    Raises:
        EnvError: the environment raised.
        TypeError: it does not accept a list of seeds.
    """

    def __init__(self, env: GymVectorEnv, name: str = "environment", bootstrap_truncated: bool = True) -> None:
        super().__init__(env)
        self.name, self.bootstrap_truncated = name, read_bootstrap(env, bootstrap_truncated)
        self._steps = 0

    def reset(self, *, seed: int | list[int | None] | None = None, options: ResetOptions = None) -> tuple[Any, Info]:
        try:
            result = self.env.reset(seed=seed, options=options)  # type: ignore[arg-type]
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if isinstance(seed, list):
                raise TypeError(f"{self.name} does not accept one seed per slot") from error
            raise EnvError(f"{describe_failure(self.name, error)} in reset") from error
        observations, infos = _unpack(self.env, "reset", result, _RESET)
        _check_observation(self.env, "reset", observations)
        return observations, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, Info]:
        try:
            result = self.env.step(actions)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise EnvError(describe_failure(self.name, error)) from error
        observations, *columns, infos = _unpack(self.env, "step", result, _STEP)
        self._steps += 1
        if self._steps <= _FULL_CHECK_STEPS or not _is_plausible(self.env, observations):
            _check_observation(self.env, "step", observations)
        for name, column in zip(_STEP[1:4], columns, strict=True):
            array = np.asarray(column)
            if array.shape != (self.env.num_envs,) or array.dtype.kind not in "biuf":
                wanted = f"an array of {self.env.num_envs} numbers"
                raise _refuse(self.env, "step", f"{_describe(column)} as {name}", wanted)
            if not np.isfinite(array).all():
                raise _refuse(self.env, "step", f"{array} as {name}", _FINITE)
        rewards, terminated, truncated = map(np.asarray, columns)
        return observations, rewards, terminated.astype(bool), truncated.astype(bool), infos


def check_inside(env: GymEnv, observations: bool = True) -> GymEnv:
    """Wrap the environment and every wrapper that may change its results in a `CheckedEnv`."""
    if isinstance(env, gymnasium.Wrapper):
        env.env = check_inside(env.env, observations)
        if isinstance(env, _UNCHANGING):
            return env
    return CheckedEnv(env, observations)


def read_bootstrap(env: object, default: bool) -> bool:
    """Return the attribute `bootstrap_truncated` of an environment or of its outermost wrapper that has it."""
    while env is not None:
        if (declared := getattr(env, "bootstrap_truncated", None)) is not None:
            return bool(declared)
        env = getattr(env, "env", None)
    return default


def describe_failure(name: str, error: BaseException) -> str:
    """Describe an error of the environment `name` in one line with the user's file and line."""
    returned = isinstance(error, (ReturnError, NonFiniteError))
    return describe_error(error) if returned else f"{name} raised {describe_error(error)}"


def find_mismatch(space: GymSpace, value: object, name: str = "observation") -> tuple[str, str] | None:
    """Find the part of a value that is not in a space. Returns it and the expected value; `None` if there is none.

    As in Gymnasium, the dtype of an array must fit into that of its space without loss, and lists of numbers are accepted.
    """
    parts: list[tuple[GymSpace, object, str]]
    if isinstance(space, spaces.Box):
        return _find_in_box(space, value, name)
    if isinstance(space, spaces.Dict) and isinstance(value, dict) and value.keys() == space.spaces.keys():
        parts = [(part, value[key], f"{name}[{key!r}]") for key, part in space.spaces.items()]
    elif isinstance(space, spaces.Tuple) and isinstance(value, (tuple, list)) and len(value) == len(space.spaces):
        parts = [(part, value[k], f"{name}[{k}]") for k, part in enumerate(space.spaces)]
    else:
        return None if space.contains(value) else (f"{_describe(value)} as {name}", f"a member of {_short(space)}")
    return next(filter(None, (find_mismatch(*part) for part in parts)), None)


def _find_in_box(space: spaces.Box, value: object, name: str) -> tuple[str, str] | None:
    try:
        array = np.asarray(value)
        casting: Literal["safe", "same_kind"] = "safe" if hasattr(value, "dtype") else "same_kind"
        fits = array.shape == space.shape and np.can_cast(array.dtype, space.dtype, casting)
    except ValueError:  # A list of lists of different lengths.
        fits = False
    if not fits:
        return f"{_describe(value)} as {name}", f"an array of shape {space.shape} and dtype {space.dtype}"
    room = _ROUNDING * np.maximum(1.0, np.abs(array)) if array.dtype.kind == "f" else 0
    wrong = ~np.isfinite(array) | (array < space.low - room) | (array > space.high + room)
    if not wrong.any():
        return None
    place = tuple(np.argwhere(wrong)[0].tolist())
    bounds = f"from {space.low[place]} to {space.high[place]}, the bounds of the observation space"
    return f"{array[place]} at {list(place)} of {name}", bounds if np.isfinite(array[place]) else _FINITE


def _unpack(env: object, method: str, result: object, names: tuple[str, ...]) -> Any:
    """Return the result of a method if it is a tuple with a value for each name."""
    if not isinstance(result, tuple) or len(result) != len(names):
        what = f"a tuple of {len(result)}" if isinstance(result, tuple) else _describe(result)
        raise _refuse(env, method, what, f"the tuple ({', '.join(names)})")
    if not isinstance(result[-1], dict):
        raise _refuse(env, method, f"{_describe(result[-1])} as info", "a dict")
    return result


def _check_observation(env: GymEnv | GymVectorEnv, method: str, observation: object) -> None:
    mismatch = find_mismatch(env.observation_space, observation)
    if mismatch is not None:
        raise _refuse(env, method, *mismatch)


def _is_plausible(env: GymEnv | GymVectorEnv, observation: object) -> bool:
    """Whether an array has the shape and dtype of its space and is finite. Bounds are not checked."""
    space = env.observation_space
    if not isinstance(space, spaces.Box) or type(observation) is not np.ndarray:
        return False
    if observation.shape != space.shape or observation.dtype != space.dtype:
        return False
    # The sum of squares is finite only if every element is.
    return observation.dtype.kind != "f" or math.isfinite(np.vdot(observation, observation))


def _refuse(env: object, method: str, what: str, wanted: str) -> EnvError:
    kind = type(env)
    where = describe_location(getattr(kind, method))
    error = NonFiniteError if wanted == _FINITE else ReturnError
    return error(f"{kind.__name__}.{method} returned {what}; expected {wanted}{where}")


def _describe(value: object) -> str:
    if value is None:
        return "None"
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    return f"{type(value).__name__} {_short(repr(value))}"


def _short(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
