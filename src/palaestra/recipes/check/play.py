"""Play episodes of any Gymnasium environment with seeded actions, and compare them."""

from __future__ import annotations

import copy
import hashlib
import random
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from palaestra.core.foreign import GlobalRandom
from palaestra.core.settings import short_repr
from palaestra.core.spaces import UnicodeText
from palaestra.envs.base import GymEnv
from palaestra.envs.turn.base import TurnEnv
from palaestra.recipes.check.records import FaultError

Value = Any
"""What an environment takes and returns: an action, an observation, a reward, an `info`."""
TEXTS = ("1", "2", "hello", "yes", "left", "3", "Answer: 7", "0", "no", "right", "[1]", "42")
"""Actions of an environment that takes texts."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_CLOCKS = re.compile(r"time|seconds|duration|elapsed|fps|memory|pid|path|folder|uuid", re.IGNORECASE)
"""Entries of `info` that may differ between two equal episodes."""


def freeze(value: Value) -> Value:
    """A copy of a value that can be compared with `==`: arrays by type, shape and bytes, records by their fields."""
    if isinstance(value, np.ndarray):
        data = tuple(map(freeze, value.tolist())) if value.dtype == object else value.tobytes()
        return ("array", str(value.dtype), value.shape, data)
    if isinstance(value, float | np.floating):
        return ("float", repr(float(value)))  # NaN equals NaN.
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, str | int | bool | bytes | None):
        return value
    if isinstance(value, Mapping):
        return tuple(sorted(((str(key), freeze(part)) for key, part in value.items()), key=lambda item: item[0]))
    if isinstance(value, Sequence):
        return tuple(map(freeze, value))
    if isinstance(value, set | frozenset):
        return tuple(sorted(map(repr, value)))
    if is_dataclass(value):
        return tuple((f.name, freeze(getattr(value, f.name))) for f in fields(value))
    return _ADDRESS.sub("", repr(value))


@dataclass(frozen=True)
class Transition:
    """One step, with frozen values."""

    observation: Value
    reward: Value
    terminated: bool
    truncated: bool
    info: Value


@dataclass
class Episode:
    """An episode, or its first steps.

    Arguments:
        first: the frozen observation of the reset.
        actions: as they were given to the environment.
    """

    seed: int | None
    first: Value
    actions: list[Value] = field(default_factory=list)
    transitions: list[Transition] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return bool(self.transitions) and (self.transitions[-1].terminated or self.transitions[-1].truncated)

    @property
    def total(self) -> float:
        return float(sum(float(step.reward[1]) for step in self.transitions))

    def find_difference(self, other: Episode) -> str:
        """Where two episodes differ first, besides in `info`; empty if they do not."""
        if self.first != other.first:
            return f"first observation: {_contrast(self.first, other.first)}"
        for number, (step, twin) in enumerate(zip(self.transitions, other.transitions, strict=False), start=1):
            for name in ("observation", "reward", "terminated", "truncated"):
                values = getattr(step, name), getattr(twin, name)
                if values[0] != values[1]:
                    return f"{name} of step {number}: {_contrast(*values)}"
        if len(self.transitions) != len(other.transitions):
            return f"length: {len(self.transitions)} and {len(other.transitions)} steps"
        return ""

    def find_info_difference(self, other: Episode) -> str:
        """Where the `info` of two episodes differs first, without clocks; empty if it does not."""
        for number, (step, twin) in enumerate(zip(self.transitions, other.transitions, strict=False), start=1):
            pairs = [{key: part for key, part in info if not _CLOCKS.search(key)} for info in (step.info, twin.info)]
            for key in pairs[0].keys() | pairs[1].keys():
                if pairs[0].get(key) != pairs[1].get(key):
                    return f"info['{key}'] of step {number}: {_contrast(pairs[0].get(key), pairs[1].get(key))}"
        return ""

    def digest(self) -> str:
        """A hash of all observations, rewards and ends."""
        parts = [(t.observation, t.reward, t.terminated, t.truncated) for t in self.transitions]
        return hashlib.blake2b(repr((self.first, parts)).encode(), digest_size=16).hexdigest()


def _contrast(first: Value, second: Value) -> str:
    return f"{short_repr(thaw(first))} and {short_repr(thaw(second))}"


@contextmanager
def watch_global_random(seed: int) -> Iterator[Callable[[], list[str]]]:
    """Seed the global generators of `random`, NumPy and, if it is loaded, torch, and restore their states afterwards.

    The value returns the names of those that were used or seeded inside.
    """
    torch = sys.modules.get("torch")

    def read() -> dict[str, Value]:
        states = {"random": random.getstate(), "numpy": freeze(np.random.get_state())}  # noqa: NPY002
        return states | ({"torch": torch.get_rng_state().numpy().tobytes()} if torch else {})

    former = torch.get_rng_state() if torch else None
    with GlobalRandom(seed).active():
        if torch:
            torch.manual_seed(seed)
        before = read()
        try:
            yield lambda: [name for name, state in read().items() if state != before[name]]
        finally:
            if torch:
                torch.set_rng_state(former)


def thaw(value: Value) -> Value:
    """A frozen value as it should be shown."""
    if isinstance(value, tuple) and len(value) == 4 and value[0] == "array" and isinstance(value[3], bytes):
        return np.frombuffer(value[3], dtype=value[1]).reshape(value[2])
    if isinstance(value, tuple) and len(value) == 2 and value[0] == "float":
        return float(value[1])
    return value


class ActionSource:
    """Random actions of an environment that depend on a seed only.

    Legal actions are drawn where `info` has an `action_mask`.
    """

    def __init__(self, env: GymEnv, seed: int) -> None:
        self._generator = np.random.default_rng(seed)
        self._takes_text = isinstance(env.unwrapped, TurnEnv) or isinstance(env.action_space, spaces.Text | UnicodeText)
        self._space = copy.deepcopy(env.action_space)
        self._space.seed(seed)

    def draw(self, info: Value) -> Value:
        if self._takes_text:
            text = TEXTS[int(self._generator.integers(len(TEXTS)))]
            return text if isinstance(self._space, UnicodeText) or text in self._space else self._space.sample()
        mask = info.get("action_mask") if isinstance(info, dict) else None
        if mask is not None and isinstance(self._space, spaces.Discrete) and np.any(mask):
            return self._space.sample(np.asarray(mask, dtype=np.int8))
        return self._space.sample()


def play(
    env: GymEnv, seed: int | None, steps: int, *, actions: Sequence[Value] | None = None, action_seed: int | None = None
) -> Episode:
    """Reset and play until the end, at most `steps` steps.

    Arguments:
        seed: the seed of the reset; `None` resets without one.
        actions: what to play; by default random actions of `action_seed`, or of `seed`.
    """
    observation, info = env.reset() if seed is None else env.reset(seed=seed)
    episode = Episode(seed, freeze(observation))
    source = ActionSource(env, seed or 0 if action_seed is None else action_seed)
    for number in range(steps if actions is None else min(steps, len(actions))):
        action = source.draw(info) if actions is None else actions[number]
        info = take_step(env, episode, action)
        if episode.ended:
            break
    return episode


def take_step(env: GymEnv, episode: Episode, action: Value) -> Value:
    """Play one action and add it to the episode. Returns the `info`."""
    episode.actions.append(action)
    result = env.step(copy.deepcopy(action))
    if not isinstance(result, tuple) or len(result) != 5:
        raise FaultError(f"step returned {short_repr(result)}; expected five values", seed=episode.seed)
    observation, reward, terminated, truncated, info = result
    value = ("float", repr(float(reward)))
    episode.transitions.append(Transition(freeze(observation), value, bool(terminated), bool(truncated), freeze(info)))
    return info
