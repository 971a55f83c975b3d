"""`palaestra/Text-v0`: any Gymnasium environment with text or discrete spaces, played in text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from palaestra.core.errors import EnvError
from palaestra.core.settings import short_repr
from palaestra.core.tables import load_table
from palaestra.envs.base import GymEnv, GymSpace, Options
from palaestra.envs.turn.foreign import ForeignEnv, ForeignStep, ForeignVectorEnv, find_last
from palaestra.envs.wrappers.slots import check_inside

_ACTIONS: Mapping[str, Sequence[str]] = load_table(__file__, "actions")
"""Names of the actions of Gymnasium's text environments."""
_MAX_LISTED = 20
"""Maximum number of actions that a message lists."""
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_MARK = re.compile(r"\b(?:action|answer)\s{0,9}:", re.IGNORECASE)
_INTEGER = re.compile(r"-?\d{1,12}")


class TextEnv(ForeignEnv[GymEnv]):
    """A Gymnasium environment whose observations and actions are written as text.

    An observation of a `Text` space is the message itself. Numbers of `Discrete`, `MultiDiscrete` and `MultiBinary`
    spaces, of integer `Box` spaces, and of tuples and dictionaries of these, are written out. An action is the last
    action name in a message, after the last "Action:" or "Answer:" if there is one; for several numbers, the last ones;
    for a `Text` space, the whole message. A message without an action is answered with the legal ones.

    Arguments:
        env_id: a Gymnasium id, or a class as `module:Class` or `file.py:Class`.
        actions: the names of the actions of a `Discrete` space; by default those of `_ACTIONS`, or their numbers.
        observation: `"values"` writes the values of the observation, `"ansi"` the environment's own drawing in text.
        arguments: arguments of `ForeignEnv`.

    Attributes:
        action_names: the names of the actions of a `Discrete` space.

    Raises:
        EnvError: a space has values that cannot be written, such as an image.

    Example:
        >>> env = TextEnv("FrozenLake-v1", env_kwargs={"is_slippery": False})
        >>> print(env.reset(seed=0)[0].messages[-1].text)
        0
        Actions: left, down, right, up.
        >>> env.step("I go right.")[0].messages[-1].text
        '1'
        >>> env.step("I stay here.")[0].messages[-1].text
        'That is not an action. Actions: left, down, right, up.'
    """

    shares_random = False

    def __init__(
        self, env_id: str, *, actions: Sequence[str] = (), observation: str = "values", **arguments: Any
    ) -> None:
        if observation not in ("values", "ansi"):
            raise EnvError(f"observation must be 'values' or 'ansi'; got {observation!r}")
        self.observation, self.action_names = observation, tuple(actions)
        super().__init__(env_id, **arguments)

    def make(self) -> GymEnv:
        from palaestra.envs.factory import get_spec

        options = {**self.env_kwargs, **({"render_mode": "ansi"} if self.observation == "ansi" else {})}
        env: GymEnv = gymnasium.make(get_spec(self.env_id), disable_env_checker=True, **options)
        if self.observation == "values":
            _check_space(env.observation_space, "observations")
        _check_space(env.action_space, "actions")
        if isinstance(env.action_space, spaces.Discrete):
            self.action_names = self.action_names or _find_names(env)
            if len(self.action_names) != env.action_space.n:
                raise EnvError(
                    f"{self.env_id} has {env.action_space.n} actions; got {len(self.action_names)} names of actions"
                )
        return check_inside(env, observations=not _has_text(env.observation_space))

    def start(self, env: GymEnv, seed: int | None, options: Options) -> str:
        text = self._describe(env, env.reset(seed=seed, options=dict(options) or None)[0])
        return text if self.prompt else f"{text}\n{self._list_actions(env)}".strip()

    def play(self, env: GymEnv, text: str) -> ForeignStep:
        action = self._parse(env.action_space, text)
        if action is None:
            return ForeignStep(f"That is not an action. {self._list_actions(env)}", is_invalid=True)
        observation, reward, terminated, truncated, _ = env.step(action)
        return ForeignStep(self._describe(env, observation), float(reward), bool(terminated), bool(truncated))

    def _describe(self, env: GymEnv, observation: object) -> str:
        if self.observation == "values":
            return write_value(observation)
        drawing = env.render()
        if not isinstance(drawing, str):
            raise EnvError(f"{self.env_id} has no drawing in text: its render returned {short_repr(drawing)}")
        return _ESCAPES.sub("", drawing).strip("\n")

    def _list_actions(self, env: GymEnv) -> str:
        space = env.action_space
        if isinstance(space, spaces.Discrete):
            names = (
                self.action_names
                if len(self.action_names) <= _MAX_LISTED
                else (self.action_names[0], "...", self.action_names[-1])
            )
            return f"Actions: {', '.join(names)}."
        if isinstance(space, spaces.Text):
            return ""
        return f"An action has {len(_list_limits(space))} whole numbers."

    def _parse(self, space: GymSpace, text: str) -> Any:
        """The action in a message; `None` if there is none."""
        if isinstance(space, spaces.Text):
            return text if space.min_length <= len(text) <= space.max_length else None
        marks = list(_MARK.finditer(text))
        text = text[marks[-1].end() :] if marks else text
        if isinstance(space, spaces.Discrete):
            name = find_last(text, self.action_names)
            return None if name is None else space.start + self.action_names.index(name)
        limits = _list_limits(space)
        numbers = [int(number) for number in _INTEGER.findall(text)][-len(limits) :]
        is_legal = len(numbers) == len(limits) and all(0 <= n < limit for n, limit in zip(numbers, limits, strict=True))
        return np.array(numbers, dtype=space.dtype).reshape(space.shape or ()) if is_legal else None


