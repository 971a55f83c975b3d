"""A token vector environment made of plain `gymnasium.Env`s whose actions are tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from palaestra.core.errors import EnvError
from palaestra.core.foreign import GlobalRandom
from palaestra.core.records import StopReason
from palaestra.envs.base import GymEnv, GymVectorEnv, Info, ResetOptions
from palaestra.envs.token.contract import Observation, TokenEnvContract, check_tokens
from palaestra.envs.token.prompts import Prompt, Response
from palaestra.envs.wrappers.slots import check_inside, describe_failure, read_bootstrap

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

DEFAULT_WIDTH = 4096
"""Maximum tokens of prompt and response if the model has no limit."""


class PlainTokenVectorEnv(TokenEnvContract):
    """Many copies of a single token environment.

    The environment's action is a token (`Discrete`) and its observation the tokens so far (`Sequence` of `Discrete`).
    `reset` returns the prompt, and every step must append the action to the observation. `Response.reward` is the sum of
    the rewards of an episode. Reset options other than those of `TokenEnvContract` are passed to the environments.

    After `reset(seed=s)`, the episodes of group `k` are reset with the seed `s + k`. The global generators of `random` and
    NumPy are seeded with it during the reset and restored afterwards, for environments that use them.

    Arguments:
        make: makes one environment.
        num_envs: number of slots.
        tokenizer: decodes prompts and responses for the records; the environment does not need it.
        max_tokens: maximum number of tokens of an episode; longer episodes are truncated.
        context: maximum number of tokens of prompt and response together, the model's limit; 0 means `DEFAULT_WIDTH`.
        group_size: number of consecutive episodes that are reset with the same seed.
        failures: `"raise"` an error of an environment, or `"mark"` the episode as failed.
    """

    def __init__(
        self,
        make: Callable[[], GymEnv],
        num_envs: int,
        tokenizer: PreTrainedTokenizerBase | None = None,
        max_tokens: int = 64,
        context: int = 1024,
        group_size: int = 1,
        failures: str = "raise",
    ) -> None:
        self.make, self.tokenizer = make, tokenizer
        self.max_tokens, self.group_size, self.failures = max_tokens, group_size, failures
        self.width = context or DEFAULT_WIDTH
        self.envs = [check_inside(make(), observations=False) for _ in range(num_envs)]
        self.spec = self.envs[0].spec
        self.bootstrap_truncated = read_bootstrap(self.envs[0], False)
        self.name = self.spec.id if self.spec is not None else type(self.envs[0].unwrapped).__name__
        actions = self.envs[0].action_space
        if not is_plain_token_env(self.envs[0]):
            raise EnvError(
                f"a language model needs tokens as actions (Discrete) and the tokens so far as observations (Sequence of "
                f"Discrete); {self.name} has {actions} and {self.envs[0].observation_space}"
            )
        assert isinstance(actions, spaces.Discrete)
        self.vocabulary = int(actions.n)
        self._define_spaces()
        self.single_action_space = actions
        self._allocate(num_envs)
        self._options: ResetOptions = None
        self._group_start: tuple[int, list[int]] = (-1, [])

    def hold_out(self, count: int) -> PlainTokenVectorEnv:
        """Return new copies of the environment: its prompts come from seeds, so none can be moved."""
        slots = min(self.num_envs, count)
        return PlainTokenVectorEnv(
            self.make, slots, self.tokenizer, self.max_tokens, context=self.width, failures=self.failures
        )

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: ResetOptions = None
    ) -> tuple[Observation, Info]:
        options = dict(options or {})
        self._count_from(seed, options, self.name)
        self._options = {name: options[name] for name in options if name not in ("episode", "episodes")} or None
        self._fresh[:], self._group_start = False, (-1, [])
        for slot in range(self.num_envs):
            self._begin(slot)
        return self._observe(), self._infos()

    def step(self, actions: np.ndarray) -> tuple[Observation, np.ndarray, np.ndarray, np.ndarray, Info]:
        actions = check_tokens(actions, self._active, self.vocabulary)
        rewards = np.zeros(self.num_envs)
        terminated, truncated = np.zeros(self.num_envs, dtype=bool), np.zeros(self.num_envs, dtype=bool)
        responses, final_obs = [], np.full(self.num_envs, None, dtype=object)
        self._fresh[:] = False
        for slot in np.flatnonzero(self._active).tolist():
            action, failure = int(actions[slot]), ""
            self._tokens[slot, self._length[slot]] = action
            self._length[slot] += 1
            try:
                state, reward, terminated[slot], truncated[slot], _ = self.envs[slot].step(action)
                rewards[slot] = reward
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # User code may raise anything, also SystemExit.
                failure = describe_failure(self.name, error)
                if self.failures == "raise":
                    raise EnvError(failure) from error
                rewards[slot], terminated[slot], truncated[slot] = 0.0, False, True
                self._remake(slot)
            else:
                self._check_growth(slot, state)
            self._slot_rewards[slot].append(float(rewards[slot]))
            full = len(self._slot_rewards[slot]) >= self.max_tokens or self._length[slot] >= self.width
            truncated[slot] = (truncated[slot] or full or self.cuts_responses) and not terminated[slot]
            if terminated[slot] or truncated[slot]:
                responses.append(self._response(slot, bool(terminated[slot]), failure))
                final_obs[slot] = self._observe_slot(slot)
                self._active[slot] = False
                self._begin(slot)
        infos = self._infos()
        if responses:
            infos["final_obs"], infos["_final_obs"] = final_obs, terminated | truncated
            infos["responses"] = responses
        return self._observe(), rewards, terminated, truncated, infos

    def close_extras(self, **kwargs: Any) -> None:
        for env in self.envs:
            env.close()

    def _begin(self, slot: int) -> None:
        episode = self._take_episode(slot)
        if episode is None:
            return
        group = episode // self.group_size
        seed = (self._seed + group) % 2**32  # NumPy's global generator takes no more.
        try:
            with GlobalRandom(seed).active():
                state, _ = self.envs[slot].reset(seed=seed, options=self._options)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise EnvError(f"{describe_failure(self.name, error)} in reset") from error
        ids = [int(token) for token in state]
        if not ids or len(ids) >= self.width:
            raise EnvError(
                f"{self.name} starts with {len(ids)} tokens; expected 1 to {self.width - 1}, the model's context"
            )
        if min(ids) < 0 or max(ids) >= self.vocabulary:
            raise EnvError(f"{self.name} starts with invalid tokens; tokens must be from 0 to {self.vocabulary - 1}")
        # Episodes start in order, so the members of a group start one after the other.
        if self._group_start[0] == group and self._group_start[1] != ids:
            raise EnvError(
                f"{self.name} starts differently when it is reset with the same seed, so it has no groups; make its "
                f"reset depend on the seed only, or train with ppo or reinforce"
            )
        self._group_start = (group, ids)
        self._start_slot(slot, ids)

    def _remake(self, slot: int) -> None:
        with suppress(Exception, SystemExit):  # Closing a broken environment may fail as well.
            self.envs[slot].close()
        self.envs[slot] = check_inside(self.make(), observations=False)

    def _check_growth(self, slot: int, state: Sequence[int]) -> None:
        known = self._tokens[slot, : self._length[slot]]
        if not np.array_equal(np.asarray(state), known):
            raise EnvError(
                f"{self.name} must return the tokens so far, one more each step: expected {len(known)} ending with "
                f"{int(known[-1])}; got {len(state)} ending with {int(state[-1]) if len(state) else None}"
            )

    def _response(self, slot: int, terminated: bool, failure: str) -> Response:
        prompt = tuple(self._tokens[slot, : self._prompt_length[slot]].tolist())
        chosen = self._response_ids(slot)

        def text(tokens: tuple[int, ...]) -> str:
            return str(self.tokenizer.decode(tokens, skip_special_tokens=True)) if self.tokenizer is not None else ""

        episode = int(self._episode[slot])
        return Response(
            Prompt(prompt, text(prompt)),
            chosen,
            text(chosen),
            StopReason.END if terminated else StopReason.LENGTH,
            episode,
            group=episode // self.group_size,
            reward=None if failure else float(sum(self._slot_rewards[slot])),
            failure=failure,
        )

    def _observe(self) -> Observation:
        # The width may be very large: copying only what is filled leaves the rest as untouched zero pages.
        tokens, longest = np.zeros_like(self._tokens), int(self._length.max())
        tokens[:, :longest] = self._tokens[:, :longest]
        return {"tokens": tokens, "length": self._length.copy()}


def is_plain_token_env(env: GymEnv | GymVectorEnv) -> bool:
    """Whether the actions are tokens and the observations the tokens so far."""
    observed = env.observation_space
    return (
        isinstance(env.action_space, spaces.Discrete)
        and isinstance(observed, spaces.Sequence)
        and isinstance(observed.feature_space, spaces.Discrete)
    )
