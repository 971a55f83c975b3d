"""`palaestra/GEM-v0`: the environments of the package GEM (`gem-llm`) as turn environments."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from palaestra.core.checks import short_repr
from palaestra.core.errors import EnvError, MissingExtraError, UnknownNameError
from palaestra.envs.turn.foreign import ForeignEnv, ForeignStep, ForeignVectorEnv


class GemEnv(ForeignEnv):
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

    def make(self) -> Any:
        gem = load_gem()
        from gem.envs.registration import ENV_REGISTRY

        if self.env_id not in ENV_REGISTRY:
            raise UnknownNameError("environment of GEM", self.env_id, ENV_REGISTRY)
        return gem.make(self.env_id, **self.env_options)

    def start(self, env: Any, seed: int | None, options: Mapping[str, Any]) -> str:
        observation, info = _unpack(env, "reset", env.reset(seed=seed, **options), 2)
        return _join(env, "reset", observation, info)

    def play(self, env: Any, text: str) -> ForeignStep:
        result = _unpack(env, "step", env.step(text), 5)
        observation, reward, terminated, truncated, info = result
        from gem.utils.constants import LanguageGameReward as rewards

        over = bool(terminated or truncated)
        is_invalid = reward in (rewards.format_error_reward, rewards.invalid_action_reward) and reward < 0
        reply = _join(env, "step", observation, {} if over else info)
        return ForeignStep(reply, float(reward), bool(terminated), bool(truncated), is_invalid)


class GemVectorEnv(ForeignVectorEnv):
    """`GemEnv` in slots. Takes the arguments of both."""

    kind = GemEnv


def load_gem() -> Any:
    """Import GEM without its change of the logging configuration. Raises `MissingExtraError` if it is not installed."""
    if find_spec("gem") is None:
        raise MissingExtraError("gem-llm", "gem", "an environment of GEM")
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    import gem
    import gem.envs

    root.handlers[:] = handlers
    root.setLevel(level)
    return gem


def _unpack(env: Any, method: str, result: Any, length: int) -> Any:
    if not isinstance(result, tuple) or len(result) != length or not isinstance(result[-1], dict):
        raise EnvError(
            f"{type(env).__name__}.{method} returned {short_repr(result)}; expected a tuple of {length} that ends with a dict"
        )
    return result


def _join(env: Any, method: str, observation: Any, info: Any) -> str:
    """The observation with GEM's suffix, which asks for the next action."""
    if not isinstance(observation, str):
        raise EnvError(
            f"{type(env).__name__}.{method} returned {short_repr(observation)} as observation; expected a text"
        )
    return "\n".join(part.strip() for part in (observation, str(info.get("suffix") or "")) if part.strip())
