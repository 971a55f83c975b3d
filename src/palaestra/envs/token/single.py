"""The single-environment view of a token environment, for `gym.make`."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np

from palaestra.envs.token.base import TokenVectorEnv
from palaestra.envs.token.contract import Observation


class TokenEnv(gymnasium.Env[Observation, Any]):
    """A `TokenVectorEnv` with one slot and no autoreset, as an ordinary environment.

    Takes the arguments of its vector environment. To write your own, set `vector_class` to your vector environment, or
    pass prompts and reward to `super().__init__`. Attributes that Gymnasium does not define, such as `tokenizer`, are
    those of the vector environment.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012
    vector_class: ClassVar[type[TokenVectorEnv]] = TokenVectorEnv

    def __init__(self, *args: Any, render_mode: str | None = None, **arguments: Any) -> None:
        self._given = args, arguments
        self.vector = self.vector_class(*args, **arguments, num_envs=1, autoreset=False, render_mode=render_mode)
        self.render_mode = render_mode
        self.action_space = self.vector.single_action_space
        self.observation_space = self.vector.single_observation_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        observation, infos = self.vector.reset(seed=seed, options=options)
        return _first(observation), _single(infos)

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        observation, rewards, terminated, truncated, infos = self.vector.step(np.asarray([action]))
        return _first(observation), float(rewards[0]), bool(terminated[0]), bool(truncated[0]), _single(infos)

    def render(self) -> str | None:
        rendered = self.vector.render()
        return None if rendered is None else rendered[0]

    def in_slots(self, num_envs: int, **changes: Any) -> TokenVectorEnv:
        """Return the same environment with `num_envs` slots. `changes` override arguments."""
        args, arguments = self._given
        return self.vector_class(*args, **{**arguments, **changes}, num_envs=num_envs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "vector":
            raise AttributeError(name)
        return getattr(self.vector, name)


def _first(observation: Observation) -> Observation:
    return {name: values[0] for name, values in observation.items()}


def _single(infos: dict[str, Any]) -> dict[str, Any]:
    info: dict[str, Any] = {name: infos[name][0] for name in ("episode", "group", "action_mask") if name in infos}
    if "responses" in infos:
        info["response"] = infos["responses"][0]
    return info
