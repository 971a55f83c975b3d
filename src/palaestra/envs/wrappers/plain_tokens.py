"""A plain `gymnasium.Env` whose actions are tokens, as a token vector environment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from palaestra.core.errors import EnvError
from palaestra.core.records import StopReason
from palaestra.core.seeding import Seeds
from palaestra.envs.token.prompts import Prompt, Response

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class PlainTokenVectorEnv(VectorEnv[Any, Any, Any]):
    """Many copies of an environment that a user wrote one step at a time.

    The environment's action is a token (`Discrete`), its observation the tokens so far (`Sequence` of
    `Discrete`): what `reset` returns is the prompt, and every step must append the action to it. Its rewards
    are kept step by step. The observations, infos and reset options are those of `TokenVectorEnv`.

    Arguments:
        make: makes one environment.
        num_envs: how many slots.
        tokenizer: to show what was said; the environment does not need it.
        max_tokens: the most tokens of an episode; one that goes on is truncated there.
        context: the most tokens in all, the model's limit.
        group_size: consecutive episodes whose environments are reset with the same seed.
        failures: `"raise"`, or `"mark"` episodes in which the environment broke.
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(
        self,
        make: Callable[[], gymnasium.Env[Any, Any]],
        num_envs: int,
        tokenizer: PreTrainedTokenizerBase | None = None,
        max_tokens: int = 64,
        context: int = 1024,
        group_size: int = 1,
        failures: str = "raise",
    ) -> None:
        self.make, self.num_envs, self.tokenizer = make, num_envs, tokenizer
        self.max_tokens, self.group_size, self.failures, self.width = max_tokens, group_size, failures, context
        self.envs = [make() for _ in range(num_envs)]
        self.spec = self.envs[0].spec
        self.name = self.spec.id if self.spec is not None else type(self.envs[0].unwrapped).__name__
        self.single_action_space = self.envs[0].action_space
        if not is_plain_token_env(self.envs[0]):
            raise EnvError(
                f"a language model acts where actions are tokens (Discrete) and observations the tokens so far "
                f"(Sequence of Discrete); {self.name} has {self.single_action_space} and {self.envs[0].observation_space}"
            )
        assert isinstance(self.single_action_space, spaces.Discrete)
        self.vocabulary = int(self.single_action_space.n)
        self.single_observation_space = spaces.Dict(
            {"tokens": spaces.Box(0, self.vocabulary - 1, (context,), np.int64), "length": spaces.Discrete(context + 1)}
        )
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._tokens = np.zeros((num_envs, context), dtype=np.int64)
        self._length = np.zeros(num_envs, dtype=np.int64)
        self._prompt_length = np.zeros(num_envs, dtype=np.int64)
        self._episode = np.full(num_envs, -1, dtype=np.int64)
        self._active, self._fresh = np.zeros(num_envs, dtype=bool), np.zeros(num_envs, dtype=bool)
        self._rewards: list[list[float]] = [[] for _ in range(num_envs)]
        self._seed, self._next_episode, self._quota = 0, 0, -1

    @property
    def next_episode(self) -> int:
        return self._next_episode

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        options = options or {}
        if seed is not None:
            self._seed, self._next_episode = int(seed if isinstance(seed, int) else seed[0] or 0), 0
        self._next_episode = int(options.get("episode", self._next_episode))
        self._quota = self._next_episode + int(options["episodes"]) if "episodes" in options else -1
        self._fresh[:] = False
        for slot in range(self.num_envs):
            self._begin(slot)
        return self._observe(), self._infos()

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        rewards = np.zeros(self.num_envs)
        terminated, truncated = np.zeros(self.num_envs, dtype=bool), np.zeros(self.num_envs, dtype=bool)
        responses = []
        self._fresh[:] = False
        for slot in np.flatnonzero(self._active).tolist():
            action, failure = int(actions[slot]), ""
            self._tokens[slot, self._length[slot]] = action
            self._length[slot] += 1
            try:
                state, reward, terminated[slot], truncated[slot], _ = self.envs[slot].step(action)
                rewards[slot] = float(reward)
                if not np.isfinite(rewards[slot]):
                    raise ValueError(f"the reward is {rewards[slot]}; expected a finite number")
            except Exception as error:  # An environment is a program of somebody else's: it may raise anything.
                failure = f"{self.name} raised {type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
                if self.failures == "raise":
                    raise EnvError(failure) from error
                rewards[slot], truncated[slot] = 0.0, True
                self.envs[slot] = self.make()
            else:
                self._check_growth(slot, state)
            self._rewards[slot].append(float(rewards[slot]))
            count = self._length[slot] - self._prompt_length[slot]
            if not terminated[slot] and (count >= self.max_tokens or self._length[slot] >= self.width):
                truncated[slot] = True
            if terminated[slot] or truncated[slot]:
                responses.append(self._response(slot, bool(terminated[slot]), failure))
                self._active[slot] = False
                self._begin(slot)
        infos = self._infos()
        if responses:
            infos["responses"] = responses
        return self._observe(), rewards, terminated, truncated, infos

    def close_extras(self, **kwargs: Any) -> None:
        for env in self.envs:
            env.close()

    def _begin(self, slot: int) -> None:
        if 0 <= self._quota <= self._next_episode:
            self._active[slot], self._episode[slot] = False, -1
            return
        episode = self._episode[slot] = self._next_episode
        self._next_episode += 1
        group = int(episode) // self.group_size
        try:
            state, _ = self.envs[slot].reset(seed=Seeds(self._seed).derive("group", group).integer() % 2**31)
        except Exception as error:
            raise EnvError(f"{self.name} raised {type(error).__name__}: {error} in reset") from error
        ids = [int(token) for token in state]
        if not ids or len(ids) >= self.width:
            raise EnvError(
                f"{self.name} starts with {len(ids)} tokens; expected 1 to {self.width - 1}, the model's context"
            )
        self._tokens[slot, : len(ids)] = ids
        self._length[slot] = self._prompt_length[slot] = len(ids)
        self._rewards[slot] = []
        self._active[slot] = self._fresh[slot] = True

    def _check_growth(self, slot: int, state: Sequence[int]) -> None:
        known = self._tokens[slot, : self._length[slot]]
        if len(state) != len(known) or int(state[-1]) != int(known[-1]):
            raise EnvError(
                f"{self.name} must observe the tokens so far, each step one more: expected {len(known)} that end with "
                f"{int(known[-1])}; got {len(state)} that end with {int(state[-1]) if len(state) else None}"
            )

    def _response(self, slot: int, terminated: bool, failure: str) -> Response:
        ids = tuple(self._tokens[slot, : self._length[slot]].tolist())
        prompt, chosen = ids[: self._prompt_length[slot]], ids[self._prompt_length[slot] :]

        def text(tokens: tuple[int, ...]) -> str:
            return str(self.tokenizer.decode(tokens, skip_special_tokens=True)) if self.tokenizer is not None else ""

        episode = int(self._episode[slot])
        return Response(
            Prompt(prompt, text(prompt)), chosen, text(chosen), StopReason.END if terminated else StopReason.LENGTH,
            episode, episode // self.group_size, None if failure else float(sum(self._rewards[slot])), failure,
        )  # fmt: skip

    def _observe(self) -> Any:
        return {"tokens": self._tokens.copy(), "length": self._length.copy()}

    def _infos(self) -> dict[str, Any]:
        group = np.where(self._episode >= 0, self._episode // self.group_size, -1)
        return {
            "episode": self._episode.copy(), "group": group, "fresh": self._fresh.copy(), "active": self._active.copy(),
        }  # fmt: skip


def is_plain_token_env(env: gymnasium.Env[Any, Any]) -> bool:
    """Whether actions are tokens and observations the tokens so far."""
    observed = env.observation_space
    return (
        isinstance(env.action_space, spaces.Discrete)
        and isinstance(observed, spaces.Sequence)
        and isinstance(observed.feature_space, spaces.Discrete)
    )
