"""Token environments: one action is the next token, one step advances every sequence by one token.

`TokenVectorEnv` is the environment itself, a native `gymnasium.vector.VectorEnv`: N slots, arrays in and
out, finished slots refilled in the same step. Torch lays its tensors over these arrays without a copy.
`palaestra.envs.token.single.TokenEnv` is its view through `gym.make`.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from palaestra.core.errors import EnvError, RewardError
from palaestra.core.records import StopReason
from palaestra.core.seeding import Seeds
from palaestra.envs.token.prompts import (
    Prompt,
    PromptLike,
    Response,
    encode_prompt,
    end_ids_of,
    load_tokenizer,
    prompt_order,
)

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
        stop: strings that end a response.
        end_ids: further tokens that end a response, beside the tokenizer's own.
        group_size: how many consecutive episodes share one prompt, for group methods.
        chat: whether a text is asked as a user's message, where the tokenizer has a chat template.
        failures: what a reward that raises or is no finite number does: `"raise"` a `RewardError`, or
            `"mark"` the response as failed, with reward 0 in the array and the cause in `Response.failure`.
            Other slots go on either way.
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

    metadata = {"render_modes": ["ansi"], "autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

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
        stop: Sequence[str] = (),
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
        if failures not in ("raise", "mark"):
            raise EnvError(f"failures is 'raise' or 'mark'; got {failures!r}")
        self.num_envs, self.max_tokens, self.group_size = num_envs, max_tokens, group_size
        self.tokenizer = load_tokenizer(tokenizer)
        self.context, self.stop, self.chat, self.failures = context, tuple(stop), chat, failures
        self.autoreset, self.render_mode = autoreset, render_mode
        if not autoreset:
            self.metadata = {**self.metadata, "autoreset_mode": AutoresetMode.DISABLED}
        self._reward, self._token_reward, self._legal = reward, token_reward, legal_tokens
        self.end_ids = end_ids_of(self.tokenizer, end_ids)
        self.vocabulary = len(self.tokenizer)
        self._items = list(prompts) if len(prompts) else list(self.prompts())
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
        self._is_end[[i for i in self.end_ids if i < self.vocabulary]] = True
        self._seed, self._next_episode, self._quota = 0, 0, -1
        self._forced: Prompt | None = None
        self._stop_reach = 2 * max((len(s.encode()) for s in self.stop), default=0) + 8
        self._watched = type(self).legal_tokens is not TokenVectorEnv.legal_tokens or legal_tokens is not None
        self._by_token = type(self).token_reward is not TokenVectorEnv.token_reward or token_reward is not None

    # What a user overrides

    def prompts(self) -> Sequence[PromptLike]:
        """The prompts, where they were not given as an argument."""
        return ()

    def reward(self, response: Response) -> float:
        """The reward of one finished response."""
        if self._reward is None:
            raise EnvError(f"{type(self).__name__} has no reward; give `reward`, or override `reward` or `rewards`")
        return self._reward(response)

    def rewards(self, responses: Sequence[Response]) -> Sequence[float]:
        """The rewards of the responses that finished in one step; override it to judge them in one batch."""
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
        if isinstance(seed, list):
            if any(s != seed[0] for s in seed):
                raise EnvError(f"{type(self).__name__} takes one seed for all slots; got {seed}")
            seed = seed[0] if seed else None
        if seed is not None:
            self._seed, self._next_episode = int(seed), 0
            self._np_random = np.random.default_rng(Seeds(self._seed).derive("token-env").integer())
        options = options or {}
        unknown = set(options) - {"episodes", "episode", "initial_state", "reset_mask"}
        if unknown:
            raise EnvError(
                f"reset knows the options episodes, episode, initial_state, reset_mask; got {sorted(unknown)}"
            )
        if "episode" in options:
            self._next_episode = int(options["episode"])
        mask = np.asarray(options.get("reset_mask", np.ones(self.num_envs, dtype=bool)), dtype=bool)
        self._quota = self._next_episode + int(options["episodes"]) if "episodes" in options else -1
        state = options.get("initial_state")
        self._forced = (
            None if state is None else self._fitting(encode_prompt(state, self.tokenizer, self.chat), "given")
        )
        self._fresh[:] = False
        for slot in np.flatnonzero(mask):
            self._begin(int(slot))
        return self._observe(), self._infos()

    def step(self, actions: np.ndarray) -> tuple[Observation, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        actions = np.asarray(actions)
        if actions.shape != (self.num_envs,):
            raise EnvError(f"step needs one token a slot, shape ({self.num_envs},); got shape {actions.shape}")
        active = self._active
        if not active.any():
            raise EnvError("no slot is active: all episodes are done; call reset")
        chosen = actions[active]
        if chosen.min() < 0 or chosen.max() >= self.vocabulary:
            raise EnvError(
                f"a token is from 0 to {self.vocabulary - 1}; got {chosen[(chosen < 0) | (chosen >= self.vocabulary)][0]}"
            )
        if self._watched:
            self._check_legal(actions)
        slots = self._every[active]
        self._tokens[slots, self._length[slots]] = chosen
        self._length[slots] += 1
        self._fresh[:] = False
        count = self._length - self._prompt_length
        terminated = np.zeros(self.num_envs, dtype=bool)
        terminated[slots] = self._is_end[chosen]
        stopped = self._stopped(slots) if self.stop else ()
        terminated[list(stopped)] = True
        full = (count >= self.max_tokens) | (self._length >= self.width)
        truncated = full & active & ~terminated
        rewards = np.zeros(self.num_envs, dtype=np.float64)
        if self._by_token:
            self._reward_tokens(slots, rewards)
        done = np.flatnonzero(terminated | truncated)
        responses = self._finish(done, terminated, set(stopped), rewards) if len(done) else []
        final_obs = None
        if len(done):
            final_obs = np.full(self.num_envs, None, dtype=object)
            for slot in done:
                final_obs[slot] = {"tokens": self._tokens[slot].copy(), "length": np.int64(self._length[slot])}
                self._active[slot] = False
                if self.autoreset:
                    self._begin(int(slot))
        infos = self._infos()
        if final_obs is not None:
            infos["final_obs"], infos["_final_obs"] = final_obs, terminated | truncated
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

        Which they are depends on their text alone. At most a fifth is taken; of a single prompt none is, and
        both have it.
        """
        order = sorted(
            range(len(self._items)), key=lambda k: hashlib.blake2b(repr(self._prompt(k).ids).encode()).digest()
        )
        taken = set(order[: min(count, len(order) // 5)]) or set(order)
        other = copy.copy(self)
        other._items = [self._items[k] for k in range(len(order)) if k in taken]
        other._encoded = [self._encoded[k] for k in range(len(order)) if k in taken]
        if len(taken) < len(order):
            self._items, self._encoded = (
                [self._items[k] for k in range(len(order)) if k not in taken],
                [self._encoded[k] for k in range(len(order)) if k not in taken],
            )
        other.group_size = 1
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
        self._every = np.arange(num_envs)

    def _prompt(self, index: int) -> Prompt:
        found = self._encoded[index]
        if found is None:
            found = self._encoded[index] = self._fitting(
                encode_prompt(self._items[index], self.tokenizer, self.chat), f"{index + 1} of {len(self._items)}"
            )
        return found

    def _fitting(self, prompt: Prompt, which: str) -> Prompt:
        if not prompt.ids:
            raise EnvError(f"the prompt {which} is empty")
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
        self._slot_rewards[slot] = []
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
        for slot in self._every[self._active]:
            legal = self._legal_of(int(slot))
            if legal is not None:
                masks[slot] = 0
                masks[slot, list(legal)] = 1
        return masks

    def _legal_of(self, slot: int) -> Sequence[int] | None:
        prompt = self._slot_prompts[slot]
        assert prompt is not None
        legal = self.legal_tokens(prompt, self._response_ids(slot))
        if legal is not None and len(legal) == 0:
            raise EnvError(f"legal_tokens left no token in slot {slot}; give at least the end of the sequence")
        return legal

    def _check_legal(self, actions: np.ndarray) -> None:
        for slot in self._every[self._active]:
            legal = self._legal_of(int(slot))
            if legal is not None and int(actions[slot]) not in set(legal):
                raise EnvError(f"token {int(actions[slot])} is not legal in slot {slot}; see infos['action_mask']")

    def _response_ids(self, slot: int) -> tuple[int, ...]:
        return tuple(self._tokens[slot, self._prompt_length[slot] : self._length[slot]].tolist())

    def _stopped(self, slots: np.ndarray) -> list[int]:
        """The slots in whose text a stop string has appeared. Only the end of the text is decoded each step."""
        found = []
        for slot in slots:
            end = self._length[slot]
            start = max(self._prompt_length[slot], end - self._stop_reach)
            tail = self.tokenizer.decode(self._tokens[slot, start:end], skip_special_tokens=True)
            if any(stop in tail for stop in self.stop):
                found.append(int(slot))
        return found

    def _reward_tokens(self, slots: np.ndarray, rewards: np.ndarray) -> None:
        for slot in slots:
            prompt = self._slot_prompts[slot]
            assert prompt is not None
            try:
                value = _number(self.token_reward(prompt, self._response_ids(int(slot))))
            except Exception as error:
                if self.failures == "raise" or isinstance(error, EnvError):
                    raise _reward_error(error, "token_reward", prompt) from error
                value = math.nan  # The whole response will be marked as failed when it finishes.
            self._slot_rewards[slot].append(value)
            rewards[slot] = 0.0 if math.isnan(value) else value

    def _finish(
        self, done: np.ndarray, terminated: np.ndarray, stopped: set[int], rewards: np.ndarray
    ) -> list[Response]:
        """Judge the responses that have finished, each on its own where the batch raises."""
        responses = [self._response(int(slot), bool(terminated[slot]), int(slot) in stopped) for slot in done]
        values: list[float | Exception]
        try:
            judged = list(self.rewards(responses))
            if len(judged) != len(responses):
                raise RewardError(f"rewards gave {len(judged)} values for {len(responses)} responses")
            values = [_tried(lambda value=value: value) for value in judged]  # type: ignore[misc]
        except EnvError:
            raise
        except Exception:
            values = [_tried(lambda one=one: next(iter(self.rewards([one])))) for one in responses]  # type: ignore[misc]
        finished = []
        for slot, response, value in zip(done, responses, values, strict=True):
            if any(math.isnan(r) for r in self._slot_rewards[slot]):
                value = RewardError("the reward of a token is not a finite number")
            by_token = tuple(0.0 if math.isnan(r) else r for r in self._slot_rewards[slot])
            if isinstance(value, Exception):
                if self.failures == "raise":
                    raise _reward_error(value, "reward", response.prompt) from value
                finished.append(replace(response, failure=str(_reward_error(value, "reward", response.prompt))))
            else:
                rewards[slot] += value
                finished.append(replace(response, reward=value, token_rewards=by_token))
        return finished

    def _response(self, slot: int, terminated: bool, stopped: bool) -> Response:
        prompt, ids = self._slot_prompts[slot], self._response_ids(slot)
        assert prompt is not None
        ended = bool(self._is_end[ids[-1]])
        text = str(self.tokenizer.decode(ids[:-1] if ended else ids, skip_special_tokens=True))
        reason = StopReason.END if ended else StopReason.STOP if stopped else StopReason.LENGTH
        if stopped:
            text = text[: min((at for at in (text.find(s) for s in self.stop) if at >= 0), default=len(text))]
        episode = int(self._episode[slot])
        return Response(prompt, ids, text, reason, episode, episode // self.group_size)


def _number(value: Any) -> float:
    """A reward as a float; raises for what is not a finite number."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise RewardError(f"expected a number; got {type(value).__name__} {str(value)[:40]!r}") from None
    if not math.isfinite(number):
        raise RewardError(f"expected a finite number; got {number}")
    return number


def _tried(work: Callable[[], Any]) -> float | Exception:
    try:
        return _number(work())
    except Exception as error:  # A reward is a function of the user's: whatever it raises is that response's failure.
        return error


def _reward_error(error: Exception, what: str, prompt: Prompt) -> RewardError:
    said = str(error) if isinstance(error, RewardError) else f"{type(error).__name__}: {error}"
    return RewardError(f"the {what} of a response failed: {said.splitlines()[0]}; its prompt: {prompt.text[:50]!r}")
