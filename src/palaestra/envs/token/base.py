"""Token environments: one action is the next token, one step advances every sequence by one token.

`TokenVectorEnv` is the environment itself, a native `gymnasium.vector.VectorEnv`: N slots, arrays in and
out, finished slots refilled in the same step. Torch lays its tensors over these arrays without a copy.
`palaestra.envs.token.single.TokenEnv` is its view through `gym.make`.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from palaestra.core.checks import short_repr
from palaestra.core.errors import EnvError, RewardError
from palaestra.core.records import StopReason
from palaestra.core.seeding import Seeds
from palaestra.core.user_code import describe_location
from palaestra.envs.token.prompts import (
    Prompt,
    PromptLike,
    Response,
    encode_prompt,
    find_end_ids,
    find_special_tokens,
    load_tokenizer,
    prompt_order,
    vocabulary_size,
)
from palaestra.envs.token.rewards import describe_error, judge, number, reward_error
from palaestra.envs.token.validation import check_count, check_seed, check_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

RewardFunction = Callable[[Response], float]
Observation = dict[str, np.ndarray]


class TokenVectorEnv(VectorEnv[Observation, np.ndarray, np.ndarray]):
    """Language-model episodes in slots.

    Give prompts and a reward on the finished response, as arguments or by a subclass; that is all.

    An observation is `{"tokens": [N, width], "length": [N]}`: the tokens so far, padded on the right. An
    action is the next token of every slot. A token that ends the response, or a stop string in its text,
    terminates the episode; the token limit truncates it. A finished slot starts its next prompt in the
    same step (`AutoresetMode.SAME_STEP`); the last observation is in `infos["final_obs"]` and the finished
    `Response` in `infos["responses"]`.

    Every step's infos hold, by slot: `episode` and `group` (numbers since the reset), `fresh` (the slot has
    just started), `active` (false for a slot with nothing left to do, see below), and `action_mask` where
    the environment restricts the tokens.

    Arguments:
        prompts: texts, conversations, token ids, or problems of a task.
        reward: judges a finished response.
        token_reward: optional reward of each token, from the prompt and the ids so far.
        legal_tokens: optional restriction, from the prompt and the ids so far: the ids that may come next,
            or `None` for all.
        tokenizer: a tokenizer, or the name of a model (shelf, folder, hub id) whose tokenizer is loaded.
        num_envs: how many slots.
        max_tokens: the most tokens of a response.
        context: the most tokens of prompt and response together, the model's limit; 0 means no limit.
        stop: strings that end a response; its text is what comes before them.
        end_ids: further tokens that end a response, beside the tokenizer's own.
        group_size: how many consecutive episodes share one prompt, for group methods.
        chat: whether a text is asked as a user's message, where the tokenizer has a chat template.
        failures: what a reward that raises or is no finite number does: `"raise"` a `RewardError`, or
            `"mark"` the response as failed, with reward 0 in the array and the cause in `Response.failure`.
            Other slots go on either way: when the error is raised, the step is done and finished slots are refilled.
        autoreset: `False` leaves finished slots inactive until the next reset.

    `reset(seed=s)` fixes the order of the prompts from here on; without a seed it goes on where it was.
    `reset(options=...)` takes `{"episodes": n}`: start only so many episodes in all, then leave slots
    inactive (what is done in them is ignored); `{"episode": e}`: begin at episode number e of the seed;
    `{"initial_state": text or ids}`: this prompt in every slot.

    Example:
        >>> env = TokenVectorEnv(["2 + 2 = ?"], lambda response: float("4" in response.text), num_envs=2)
        >>> observation, infos = env.reset(seed=0)
        >>> observation["length"].tolist() == [len(env.prompt(0).ids)] * 2
        True
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1, "autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(
        self,
        prompts: Sequence[PromptLike] = (),
        reward: RewardFunction | None = None,
        *,
        token_reward: Callable[[Prompt, Sequence[int]], float] | None = None,
        legal_tokens: Callable[[Prompt, Sequence[int]], Sequence[int] | None] | None = None,
        tokenizer: str | PreTrainedTokenizerBase = "nano",
        num_envs: int = 1,
        max_tokens: int = 64,
        context: int = 0,
        stop: str | Sequence[str] = (),
        end_ids: Sequence[int] = (),
        group_size: int = 1,
        chat: bool = True,
        failures: str = "raise",
        autoreset: bool = True,
        render_mode: str | None = None,
    ) -> None:
        for name, value in (("num_envs", num_envs), ("max_tokens", max_tokens), ("group_size", group_size)):
            if value < 1:
                raise EnvError(f"{type(self).__name__} needs {name} of at least 1; got {value}")
        if context < 0:
            raise EnvError(f"context is at least 1, or 0 for no limit; got {context}")
        if isinstance(prompts, (str, bytes)):
            raise EnvError(f"prompts are several; give a list, for example [{prompts[:30]!r}]")
        if failures not in ("raise", "mark"):
            raise EnvError(f"failures is 'raise' or 'mark'; got {failures!r}")
        self.num_envs, self.max_tokens, self.group_size = num_envs, max_tokens, group_size
        self.tokenizer = load_tokenizer(tokenizer)
        self.context, self.chat, self.failures = context, chat, failures
        self.autoreset, self.render_mode = autoreset, render_mode
        if not autoreset:
            self.metadata = {**self.metadata, "autoreset_mode": AutoresetMode.DISABLED}
        self._reward, self._token_reward, self._legal = reward, token_reward, legal_tokens
        self.vocabulary = vocabulary_size(self.tokenizer)
        self.stop = (stop,) if isinstance(stop, str) else tuple(stop)
        if not all(self.stop):
            raise EnvError("a stop string has at least one character; got an empty one")
        # Special tokens are no part of a response's text: a stop string that is one of them is a token that ends it.
        special = find_special_tokens(self.tokenizer)
        ends = [*end_ids, *(special[one] for one in self.stop if one in special)]
        self.stop = tuple(one for one in self.stop if one not in special)
        self.end_ids = find_end_ids(self.tokenizer, ends)
        if any(not 0 <= one < self.vocabulary for one in self.end_ids):
            raise EnvError(f"end_ids are tokens from 0 to {self.vocabulary - 1}; got {list(self.end_ids)}")
        self._items = _list_prompts(prompts) or _list_prompts(self.prompts(), describe_location(self.prompts))
        if not self._items:
            raise EnvError(f"{type(self).__name__} needs at least one prompt; got none")
        self._encoded: list[Prompt | None] = [None] * len(self._items)
        longest = self._check_prompts()
        self.width = min(longest + max_tokens, context) if context else longest + max_tokens
        self.single_action_space = spaces.Discrete(self.vocabulary)
        self.single_observation_space = spaces.Dict(
            {
                "tokens": spaces.Box(0, self.vocabulary - 1, (self.width,), np.int64),
                "length": spaces.Discrete(self.width + 1),
            }
        )
        pad = self.tokenizer.pad_token_id
        self.pad_id = int(pad) if pad is not None else self.end_ids[0]
        self._allocate(num_envs)
        self._is_end = np.zeros(self.vocabulary, dtype=bool)
        self._is_end[list(self.end_ids)] = True
        self._is_special = np.zeros(self.vocabulary, dtype=bool)
        self._is_special[list(special.values())] = True
        self._seed, self._next_episode, self._quota = 0, 0, -1
        self._forced: Prompt | None = None
        self._stop_reach = 2 * max((len(s.encode()) for s in self.stop), default=0) + 8
        self._watched = type(self).legal_tokens is not TokenVectorEnv.legal_tokens or legal_tokens is not None
        self._by_token = type(self).token_reward is not TokenVectorEnv.token_reward or token_reward is not None
        self._in_batch = type(self).rewards is not TokenVectorEnv.rewards

    # What a user overrides

    def prompts(self) -> Sequence[PromptLike]:
        """The prompts, where they were not given as an argument."""
        return ()

    def reward(self, response: Response) -> float:
        """The reward of one finished response."""
        if self._reward is None:
            raise EnvError(f"{type(self).__name__} has no reward; give `reward`, or override `reward` or `rewards`")
        return self._reward(response)

    def rewards(self, responses: Sequence[Response]) -> Sequence[float | RewardError]:
        """The rewards of the responses that finished in one step; override it to judge them in one batch.

        A response without a reward has a `RewardError` in its place.
        """
        return [self.reward(response) for response in responses]

    def token_reward(self, prompt: Prompt, token_ids: Sequence[int]) -> float:
        """The reward of the token that was just chosen, given all of the response's ids so far."""
        return self._token_reward(prompt, token_ids) if self._token_reward is not None else 0.0

    def legal_tokens(self, prompt: Prompt, token_ids: Sequence[int]) -> Sequence[int] | None:
        """The ids that may come next, or `None` for all."""
        return self._legal(prompt, token_ids) if self._legal is not None else None

    # Gymnasium's contract

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        seed, options = check_seed(seed, type(self).__name__), options or {}
        unknown = set(options) - {"episodes", "episode", "initial_state", "reset_mask"}
        if unknown:
            raise EnvError(
                f"reset knows the options episodes, episode, initial_state, reset_mask; got {sorted(map(str, unknown))}"
            )
        first, count = check_count(options, "episode"), check_count(options, "episodes")
        mask = np.asarray(options.get("reset_mask", np.ones(self.num_envs, dtype=bool)))
        if mask.shape != (self.num_envs,) or mask.dtype != bool:
            raise EnvError(f"reset_mask has a bool a slot, shape ({self.num_envs},); got {mask.dtype} {mask.shape}")
        state = options.get("initial_state")
        self._forced = None if state is None else self._encode(state, "given as initial_state")
        if seed is not None:
            self._seed, self._next_episode = seed, 0
            self._np_random = np.random.default_rng(Seeds(seed).derive("token-env").integer())
        if first is not None:
            self._next_episode = first
        self._quota = -1 if count is None else self._next_episode + count
        self._fresh[mask] = False
        for slot in np.flatnonzero(mask):
            self._begin(int(slot))
        return self._observe(), self._infos()

    def step(self, actions: np.ndarray) -> tuple[Observation, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        active = self._active.copy()
        actions = check_tokens(actions, active, self.vocabulary)
        if self._watched:
            self._check_legal(actions)
        slots, chosen = self._every[active], actions[active]
        self._tokens[slots, self._length[slots]] = chosen
        self._length[slots] += 1
        self._fresh[:] = False
        terminated = np.zeros(self.num_envs, dtype=bool)
        terminated[slots] = self._is_end[chosen]
        stopped = self._stopped(slots) if self.stop else []
        terminated[stopped] = True
        full = (self._length - self._prompt_length >= self.max_tokens) | (self._length >= self.width)
        truncated = full & active & ~terminated
        ended = terminated | truncated
        rewards = np.zeros(self.num_envs, dtype=np.float64)
        broken: list[RewardError] = []
        responses, final_obs = [], np.full(self.num_envs, None, dtype=object)
        try:
            if self._by_token:
                self._reward_tokens(slots, rewards, broken)
            if ended.any():
                responses = self._finish(self._every[ended], set(stopped), rewards, broken)
        finally:
            # Whatever a user's reward raises, the step is done: finished slots never wait for another token.
            for slot in self._every[ended]:
                final_obs[slot] = {"tokens": self._tokens[slot].copy(), "length": np.int64(self._length[slot])}
                self._active[slot] = False
                if self.autoreset:
                    self._begin(int(slot))
        infos = self._infos()
        if broken and self.failures == "raise":
            raise broken[0]
        if ended.any():
            infos["final_obs"], infos["_final_obs"] = final_obs, ended
            infos["responses"] = responses
        return self._observe(), rewards, terminated, truncated, infos

    def render(self) -> tuple[str, ...] | None:
        if self.render_mode != "ansi":
            return None
        return tuple(
            str(self.tokenizer.decode(self._tokens[slot, : self._length[slot]])) for slot in range(self.num_envs)
        )

    # For whoever trains

    @property
    def items(self) -> list[PromptLike]:
        """What the prompts were made from, in the order in which they were given."""
        return self._items

    def hold_out(self, count: int) -> TokenVectorEnv:
        """Take some prompts out of this environment; returns one like it that has them and no others.

        Which they are depends on their tokens alone, and equal prompts stay together. At most a fifth of the
        different prompts is taken; where that is none (fewer than five, or a count of 0), both have them all.
        """
        copies: dict[tuple[int, ...], list[int]] = {}
        for index in range(len(self._items)):
            copies.setdefault(self._prompt(index).ids, []).append(index)
        order = sorted(copies, key=lambda ids: hashlib.blake2b(repr(ids).encode()).digest())
        out = {index for ids in order[: min(count, len(order) // 5)] for index in copies[ids]}
        other = copy.copy(self)
        other._keep([index for index in range(len(self._items)) if index in out or not out])
        self._keep([index for index in range(len(self._items)) if index not in out])
        other.group_size, other._forced = 1, None
        other._allocate(min(self.num_envs, len(other._items)))
        return other

    @property
    def next_episode(self) -> int:
        """The number of the episode that will start next; `reset(seed=..., options={"episode": n})` goes on there."""
        return self._next_episode

    def prompt(self, episode: int) -> Prompt:
        """The prompt of an episode under the present seed."""
        index = prompt_order(len(self._items), self._seed, episode // self.group_size)
        return self._prompt(index)

    def __len__(self) -> int:
        """How many prompts there are."""
        return len(self._items)

    # Inside

    def _allocate(self, num_envs: int) -> None:
        """The arrays of so many slots."""
        self.num_envs = num_envs
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self._tokens = np.full((num_envs, self.width), self.pad_id, dtype=np.int64)
        self._length = np.zeros(num_envs, dtype=np.int64)
        self._prompt_length = np.zeros(num_envs, dtype=np.int64)
        self._episode = np.full(num_envs, -1, dtype=np.int64)
        self._active = np.zeros(num_envs, dtype=bool)
        self._fresh = np.zeros(num_envs, dtype=bool)
        self._slot_prompts: list[Prompt | None] = [None] * num_envs
        self._slot_rewards: list[list[float]] = [[] for _ in range(num_envs)]
        self._slot_broken: list[RewardError | None] = [None] * num_envs
        self._slot_legal: list[np.ndarray | None] = [None] * num_envs
        self._every = np.arange(num_envs)

    def _keep(self, indices: Sequence[int]) -> None:
        """Have only these prompts."""
        self._items = [self._items[index] for index in indices]
        self._encoded = [self._encoded[index] for index in indices]

    def _prompt(self, index: int) -> Prompt:
        found = self._encoded[index]
        if found is None:
            found = self._encode(self._items[index], f"{index + 1} of {len(self._items)}")
            self._encoded[index] = found
        return found

    def _encode(self, item: PromptLike, which: str) -> Prompt:
        try:
            prompt = encode_prompt(item, self.tokenizer, self.chat)
        except EnvError as error:
            raise EnvError(f"the prompt {which} cannot be read: {error}") from None
        if not prompt.ids:
            raise EnvError(f"the prompt {which} is empty")
        if min(prompt.ids) < 0 or max(prompt.ids) >= self.vocabulary:
            wrong = next(one for one in prompt.ids if not 0 <= one < self.vocabulary)
            raise EnvError(f"the prompt {which} has the token {wrong}; tokens are from 0 to {self.vocabulary - 1}")
        if self.context and len(prompt.ids) >= self.context:
            raise EnvError(
                f"the prompt {which} has {len(prompt.ids)} tokens; the model reads {self.context}, its response "
                f"included: {prompt.text[:50]!r}"
            )
        if hasattr(self, "width") and len(prompt.ids) >= self.width:
            raise EnvError(
                f"the prompt {which} has {len(prompt.ids)} tokens; the environment has room for {self.width}, the "
                f"response included"
            )
        return prompt

    def _check_prompts(self) -> int:
        return max(len(self._prompt(index).ids) for index in range(len(self._items)))

    def _begin(self, slot: int) -> None:
        if 0 <= self._quota <= self._next_episode:
            self._active[slot], self._episode[slot] = False, -1
            return
        prompt = self._forced if self._forced is not None else self.prompt(self._next_episode)
        self._slot_prompts[slot] = prompt
        self._episode[slot] = self._next_episode
        self._next_episode += 1
        length = len(prompt.ids)
        self._tokens[slot, :length] = prompt.ids
        self._tokens[slot, length:] = self.pad_id
        self._length[slot] = self._prompt_length[slot] = length
        self._slot_rewards[slot], self._slot_broken[slot] = [], None
        self._active[slot] = self._fresh[slot] = True

    def _observe(self) -> Observation:
        return {"tokens": self._tokens.copy(), "length": self._length.copy()}

    def _infos(self) -> dict[str, Any]:
        infos: dict[str, Any] = {
            "episode": self._episode.copy(),
            "group": np.where(self._episode >= 0, self._episode // self.group_size, -1),
            "fresh": self._fresh.copy(),
            "active": self._active.copy(),
        }
        if self._watched:
            infos["action_mask"] = self._masks()
        return infos

    def _masks(self) -> np.ndarray:
        masks = np.ones((self.num_envs, self.vocabulary), dtype=np.int8)
        for slot in self._every[self._active].tolist():
            legal = self._slot_legal[slot] = self._legal_in(slot)
            if legal is not None:
                masks[slot] = 0
                masks[slot, legal] = 1
        return masks

    def _legal_in(self, slot: int) -> np.ndarray | None:
        prompt = self._slot_prompts[slot]
        assert prompt is not None
        try:
            given = self.legal_tokens(prompt, self._response_ids(slot))
        except Exception as error:  # A function of the user's: it may raise anything.
            raise EnvError(f"legal_tokens failed in slot {slot}: {describe_error(error)}") from error
        if given is None:
            return None
        legal = np.asarray(list(given))
        if not len(legal):
            raise EnvError(f"legal_tokens left no token in slot {slot}; give at least the end of the sequence")
        if not np.issubdtype(legal.dtype, np.integer) or legal.min() < 0 or legal.max() >= self.vocabulary:
            raise EnvError(f"legal_tokens gives tokens from 0 to {self.vocabulary - 1}; got {legal[:5].tolist()}")
        return legal

    def _check_legal(self, actions: np.ndarray) -> None:
        """Hold the actions against what the last infos allowed."""
        for slot in self._every[self._active].tolist():
            legal = self._slot_legal[slot]
            if legal is not None and actions[slot] not in legal:
                raise EnvError(f"token {int(actions[slot])} is not legal in slot {slot}; see infos['action_mask']")

    def _response_ids(self, slot: int) -> tuple[int, ...]:
        return tuple(self._tokens[slot, self._prompt_length[slot] : self._length[slot]].tolist())

    def _stopped(self, slots: np.ndarray) -> list[int]:
        """The slots in whose text a stop string has appeared. Only the end of the text is decoded each step."""
        found = []
        for slot in slots.tolist():
            ids = self._tokens[slot, self._prompt_length[slot] : self._length[slot]]
            # Special tokens have no text: however many there are, a stop string may reach across them.
            tail = ids[~self._is_special[ids]][-self._stop_reach :]
            text = str(self.tokenizer.decode(tail, skip_special_tokens=True))
            if any(stop in text for stop in self.stop):
                found.append(slot)
        return found

    def _reward_tokens(self, slots: np.ndarray, rewards: np.ndarray, broken: list[RewardError]) -> None:
        """A token that cannot be rewarded counts 0; its whole response is marked when it finishes."""
        for slot in slots.tolist():
            prompt = self._slot_prompts[slot]
            assert prompt is not None
            try:
                rewards[slot] = number(self.token_reward(prompt, self._response_ids(slot)))
            except Exception as error:  # A function of the user's: it may raise anything.
                broken.append(reward_error(error, "token_reward", prompt, self._token_reward or self.token_reward))
                self._slot_broken[slot] = self._slot_broken[slot] or broken[-1]
            self._slot_rewards[slot].append(float(rewards[slot]))

    @property
    def _reward_function(self) -> Callable[..., Any]:
        """What a user wrote to judge responses."""
        return self.rewards if self._in_batch else self._reward or self.reward

    def _finish(
        self, done: np.ndarray, stopped: set[int], rewards: np.ndarray, broken: list[RewardError]
    ) -> list[Response]:
        """Judge the responses that have finished."""
        responses = [self._response(slot, slot in stopped) for slot in done.tolist()]
        finished: list[Response] = []
        for response, value in zip(responses, judge(self.rewards, responses, self._in_batch), strict=True):
            slot = int(done[len(finished)])
            failure = self._slot_broken[slot]
            if isinstance(value, Exception):
                failure = failure or reward_error(value, "reward", response.prompt, self._reward_function)
                broken.append(failure)
            if failure is not None:
                rewards[slot] = 0.0
                finished.append(replace(response, failure=str(failure)))
            else:
                assert isinstance(value, float)
                rewards[slot] += value
                finished.append(replace(response, reward=value, token_rewards=tuple(self._slot_rewards[slot])))
        return finished

    def _response(self, slot: int, stopped: bool) -> Response:
        prompt, ids = self._slot_prompts[slot], self._response_ids(slot)
        assert prompt is not None
        ended = bool(self._is_end[ids[-1]])
        text = str(self.tokenizer.decode(ids[:-1] if ended else ids, skip_special_tokens=True))
        reason = StopReason.END if ended else StopReason.STOP if stopped else StopReason.LENGTH
        if stopped:
            text = text[: min((at for at in (text.find(s) for s in self.stop) if at >= 0), default=len(text))]
        episode = int(self._episode[slot])
        return Response(prompt, ids, text, reason, episode, episode // self.group_size)


def _list_prompts(prompts: Any, where: str = "") -> list[PromptLike]:
    if not isinstance(prompts, Iterable):
        raise EnvError(f"prompts are a list of prompts; got {short_repr(prompts)}{where}")
    return list(prompts)