class TextVectorEnv(ForeignVectorEnv):
    """`TextEnv` in slots. Takes the arguments of both."""

    kind = TextEnv


def write_value(value: Any) -> str:
    """Write an observation as text.

    >>> write_value({"hand": np.array([3, 4]), "turn": 1})
    'hand: 3 4\\nturn: 1'
    """
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return "\n".join(f"{name}: {write_value(part)}" for name, part in value.items())
    if isinstance(value, (tuple, list, np.ndarray)) and np.ndim(value) != 0:
        joint = "\n" if isinstance(value, np.ndarray) and value.ndim > 1 else " "
        return joint.join(write_value(part) for part in value)
    return str(int(value))


def _find_names(env: GymEnv) -> tuple[str, ...]:
    """The names of a `Discrete` environment's actions: known ones, or numbers."""
    assert isinstance(env.action_space, spaces.Discrete)
    name = env.spec.name if env.spec is not None else ""
    start = int(env.action_space.start)
    return tuple(_ACTIONS.get(name) or (str(start + k) for k in range(int(env.action_space.n))))


def _check_space(space: GymSpace, what: str) -> None:
    """Raise if the values of a space cannot be written as text."""
    if isinstance(space, spaces.Dict | spaces.Tuple) and what == "observations":
        for part in space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces:
            _check_space(part, what)
        return
    is_whole = isinstance(space, spaces.Box) and space.dtype is not None and space.dtype.kind in "iu"
    if isinstance(space, (spaces.Text, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        return
    if not (is_whole and what == "observations"):
        raise EnvError(f"the {what} of {short_repr(space)} cannot be written as text; expected text or discrete spaces")


def _has_text(space: GymSpace) -> bool:
    """Whether a space contains texts. Many environments return texts outside the declared character set."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return any(map(_has_text, space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces))
    return isinstance(space, spaces.Text)


def _list_limits(space: GymSpace) -> list[int]:
    """The number of values of each element of a `MultiDiscrete` or `MultiBinary` space."""
    if isinstance(space, spaces.MultiDiscrete):
        return [int(n) for n in space.nvec.flatten()]
    return [2] * int(np.prod(space.shape or ()))
