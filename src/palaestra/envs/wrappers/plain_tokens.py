"""A plain `gymnasium.Env` whose actions are tokens, as a token vector environment."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
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
from palaestra.envs.token.validation import check_count, check_seed, check_tokens
from palaestra.envs.wrappers.checked import check_inside, describe_failure

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ROOM = 4096
"""Tokens of an episode where the model sets no limit."""


class PlainTokenVectorEnv(VectorEnv[Any, Any, Any]):
    """Many copies of an environment that a user wrote one step at a time.

    The environment's action is a token (`Discrete`), its observation the tokens so far (`Sequence` of
    `Discrete`): what `reset` returns is the prompt, and every step must append the action to it. Its rewards
    are kept step by step; `Response.reward` is their sum. Observations and infos are those of `TokenVectorEnv`,
    and so are the reset options `episodes` and `episode`; other options go to the environments.

    An environment is reset with the seed of its group. One that draws from the global generators of `random` or
    NumPy instead finds them seeded alike for that moment; they are put back.

    Arguments:
        make: makes one environment.
        num_envs: how many slots.
        tokenizer: to show what was said; the environment does not need it.
        max_tokens: the most tokens of an episode; one that goes on is truncated there.
        context: the most tokens in all, the model's limit; 0 means no limit, for which there is room for `ROOM`.
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
        context = context or ROOM
        self.max_tokens, self.group_size, self.failures, self.width = max_tokens, group_size, failures, context
        self.envs = [check_inside(make(), observations=False) for _ in range(num_envs)]
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
        self._options: dict[str, Any] | None = None
        self._start: tuple[int, list[int]] = (-1, [])

    @property
    def next_episode(self) -> int:
        return self._next_episode

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        seed, options = check_seed(seed, self.name), dict(options or {})
        first, count = check_count(options, "episode"), check_count(options, "episodes")
        if seed is not None:
            self._seed, self._next_episode = seed, 0
        if first is not None:
            self._next_episode = first
        self._quota = -1 if count is None else self._next_episode + count
        self._options = {name: options[name] for name in options if name not in ("episode", "episodes")} or None
        self._fresh[:], self._start = False, (-1, [])
        for slot in range(self.num_envs):
            self._begin(slot)
        return self._observe(), self._infos()

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
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
            except Exception as error:  # An environment is a program of somebody else's: it may raise anything.
                failure = describe_failure(self.name, error)
                if self.failures == "raise":
                    raise EnvError(failure) from error
                rewards[slot], terminated[slot], truncated[slot] = 0.0, False, True
                self._remake(slot)
            else:
                self._check_growth(slot, state)
            self._rewards[slot].append(float(rewards[slot]))
            full = len(self._rewards[slot]) >= self.max_tokens or self._length[slot] >= self.width
            truncated[slot] = (truncated[slot] or full) and not terminated[slot]
            if terminated[slot] or truncated[slot]:
                responses.append(self._response(slot, bool(terminated[slot]), failure))
                final_obs[slot] = {"tokens": self._tokens[slot].copy(), "length": np.int64(self._length[slot])}
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
        if 0 <= self._quota <= self._next_episode:
            self._active[slot], self._episode[slot] = False, -1
            return
        episode = self._episode[slot] = self._next_episode
        self._next_episode += 1
        group = int(episode) // self.group_size
        seed = Seeds(self._seed).derive("group", group).integer() % 2**31
        try:
            with _seeded_globals(seed):
                state, _ = self.envs[slot].reset(seed=seed, options=self._options)
        except Exception as error:
            raise EnvError(f"{describe_failure(self.name, error)} in reset") from error
        ids = [int(token) for token in state]
        if not ids or len(ids) >= self.width:
            raise EnvError(
                f"{self.name} starts with {len(ids)} tokens; expected 1 to {self.width - 1}, the model's context"
            )
        if min(ids) < 0 or max(ids) >= self.vocabulary:
            raise EnvError(f"{self.name} starts with tokens that are not from 0 to {self.vocabulary - 1}")
        # Episodes start in their order, so the members of a group start one after the other.
        if self._start[0] == group and self._start[1] != ids:
            raise EnvError(
                f"{self.name} starts differently when it is reset with the same seed, so it has no groups; let its "
                f"reset draw from the seed, or learn by ppo or reinforce"
            )
        self._start = (group, ids)
        self._tokens[slot, : len(ids)] = ids
        self._tokens[slot, len(ids) :] = 0
        self._length[slot] = self._prompt_length[slot] = len(ids)
        self._rewards[slot] = []
        self._active[slot] = self._fresh[slot] = True

    def _remake(self, slot: int) -> None:
        with suppress(Exception):  # What broke may break again when it is closed.
            self.envs[slot].close()
        self.envs[slot] = check_inside(self.make(), observations=False)

    def _check_growth(self, slot: int, state: Sequence[int]) -> None:
        known = self._tokens[slot, : self._length[slot]]
        if not np.array_equal(np.asarray(state), known):
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
        # A model may read very much: only what is written is copied, the rest is memory that nobody touches.
        tokens, longest = np.zeros_like(self._tokens), int(self._length.max())
        tokens[:, :longest] = self._tokens[:, :longest]
        return {"tokens": tokens, "length": self._length.copy()}

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


@contextmanager
def _seeded_globals(seed: int) -> Iterator[None]:
    """Borrow the global generators of `random` and NumPy, and put them back."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
