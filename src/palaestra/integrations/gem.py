"""`palaestra/GEM-v0`: the environments of the package GEM (`gem-llm`) as turn environments."""

from __future__ import annotations

import logging
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from palaestra.core.errors import EnvError, UnknownNameError
from palaestra.core.settings import short_repr
from palaestra.envs.base import Info, Options
from palaestra.envs.turn.foreign import ForeignEnv, ForeignStep, ForeignVectorEnv
from palaestra.integrations import load_library

if TYPE_CHECKING:
    import gem


class GemEnv(ForeignEnv["gem.Env"]):
    """An environment of GEM. The reward of a turn is GEM's.

    Arguments:
        env_id: a GEM id, for example `game:GuessTheNumber-v0-easy`.
        arguments: arguments of `ForeignEnv`. The `options` of a reset are arguments of GEM's, for example `idx`.

    Example:
        >>> env = GemEnv("game:GuessTheNumber-v0-easy")  # doctest: +SKIP
        >>> env.reset(seed=0)[0].messages[-1].text[:34]  # doctest: +SKIP
        'You are playing Guess The Number.\\n'
    """

    sample_actions = tuple(f"\\boxed{{{n}}}" for n in (1, 2, 10, 4))

    def make(self) -> gem.Env:
        package = load_gem()
        from gem.envs.registration import ENV_REGISTRY

        if self.env_id not in ENV_REGISTRY:
            raise UnknownNameError("environment of GEM", self.env_id, ENV_REGISTRY)
        return package.make(self.env_id, **self.env_kwargs)

    def start(self, env: gem.Env, seed: int | None, options: Options) -> str:
        observation, info = _unpack(env, "reset", env.reset(seed=seed, **options), 2)
        return _join(env, "reset", observation, info)

    def play(self, env: gem.Env, text: str) -> ForeignStep:
        observation, reward, terminated, truncated, info = _unpack(env, "step", env.step(text), 5)
        from gem.utils.constants import LanguageGameReward as rewards

        over = bool(terminated or truncated)
        is_invalid = reward in (rewards.format_error_reward, rewards.invalid_action_reward) and reward < 0
        reply = _join(env, "step", observation, {} if over else info)
        return ForeignStep(reply, float(reward), bool(terminated), bool(truncated), is_invalid)


class GemVectorEnv(ForeignVectorEnv):
    """`GemEnv` in slots. Takes the arguments of both."""

    kind = GemEnv


def load_gem() -> ModuleType:
    """Import GEM without its change of the logging configuration. Raises `MissingExtraError` if it is not installed."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    package = load_library("gem", "gem-llm", "gem", "an environment of GEM")
    import_module("gem.envs")
    root.handlers[:] = handlers
    root.setLevel(level)
    return package


def _unpack(env: gem.Env, method: str, result: object, length: int) -> tuple[Any, ...]:
    if not isinstance(result, tuple) or len(result) != length or not isinstance(result[-1], dict):
        what = f"{type(env).__name__}.{method} returned {short_repr(result)}"
        raise EnvError(f"{what}; expected a tuple of {length} that ends with a dict")
    return result


def _join(env: gem.Env, method: str, observation: object, info: Info) -> str:
    """The observation with GEM's suffix, which asks for the next action."""
    if not isinstance(observation, str):
        what = f"{type(env).__name__}.{method} returned the observation {short_repr(observation)}"
        raise EnvError(f"{what}; expected a text")
    return "\n".join(part.strip() for part in (observation, str(info.get("suffix") or "")) if part.strip())
