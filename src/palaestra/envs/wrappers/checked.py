"""Check what a user's environment returns, at the call. Gymnasium's own wrappers would fail far from the mistake."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv, VectorWrapper
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from palaestra.core.errors import EnvError
from palaestra.core.user_code import describe_error, describe_location

STEP = ("observation", "reward", "terminated", "truncated", "info")
RESET = ("observation", "info")
FULL_CHECK_STEPS = 200
"""Number of steps whose observations are compared with the bounds of their space. Later ones are compared with its shape
and dtype only, because the full check would double the cost of a small environment."""
_ROUNDING = 1e-4
"""Relative tolerance of a float beyond a bound."""

_UNCHANGING = (OrderEnforcing, PassiveEnvChecker, TimeLimit)


class ReturnError(EnvError):
    """A method of an environment returned something that breaks Gymnasium's contract."""


class NonFiniteError(EnvError):
    """A number is NaN or infinite, which may come from a simulation and not from the code."""


class _Checks:
    """Checks that single and vector environments share."""

    env: Any
    _observations = True
    _box: tuple[Any, Any] | None

    def _passes_quick_check(self, observation: Any) -> bool:
        """Whether an array has the shape and dtype of its space and is finite. Bounds are not checked."""
        if not self._observations:
            return True
        if self._box is None or type(observation) is not np.ndarray:
            return False
        if observation.shape != self._box[0] or observation.dtype != self._box[1]:
            return False
        # The sum of squares is finite only if every element is.
        return observation.dtype.kind != "f" or math.isfinite(np.vdot(observation, observation))

    def _check_tuple(self, method: str, result: Any, names: tuple[str, ...]) -> None:
        if type(result) is tuple and len(result) == len(names) and type(result[-1]) is dict:
            return
        wanted = f"the tuple ({', '.join(names)})"
        if not isinstance(result, tuple):
            self._refuse(method, _describe(result), wanted)
        if len(result) != len(names):
            self._refuse(method, f"a tuple of {len(result)}", wanted)
        if not isinstance(result[-1], dict):
            self._refuse(method, f"{_describe(result[-1])} as info", "a dict")

    def _check_observation(self, method: str, observation: Any) -> None:
        if not self._observations:
            return
        mismatch = find_mismatch(self.env.observation_space, observation)
        if mismatch is not None:
            what, wanted = mismatch
            if "NaN" in what or "infinite" in what:
                raise NonFiniteError(self._sentence(method, what, wanted))
            self._refuse(method, what, wanted)

    def _refuse(self, method: str, what: str, wanted: str) -> Any:
        raise ReturnError(self._sentence(method, what, wanted))

    def _sentence(self, method: str, what: str, wanted: str) -> str:
        kind = type(self.env)
        return f"{kind.__name__}.{method} returned {what}; expected {wanted}{describe_location(getattr(kind, method))}"


class CheckedEnv(_Checks, gymnasium.Wrapper[Any, Any, Any, Any]):
    """Checks what `reset` and `step` of an environment return.

    Arguments:
        env: the environment.
        observations: whether to compare observations with the observation space.

    Raises:
        ReturnError: the result is not a tuple of the right length, the observation is not in its space, the reward is
            not a number, or a flag is not a bool.
        NonFiniteError: the reward or an element of the observation is NaN or infinite.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], observations: bool = True) -> None:
        super().__init__(env)
        self._observations, self._steps = observations, 0
        self._box = _describe_box(env.observation_space)

    @property
    def spec(self) -> Any:  # type: ignore[override]
        return self.env.spec

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        result: Any = self.env.reset(seed=seed, options=options)
        self._check_tuple("reset", result, RESET)
        self._check_observation("reset", result[0])
        return result[0], result[1]

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        result: Any = self.env.step(action)
        self._steps += 1
        self._check_tuple("step", result, STEP)
        observation, reward, terminated, truncated, info = result
        if self._steps <= FULL_CHECK_STEPS or not self._passes_quick_check(observation):
            self._check_observation("step", observation)
        if type(terminated) is not bool or type(truncated) is not bool:
            self._check_flags(terminated, truncated)
        if type(reward) is not float or not math.isfinite(reward):
            reward = self._to_number(reward)
        return observation, reward, bool(terminated), bool(truncated), info

    def _check_flags(self, terminated: Any, truncated: Any) -> None:
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(flag, (bool, np.bool_)) and not (isinstance(flag, (int, np.integer)) and flag in (0, 1)):
                self._refuse("step", f"{_describe(flag)} as {name}", "a bool")

    def _to_number(self, reward: Any) -> float:
        if isinstance(reward, np.ndarray) and reward.size == 1:
            reward = reward.item()
        if not isinstance(reward, (Real, np.bool_)) and not hasattr(reward, "__float__"):
            self._refuse("step", f"{_describe(reward)} as reward", "a number")
        try:
            value = float(reward)
        except (TypeError, ValueError):
            self._refuse("step", f"{_describe(reward)} as reward", "a number")
        if not np.isfinite(value):
            raise NonFiniteError(self._sentence("step", f"the reward {value}", "a finite number"))
        return value


class CheckedVectorEnv(_Checks, VectorWrapper[Any, Any, Any]):
    """Checks what `reset` and `step` of a native vector environment return, as `CheckedEnv` does.

    A single slot cannot fail, so a NaN or infinite number is a `ReturnError` as well.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        super().__init__(env)
        self._steps = 0
        self._box = _describe_box(env.observation_space)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        result: Any = self.env.reset(seed=seed, options=options)
        self._check_tuple("reset", result, RESET)
        self._check_observations("reset", result[0])
        return result[0], result[1]

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        result: Any = self.env.step(actions)
        self._steps += 1
        self._check_tuple("step", result, STEP)
        observations, rewards, _, _, infos = result
        if self._steps <= FULL_CHECK_STEPS or not self._passes_quick_check(observations):
            self._check_observations("step", observations)
        rewards = self._to_column("rewards", rewards, "biuf", "numbers")
        flags = [self._to_column(STEP[k], result[k], "biu", "bools").astype(bool) for k in (2, 3)]
        return observations, rewards, *flags, infos

    def _check_observations(self, method: str, observations: Any) -> None:
        try:
            self._check_observation(method, observations)
        except NonFiniteError as error:
            raise ReturnError(str(error)) from error

    def _to_column(self, name: str, given: Any, kinds: str, wanted: str) -> Any:
        """Return one value per slot as an array with a dtype of `kinds`."""
        column = np.asarray(given)
        if column.shape != (self.env.num_envs,) or column.dtype.kind not in kinds:
            self._refuse("step", f"{_describe(given)} as {name}", f"an array of {self.env.num_envs} {wanted}")
        if column.dtype.kind == "f" and not np.isfinite(column).all():
            slot = int(np.argmin(np.isfinite(column)))
            self._refuse("step", f"{column[slot]} in slot {slot} of {name}", "finite numbers")
        return column


