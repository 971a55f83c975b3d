"""The contract of token environments: what training reads from one beyond Gymnasium's vector API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from palaestra.core.errors import EnvError
from palaestra.core.records import Problem
from palaestra.core.settings import check_integer
from palaestra.envs.base import Info, Options
from palaestra.tasks.base import Task

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from transformers import PreTrainedTokenizerBase

    from palaestra.envs.token.prompts import Response


Observation = dict[str, np.ndarray]


class TokenEnvContract(VectorEnv[Observation, np.ndarray, np.ndarray]):
    """Base class of all token environments. Subclasses call `_define_spaces` and `_allocate` when they are built.

    An observation is `{"tokens": [N, width], "length": [N]}`: the tokens so far, padded on the right. An action is the
    next token of every slot. A finished slot starts its next episode in the same step (`AutoresetMode.SAME_STEP`); the
    last observation is in `infos["final_obs"]` and the finished `Response` in `infos["responses"]`.

    The infos of `reset` and `step` contain one value per slot:

    - `episode` and `group`: the numbers of the episode and its group, counted from the seeded reset; -1 if inactive
    - `fresh`: the slot has just started an episode
    - `active`: the slot has an episode; actions for inactive slots are ignored

    `reset(seed=s)` restarts the order of the episodes; without a seed the order continues. `reset(options=...)` takes
    `{"episodes": n}`, which starts `n` episodes in total and then leaves slots inactive, and `{"episode": e}`, which
    begins at episode number `e`. Environments with `skills` also take `{"prompts": [...]}`, the indices of the prompts of the
    next groups.

    Attributes:
        tokenizer: decodes prompts and responses; `None` if the environment was given none.
        vocabulary: number of token ids; actions are from 0 to `vocabulary - 1`.
        max_tokens: maximum number of tokens per response.
        width: maximum number of tokens of prompt and response together.
        group_size: number of consecutive episodes that share a prompt.
        task: the task that scores the responses. If it is set, training evaluates the policy on `draw_held_out_problems`
            by greedy decoding; otherwise on the environment that `hold_out` returns.
        kl_coef: weight of the KL divergence from the reference model in training. `None` means no reference
            model unless the run's settings enable one; 0 only reports the divergence.
        reference: name of the reference model. Empty means the policy before training.
        bootstrap_truncated: whether training adds the critic's value of its last state to the reward of a truncated
            episode. False: the limit is part of the task and ends it. True: the episode would have gone on.
        num_prompts: number of prompts; `None` if the environment generates them.
        skills: the skill and subskill of each prompt, for a curriculum; empty if the prompts cannot be chosen.
        progress: the arguments of the `TrainerState` that reward functions get.
        cuts_responses: whether every response is truncated at its next token, until the next reset.
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    tokenizer: PreTrainedTokenizerBase | None
    vocabulary: int
    max_tokens: int
    width: int
    group_size: int = 1
    task: Task | None = None
    kl_coef: float | None = None
    reference: str = ""
    bootstrap_truncated: bool = False
    num_prompts: int | None = None
    skills: Sequence[str] = ()
    progress: Mapping[str, Any] = MappingProxyType({})
    cuts_responses: bool = False
    pad_id: int = 0
    _seed = 0
    _next_episode = 0
    _quota = -1

    def hold_out(self, count: int) -> TokenEnvContract:
        """Return an environment to evaluate on, with about `count` prompts that this one no longer uses."""
        raise NotImplementedError

    def draw_held_out_problems(self, per_skill: int, seed: int) -> Sequence[Problem]:
        """Draw test problems of the same skills. Called only if `task` is set."""
        raise NotImplementedError

    def defer_rewards(self) -> bool:
        """Until the next reset, let responses end without the reward that `score_responses` computes for all together.

        Returns false if the environment rewards each response at its end.
        """
        return False

    def score_responses(self, responses: Sequence[Response]) -> list[Response]:
        """Compute the rewards of the responses of a rollout, after `defer_rewards`."""
        raise NotImplementedError

    @property
    def next_episode(self) -> int:
        """The number of the episode that starts next. `reset(seed=..., options={"episode": n})` continues there."""
        return self._next_episode

    # Slots: state that all token environments share

    def _define_spaces(self) -> None:
        self.single_action_space = spaces.Discrete(self.vocabulary)
        self.single_observation_space = spaces.Dict(
            {
                "tokens": spaces.Box(0, self.vocabulary - 1, (self.width,), np.int64),
                "length": spaces.Discrete(self.width + 1),
            }
        )

    def _allocate(self, num_envs: int) -> None:
        """Create the arrays of `num_envs` slots."""
        self.num_envs = num_envs
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self._tokens = np.full((num_envs, self.width), self.pad_id, dtype=np.int64)
        self._length = np.zeros(num_envs, dtype=np.int64)
        self._prompt_length = np.zeros(num_envs, dtype=np.int64)
        self._episode = np.full(num_envs, -1, dtype=np.int64)
        self._active = np.zeros(num_envs, dtype=bool)
        self._fresh = np.zeros(num_envs, dtype=bool)
        self._slot_rewards: list[list[float]] = [[] for _ in range(num_envs)]

    def _count_from(self, seed: int | list[int | None] | None, options: Options, name: str) -> int | None:
        """Apply the seed and the options `episode` and `episodes` of a reset. Returns the seed.

        Episodes are numbered over all slots and share one order, so all slots have one seed.
        """
        if isinstance(seed, (list, tuple)):
            if any(value != seed[0] for value in seed):
                raise EnvError(f"{name} accepts one seed for all slots; got {seed}")
            seed = seed[0]
        first, count = (
            None if options.get(option) is None else check_integer(f"the reset option {option}", options[option], 0)
            for option in ("episode", "episodes")
        )
        if seed is not None:
            self._seed, self._next_episode = int(seed), 0
        if first is not None:
            self._next_episode = first
        self._quota = -1 if count is None else self._next_episode + count
        self.cuts_responses = False
        return None if seed is None else int(seed)

    def _take_episode(self, slot: int) -> int | None:
        """Assign the next episode to a slot; `None` if the quota is used up, which makes the slot inactive."""
        if 0 <= self._quota <= self._next_episode:
            self._active[slot], self._episode[slot] = False, -1
            return None
        episode = self._next_episode
        self._episode[slot] = episode
        self._next_episode += 1
        return episode

    def _start_slot(self, slot: int, prompt_ids: Sequence[int]) -> None:
        """Put a prompt into a slot and activate it."""
        length = len(prompt_ids)
        self._tokens[slot, :length] = prompt_ids
        self._tokens[slot, length:] = self.pad_id
        self._length[slot] = self._prompt_length[slot] = length
        self._slot_rewards[slot] = []
        self._active[slot] = self._fresh[slot] = True

    def _response_ids(self, slot: int) -> tuple[int, ...]:
        return tuple(self._tokens[slot, self._prompt_length[slot] : self._length[slot]].tolist())

    def _observe(self) -> Observation:
        return {"tokens": self._tokens.copy(), "length": self._length.copy()}

    def _observe_slot(self, slot: int) -> Observation:
        return {"tokens": self._tokens[slot].copy(), "length": np.int64(self._length[slot])}

    def _infos(self) -> Info:
        return {
            "episode": self._episode.copy(),
            "group": np.where(self._episode >= 0, self._episode // self.group_size, -1),
            "fresh": self._fresh.copy(),
            "active": self._active.copy(),
        }


def check_tokens(actions: ArrayLike, active: np.ndarray, vocabulary: int) -> np.ndarray:
    """Return the actions of a step as an array of tokens.

    Raises:
        EnvError: no slot is active, the shape is wrong, or the action of an active slot is not in the vocabulary.
    """
    tokens: np.ndarray = np.asarray(actions)
    if tokens.shape != active.shape:
        raise EnvError(f"step expects one token per slot, shape {active.shape}; got shape {tokens.shape}")
    if not np.issubdtype(tokens.dtype, np.integer):
        raise EnvError(f"tokens must be integers; got actions of type {tokens.dtype}")
    if not active.any():
        raise EnvError("no slot is active: all episodes are done; call reset")
    chosen = tokens[active]
    wrong = chosen[(chosen < 0) | (chosen >= vocabulary)]
    if len(wrong):
        raise EnvError(f"tokens must be from 0 to {vocabulary - 1}; got {wrong[0]}")
    return tokens
