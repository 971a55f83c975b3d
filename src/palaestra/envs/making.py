"""From an environment's id to a vector environment that can be trained in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv

from palaestra.core.errors import EnvError, UnknownNameError
from palaestra.envs.token.base import TokenVectorEnv
from palaestra.envs.token.single import TokenEnv
from palaestra.envs.wrappers.plain_tokens import PlainTokenVectorEnv, is_plain_token_env
from palaestra.envs.wrappers.slots import SlotVectorEnv


def spec_of(env_id: str) -> Any:
    """The registered spec of `env_id`.

    Raises:
        UnknownNameError: nothing has that id; suggests the nearest that does.
    """
    try:
        return gymnasium.spec(env_id)
    except gymnasium.error.Error:
        known = [name for name in gymnasium.registry if not name.startswith(("phys2d", "tabular", "GymV"))]
        raise UnknownNameError("environment", env_id, known) from None


def is_token_env(env_id: str, options: Mapping[str, Any]) -> bool:
    """Whether actions of the environment are tokens; decided without loading a model."""
    spec = spec_of(env_id)
    if _token_class(spec) is not None:
        return True
    env = _made(env_id, options)
    try:
        if isinstance(env.unwrapped, TokenEnv):
            return True
        return is_plain_token_env(env)
    finally:
        env.close()


def make_token_env(env_id: str, num_envs: int, options: Mapping[str, Any], **own: Any) -> Any:
    """A token environment with `num_envs` slots.

    Arguments:
        options: of the environment itself.
        own: `tokenizer`, `max_tokens`, `context`, `group_size`, `failures`.
    """
    kind = _token_class(spec_of(env_id))
    if kind is not None:
        try:
            return kind(**{**spec_of(env_id).kwargs, **own, **options}, num_envs=num_envs)
        except TypeError as error:
            raise EnvError(f"{env_id} does not take these options: {error}") from error
    return PlainTokenVectorEnv(lambda: _made(env_id, options), num_envs, **own)


def make_control_env(
    env_id: str, num_envs: int, options: Mapping[str, Any], own_seeds: bool = False
) -> VectorEnv[Any, Any, Any]:
    """A classic environment with `num_envs` slots: its native vector form where it has one.

    Arguments:
        own_seeds: every slot must take a seed of its own, which native forms do not.
    """
    spec = spec_of(env_id)
    if spec.vector_entry_point is not None and not own_seeds:
        try:
            return gymnasium.make_vec(env_id, num_envs, vectorization_mode="vector_entry_point", **options)
        except (TypeError, gymnasium.error.Error):
            pass  # The native form may know fewer options than the environment: then slots serve.
    return SlotVectorEnv(lambda: _made(env_id, options), num_envs, env_id)


def _made(env_id: str, options: Mapping[str, Any]) -> gymnasium.Env[Any, Any]:
    try:
        return gymnasium.make(env_id, disable_env_checker=True, **options)
    except TypeError as error:
        raise EnvError(f"{env_id} does not take these options: {error}") from error
    except gymnasium.error.Error as error:
        raise EnvError(f"cannot make {env_id}: {str(error).splitlines()[0]}") from error
    except ImportError as error:
        raise EnvError(f"cannot make {env_id}: {error}") from error


def _token_class(spec: Any) -> Any:
    """The token vector environment behind a spec, or `None`."""
    entry = spec.vector_entry_point or spec.entry_point
    if isinstance(entry, str):
        from gymnasium.envs.registration import load_env_creator

        try:
            entry = load_env_creator(entry)
        except (ImportError, AttributeError, ValueError) as error:
            raise EnvError(f"cannot load {spec.id} from {entry}: {error}") from error
    if isinstance(entry, type) and issubclass(entry, TokenVectorEnv):
        return entry
    if isinstance(entry, type) and issubclass(entry, TokenEnv):
        return entry.vector_class
    return None