def _describe_box(space: spaces.Space[Any]) -> tuple[Any, Any] | None:
    return (space.shape, space.dtype) if isinstance(space, spaces.Box) else None


def check_inside(env: gymnasium.Env[Any, Any], observations: bool = True) -> gymnasium.Env[Any, Any]:
    """Wrap the environment and every wrapper that may change its results in a `CheckedEnv`."""
    if isinstance(env, gymnasium.Wrapper):
        env.env = check_inside(env.env, observations)
        if isinstance(env, _UNCHANGING):
            return env
    return CheckedEnv(env, observations)


def describe_failure(name: str, error: Exception) -> str:
    """Describe an error of the environment `name` in one line with the user's file and line."""
    returned = isinstance(error, (ReturnError, NonFiniteError))
    return describe_error(error) if returned else f"{name} raised {describe_error(error)}"


def find_mismatch(space: spaces.Space[Any], value: Any, name: str = "observation") -> tuple[str, str] | None:
    """Find the part of a value that is not in a space. Returns it and what was expected; `None` if all is in the space.

    Numbers of another precision and lists are accepted, as everywhere in Gymnasium.
    """
    if isinstance(space, spaces.Box):
        return _find_in_box(space, value, name)
    if isinstance(space, spaces.Dict):
        if not isinstance(value, dict) or set(value) != set(space.spaces):
            held = f"the keys {_short(sorted(map(str, value)))}" if isinstance(value, dict) else _describe(value)
            return f"{held} as {name}", f"a dict with the keys {_short(sorted(map(str, space.spaces)))}"
        parts: Any = [(part, value[key], f"{name}[{key!r}]") for key, part in space.spaces.items()]
    elif isinstance(space, spaces.Tuple):
        if not isinstance(value, (tuple, list)) or len(value) != len(space.spaces):
            held = f"{len(value)} parts" if isinstance(value, (tuple, list)) else _describe(value)
            return f"{held} as {name}", f"a tuple of {len(space.spaces)}"
        parts = [(part, value[k], f"{name}[{k}]") for k, part in enumerate(space.spaces)]
    else:
        return None if space.contains(value) else (f"{_describe(value)} as {name}", f"a member of {_short(space)}")
    return next(
        (mismatch for part, own, path in parts if (mismatch := find_mismatch(part, own, path)) is not None), None
    )


def _find_in_box(space: spaces.Box, value: Any, name: str) -> tuple[str, str] | None:
    wanted = f"an array of shape {space.shape} and dtype {space.dtype}"
    try:
        array = np.asarray(value)
    except ValueError:  # A list of lists of different lengths.
        return f"{_describe(value)} as {name}", wanted
    if array.dtype != space.dtype and not np.can_cast(array.dtype, space.dtype, "same_kind"):
        if array.dtype.kind not in "biuf":
            return f"{_describe(value)} as {name}", wanted
        return f"an array of dtype {array.dtype} as {name}", wanted
    if array.shape != space.shape:
        return f"an array of shape {array.shape} as {name}", wanted
    if bool(((array >= space.low) & (array <= space.high)).all()) and (
        array.dtype.kind != "f" or bool(np.isfinite(array).all())
    ):
        return None
    finite = np.isfinite(array)
    if not finite.all():
        place = tuple(int(k) for k in np.argwhere(~finite)[0])
        kind = "NaN" if np.isnan(array[place]) else "an infinite number"
        return f"{kind} at {list(place)} of {name}", "finite numbers"
    room = _ROUNDING * np.maximum(1.0, np.abs(array)) if array.dtype.kind == "f" else 0
    outside = (array < space.low - room) | (array > space.high + room)
    if not outside.any():
        return None
    place = tuple(int(k) for k in np.argwhere(outside)[0])
    low, high = space.low[place], space.high[place]
    return f"{array[place]} at {list(place)} of {name}", f"from {low} to {high}, as the observation space says"


def _describe(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}" + (" and dtype object" if value.dtype == object else "")
    return f"{type(value).__name__} {_short(repr(value))}"


def _short(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
