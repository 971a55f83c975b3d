"""Token environments: one action is the next token, one step advances every sequence by one token.

`TokenVectorEnv` is the environment itself, a native `gymnasium.vector.VectorEnv` with N slots. Finished slots are refilled
in the same step. `TokenEnv` is the single-environment view for `gym.make`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from palaestra.core.errors import EnvError, RewardError
from palaestra.core.records import Problem, Split, StopReason
from palaestra.core.registry import describe_error
from palaestra.core.seeding import Seeds
from palaestra.core.settings import check_integer
from palaestra.envs.base import Info, ResetOptions, read_reset_mask
from palaestra.envs.token.contract import Observation, TokenEnvContract, check_tokens
from palaestra.envs.token.prompts import (
    Prompt,
    PromptLike,
    Response,
    compute_rewards,
    find_end_ids,
    find_special_tokens,
    load_tokenizer,
    prompt_order,
    reward_error,
    split_prompts,
    to_reward,
    tokenize_prompt,
    vocabulary_size,
)
from palaestra.envs.token.rewards import RewardFunctions, RewardLike, ScoredResponse, TrainerState, make_reward
from palaestra.tasks.evaluate import draw_problems

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


RewardFunction = Callable[[Response], float]


class TokenVectorEnv(TokenEnvContract):
    """A token environment of prompts and a reward, given as arguments or by a subclass.

    Observations, infos and reset options are those of `TokenEnvContract`. An episode terminates at a token that ends
    the response or a stop string in its text; the token limit truncates it. If the environment restricts the tokens,
    infos also contain an `action_mask`. `reset(options={"initial_state": text or ids})` uses this prompt in every slot,
    and `{"reset_mask": [N] bools}` resets only some slots.

    Arguments:
        prompts: texts, conversations, token ids, or problems of a task.
        reward: computes the reward of a finished `Response`; or one or several functions with the signature of TRL's reward
            functions, which replace the reward of a subclass (see `palaestra.envs.token.rewards`).
        reward_weights: the weights of several functions; 1 by default.
        token_reward: optional reward of each token, from the prompt and the ids so far.
        legal_tokens: optional restriction, from the prompt and the ids so far: the ids that may come next,
            or `None` for all.
        tokenizer: a tokenizer, or the name of a model whose tokenizer is loaded.
        num_envs: number of slots.
        max_tokens: maximum number of tokens of a response.
        context: maximum number of tokens of prompt and response together, the model's limit; 0 means no limit.
        stop: strings that end a response; its text ends before them.
        end_ids: tokens that end a response, in addition to the tokenizer's own.
        group_size: number of consecutive episodes that share a prompt, for group methods.
        chat: whether a text becomes a user message, if the tokenizer has a chat template.
        failures: handling of a reward function that raises or returns no finite number. `"raise"` raises a
            `RewardError`; `"mark"` sets the reward to 0 and stores the cause in `Response.failure`. In both cases the
            step completes for all slots first.
        autoreset: `False` leaves finished slots inactive until the next reset.

    Example:
        >>> env = TokenVectorEnv(["2 + 2 = ?"], lambda response: float("4" in response.text), num_envs=2)
        >>> observation, infos = env.reset(seed=0)
        >>> observation["length"].tolist() == [len(env.prompt(0).ids)] * 2
        True
    """

    tokenizer: PreTrainedTokenizerBase
    metadata = {"render_modes": ["ansi"], "render_fps": 1, "autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(
        self,
        prompts: Sequence[PromptLike] = (),
        reward: RewardFunction | RewardLike | Sequence[RewardLike] | None = None,
        *,
        reward_weights: Sequence[float] = (),
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
            check_integer(name, value, minimum=1)
        if isinstance(prompts, (str, bytes)):
            raise EnvError(f"prompts must be a list; got one text: use [{prompts[:30]!r}]")
        if failures not in ("raise", "mark"):
            raise EnvError(f"failures must be 'raise' or 'mark'; got {failures!r}")
        self.num_envs, self.max_tokens, self.group_size = num_envs, max_tokens, group_size
        self.tokenizer = load_tokenizer(tokenizer)
        self.context, self.chat, self.failures = context, chat, failures
        self.autoreset, self.render_mode = autoreset, render_mode
        if not autoreset:
            self.metadata = {**self.metadata, "autoreset_mode": AutoresetMode.DISABLED}
        rewards = make_reward(reward, reward_weights) if reward is not None or reward_weights else None
        if rewards is not None and type(self).reward is not TokenVectorEnv.reward:
            rewards = rewards if isinstance(rewards, RewardFunctions) else RewardFunctions([rewards])
        self._functions = rewards if isinstance(rewards, RewardFunctions) else None
        self._reward = None if isinstance(rewards, RewardFunctions) else rewards
        self._token_reward, self._legal = token_reward, legal_tokens
        self._scores: dict[int, ScoredResponse] = {}
        self._deferred = False
        self.vocabulary = vocabulary_size(self.tokenizer)
        self.stop = (stop,) if isinstance(stop, str) else tuple(stop)
        # Special tokens are not part of a response's text, so a stop string that is one of them becomes an end token.
        special = find_special_tokens(self.tokenizer)
        ends = [*end_ids, *(special[text] for text in self.stop if text in special)]
        self.stop = tuple(text for text in self.stop if text not in special)
        self.end_ids = find_end_ids(self.tokenizer, ends)
        self.items: list[PromptLike] = list(prompts) or list(self.prompts())  # The prompts as they were given.
        if not self.items:
            raise EnvError(f"{type(self).__name__} needs at least one prompt; got none")
        self.width = 0  # Unknown until all prompts are tokenized.
        self._prompts = [self._encode(item, f"{k} of {len(self.items)}") for k, item in enumerate(self.items, start=1)]
        longest = max(len(prompt.ids) for prompt in self._prompts)
        self.width = min(longest + max_tokens, context) if context else longest + max_tokens
        pad = self.tokenizer.pad_token_id
        self.pad_id = int(pad) if pad is not None else self.end_ids[0]
        self._define_spaces()
        self._allocate(num_envs)
        self._is_end = np.zeros(self.vocabulary, dtype=bool)
        self._is_end[list(self.end_ids)] = True
        self._is_special = np.zeros(self.vocabulary, dtype=bool)
        self._is_special[list(special.values())] = True
        self._initial_state: Prompt | None = None
        self._chosen: dict[int, int] = {}  # By group, the prompts that were given as a reset option.
        self._stop_reach = 2 * max((len(s.encode()) for s in self.stop), default=0) + 8
        self._masks_tokens = type(self).legal_tokens is not TokenVectorEnv.legal_tokens or legal_tokens is not None
        self._by_token = type(self).token_reward is not TokenVectorEnv.token_reward or token_reward is not None
        self._in_batch = self._functions is not None or type(self).rewards is not TokenVectorEnv.rewards

    # Methods that subclasses override

    def prompts(self) -> Sequence[PromptLike]:
        """Return the prompts. Called only if none were given as an argument."""
        return ()

    def reward(self, response: Response) -> float:
        """Compute the reward of one finished response."""
        if self._reward is None:
            raise EnvError(f"{type(self).__name__} has no reward; pass `reward`, or override `reward` or `rewards`")
        return self._reward(response)

    def rewards(self, responses: Sequence[Response]) -> Sequence[float | RewardError]:
        """Compute the rewards of all responses that finished in one step. Override it to score them in one batch.

        The reward of a response that cannot be scored is a `RewardError` in its place.
        """
        return [self.reward(response) for response in responses]

    def token_reward(self, prompt: Prompt, token_ids: Sequence[int]) -> float:
        """Compute the reward of the last token in `token_ids`, the response so far."""
        return self._token_reward(prompt, token_ids) if self._token_reward is not None else 0.0

    def legal_tokens(self, prompt: Prompt, token_ids: Sequence[int]) -> Sequence[int] | None:
        """Return the ids that may come next, or `None` for all."""
        return self._legal(prompt, token_ids) if self._legal is not None else None

    # Gymnasium's API

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: ResetOptions = None
    ) -> tuple[Observation, Info]:
        options = options or {}
        known = ("episodes", "episode", "initial_state", "prompts", "reset_mask")
        unknown = set(options) - set(known)
        if unknown:
            raise EnvError(f"reset options are {', '.join(known)}; got {sorted(map(str, unknown))}")
        mask = read_reset_mask(options, self.num_envs)
        state = options.get("initial_state")
        prompt = None if state is None else self._encode(state, "given as initial_state")
        used = self._count_from(seed, options, type(self).__name__)
        self._initial_state, self._deferred = prompt, False
        self._chosen = dict(enumerate(options.get("prompts") or (), self._next_episode // self.group_size))
        if used is not None:
            self._np_random = np.random.default_rng(Seeds(used).derive("token-env").integer())
        self._fresh[mask] = False
        for slot in np.flatnonzero(mask):
            self._begin(int(slot))
        return self._observe(), self._infos()

    def step(self, actions: np.ndarray) -> tuple[Observation, np.ndarray, np.ndarray, np.ndarray, Info]:
        active = self._active.copy()
        actions = check_tokens(actions, active, self.vocabulary)
        if self._masks_tokens:
            self._check_legal(actions)
        slots, chosen = self._every[active], actions[active]
        self._tokens[slots, self._length[slots]] = chosen
        self._length[slots] += 1
        self._fresh[:] = False
        terminated = np.zeros(self.num_envs, dtype=bool)
        terminated[slots] = self._is_end[chosen]
        stopped = self._find_stopped(slots) if self.stop else []
        terminated[stopped] = True
        full = (self._length - self._prompt_length >= self.max_tokens) | (self._length >= self.width)
        truncated = (full | self.cuts_responses) & active & ~terminated
        ended = terminated | truncated
        rewards = np.zeros(self.num_envs, dtype=np.float64)
        errors: list[RewardError] = []
        responses, final_obs = [], np.full(self.num_envs, None, dtype=object)
        try:
            if self._by_token:
                self._reward_tokens(slots, rewards, errors)
            if ended.any():
                responses = self._finish(self._every[ended], set(stopped), rewards, errors)
        finally:
            # If a reward function raises, the step still completes: finished slots do not wait for another token.
            for slot in self._every[ended]:
                final_obs[slot] = self._observe_slot(slot)
                self._active[slot] = False
                if self.autoreset:
                    self._begin(int(slot))
        infos = self._infos()
        if errors and self.failures == "raise":
            raise errors[0]
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

    # For training

    def defer_rewards(self) -> bool:
        self._deferred = self._functions is not None
        return self._deferred

    def score_responses(self, responses: Sequence[Response]) -> list[Response]:
        errors: list[RewardError] = []
        scored = self._score(responses, errors)
        if errors and self.failures == "raise":
            raise errors[0]
        return scored

    @property
    def num_prompts(self) -> int:  # type: ignore[override]
        return len(self.items)

    @property
    def skills(self) -> list[str]:  # type: ignore[override]
        return [f"{item.skill}/{item.subskill}" if isinstance(item, Problem) else "" for item in self.items]

    def hold_out(self, count: int) -> TokenVectorEnv:
        """Move `count` prompts out of this environment into a second one; see `split_prompts`."""
        other, items, prompts = copy.copy(self), self.items, self._prompts
        held_out, rest = split_prompts(prompts, count)
        for env, indices in ((other, held_out), (self, rest)):
            env.items, env._prompts = [items[index] for index in indices], [prompts[index] for index in indices]
        other.group_size, other._initial_state, other._chosen = 1, None, {}
        other._allocate(min(self.num_envs, len(other.items)))
        return other

    def draw_held_out_problems(self, per_skill: int, seed: int) -> Sequence[Problem]:
        assert self.task is not None, "only environments with a task have held-out problems"
        known = self.task.skills()
        skills = {item.skill for item in self.items if isinstance(item, Problem) and item.skill in known}
        return draw_problems(self.task, Split.TEST, per_skill, seed, sorted(skills))

    def prompt(self, episode: int) -> Prompt:
        """Return the prompt of an episode under the current seed."""
        group = episode // self.group_size
        index = self._chosen.get(group)
        return self._prompts[prompt_order(len(self.items), self._seed, group) if index is None else index]

    def list_prompts(self) -> list[Prompt]:
        """Return all prompts with their token ids."""
        return list(self._prompts)

    @property
    def has_token_rewards(self) -> bool:
        """Whether single tokens are rewarded, not only finished responses."""
        return self._by_token

    def find_prompt(self, ids: Sequence[int]) -> Prompt | None:
        """The prompt with these token ids; `None` if the environment has none."""
        return next((prompt for prompt in self._prompts if prompt.ids == tuple(ids)), None)

    # Internals

    def _allocate(self, num_envs: int) -> None:
        super()._allocate(num_envs)
        self._slot_prompts: list[Prompt | None] = [None] * num_envs
        self._slot_errors: list[RewardError | None] = [None] * num_envs
        self._slot_legal: list[np.ndarray | None] = [None] * num_envs
        self._every = np.arange(num_envs)

    def _encode(self, item: PromptLike, which: str) -> Prompt:
        try:
            prompt = tokenize_prompt(item, self.tokenizer, self.chat)
        except EnvError as error:
            raise EnvError(f"the prompt {which} cannot be read: {error}") from None
        if not prompt.ids:
            raise EnvError(f"the prompt {which} is empty")
        if min(prompt.ids) < 0 or max(prompt.ids) >= self.vocabulary:
            wrong = next(token for token in prompt.ids if not 0 <= token < self.vocabulary)
            raise EnvError(f"the prompt {which} has the token {wrong}; tokens must be from 0 to {self.vocabulary - 1}")
        limit = self.width or self.context
        if limit and len(prompt.ids) >= limit:
            raise EnvError(
                f"the prompt {which} has {len(prompt.ids)} tokens; the limit of prompt and response is {limit}: "
                f"{prompt.text[:50]!r}"
            )
        return prompt

    def _begin(self, slot: int) -> None:
        episode = self._take_episode(slot)
        if episode is None:
            return
        prompt = self._initial_state if self._initial_state is not None else self.prompt(episode)
        self._slot_prompts[slot], self._slot_errors[slot] = prompt, None
        self._start_slot(slot, prompt.ids)

    def _infos(self) -> Info:
        infos = super()._infos()
        if self._masks_tokens:
            masks = infos["action_mask"] = np.ones((self.num_envs, self.vocabulary), dtype=np.int8)
            for slot in self._every[self._active].tolist():
                legal = self._slot_legal[slot] = self._find_legal(slot)
                if legal is not None:
                    masks[slot] = 0
                    masks[slot, legal] = 1
        return infos

    def _find_legal(self, slot: int) -> np.ndarray | None:
        prompt = self._slot_prompts[slot]
        assert prompt is not None
        try:
            given = self.legal_tokens(prompt, self._response_ids(slot))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # User code may raise anything, also SystemExit.
            raise EnvError(f"legal_tokens failed in slot {slot}: {describe_error(error)}") from error
        if given is None:
            return None
        legal = np.asarray(list(given))
        if legal.dtype.kind not in "iu" or legal.min() < 0 or legal.max() >= self.vocabulary:
            raise EnvError(
                f"legal_tokens must return at least one token from 0 to {self.vocabulary - 1}; got "
                f"{legal[:5].tolist()} in slot {slot}"
            )
        return legal

    def _check_legal(self, actions: np.ndarray) -> None:
        """Raise if an action is not in the action mask of the last infos."""
        for slot in self._every[self._active].tolist():
            legal = self._slot_legal[slot]
            if legal is not None and actions[slot] not in legal:
                raise EnvError(f"token {int(actions[slot])} is not legal in slot {slot}; see infos['action_mask']")

    def _find_stopped(self, slots: np.ndarray) -> list[int]:
        """Return the slots whose text contains a stop string. Only the end of the text is decoded each step."""
        stopped = []
        for slot in slots.tolist():
            ids = self._tokens[slot, self._prompt_length[slot] : self._length[slot]]
            # Special tokens have no text, so a stop string may span any number of them.
            tail = ids[~self._is_special[ids]][-self._stop_reach :]
            text = str(self.tokenizer.decode(tail, skip_special_tokens=True))
            if any(stop in text for stop in self.stop):
                stopped.append(slot)
        return stopped

    def _reward_tokens(self, slots: np.ndarray, rewards: np.ndarray, errors: list[RewardError]) -> None:
        """Add the token rewards. A token whose reward fails counts as 0, and its response is marked at the end."""
        for slot in slots.tolist():
            prompt = self._slot_prompts[slot]
            assert prompt is not None
            try:
                rewards[slot] = to_reward(self.token_reward(prompt, self._response_ids(slot)))
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                errors.append(reward_error(error, "token_reward", prompt, self._token_reward or self.token_reward))
                self._slot_errors[slot] = self._slot_errors[slot] or errors[-1]
            self._slot_rewards[slot].append(float(rewards[slot]))

    def _finish(
        self, done: np.ndarray, stopped: set[int], rewards: np.ndarray, errors: list[RewardError]
    ) -> list[Response]:
        """Make the responses that finished in this step, and compute their rewards unless these are deferred."""
        responses = [self._response(slot, slot in stopped) for slot in done.tolist()]
        if not self._deferred:
            responses = self._score(responses, errors)
        for slot, response in zip(done, responses, strict=True):
            rewards[slot] = 0.0 if response.failure else rewards[slot] + (response.reward or 0.0)
        return responses

    def _score(self, responses: Sequence[Response], errors: list[RewardError]) -> list[Response]:
        """Compute the rewards of responses. One that failed before keeps its failure."""
        finished: list[Response] = []
        for response, value in zip(
            responses, compute_rewards(self._compute_rewards, responses, self._in_batch), strict=True
        ):
            failure = response.failure
            if isinstance(value, BaseException):
                function = self.rewards if self._in_batch else self._reward or self.reward
                errors.append(reward_error(value, "reward", response.prompt, function))
                failure = failure or str(errors[-1])
            if failure:
                finished.append(replace(response, failure=failure, token_rewards=()))
            else:
                assert isinstance(value, float)
                score = self._scores.pop(response.episode, ScoredResponse(value, {}))
                finished.append(
                    replace(
                        response, reward=value, reward_parts=score.parts, columns=score.columns, metrics=score.metrics
                    )
                )
        return finished

    def _compute_rewards(self, responses: Sequence[Response]) -> Sequence[float | RewardError]:
        """The rewards of the functions that were given, or else of the class."""
        if self._functions is None:
            return self.rewards(responses)
        scores = self._functions.compute(responses, TrainerState(**self.progress))
        self._scores |= {response.episode: score for response, score in zip(responses, scores, strict=True)}
        return [score.reward for score in scores]

    def _response(self, slot: int, stopped: bool) -> Response:
        prompt, ids = self._slot_prompts[slot], self._response_ids(slot)
        assert prompt is not None
        ended = bool(self._is_end[ids[-1]])
        text = str(self.tokenizer.decode(ids[:-1] if ended else ids, skip_special_tokens=True))
        reason = StopReason.END if ended else StopReason.STOP if stopped else StopReason.LENGTH
        if stopped:
            text = text[: min((at for at in (text.find(s) for s in self.stop) if at >= 0), default=len(text))]
        episode = int(self._episode[slot])
        error = self._slot_errors[slot]
        return Response(
            prompt,
            ids,
            text,
            reason,
            episode,
            episode // self.group_size,
            failure=str(error) if error is not None else "",
            token_rewards=tuple(self._slot_rewards[slot]),
        )


class TokenEnv(gymnasium.Env[Observation, int]):
    """A `TokenVectorEnv` with one slot and no autoreset, as an ordinary environment.

    Takes the arguments of its vector environment. To write your own, set `vector_class` to your vector environment, or
    pass prompts and reward to `super().__init__`. Attributes that Gymnasium does not define, such as `tokenizer`, come
    from the vector environment.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012
    vector_class: ClassVar[type[TokenVectorEnv]] = TokenVectorEnv

    def __init__(self, *args: Any, render_mode: str | None = None, **arguments: Any) -> None:
        self._given = args, arguments
        self.vector = self.vector_class(*args, **arguments, num_envs=1, autoreset=False, render_mode=render_mode)
        self.render_mode = render_mode
        self.action_space = self.vector.single_action_space
        self.observation_space = self.vector.single_observation_space

    def reset(self, *, seed: int | None = None, options: ResetOptions = None) -> tuple[Observation, Info]:
        super().reset(seed=seed)
        observation, infos = self.vector.reset(seed=seed, options=options)
        return _first(observation), _single(infos)

    def step(self, action: int) -> tuple[Observation, float, bool, bool, Info]:
        observation, rewards, terminated, truncated, infos = self.vector.step(np.asarray([action]))
        return _first(observation), float(rewards[0]), bool(terminated[0]), bool(truncated[0]), _single(infos)

    def render(self) -> str | None:
        rendered = self.vector.render()
        return None if rendered is None else rendered[0]

    def in_slots(self, num_envs: int, **changes: Any) -> TokenVectorEnv:
        """Return the same environment with `num_envs` slots. `changes` override arguments."""
        args, arguments = self._given
        env = self.vector_class(*args, **{**arguments, **changes}, num_envs=num_envs)
        env.bootstrap_truncated = self.bootstrap_truncated
        return env

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "vector":
            raise AttributeError(name)
        return getattr(self.vector, name)


def _first(observation: Observation) -> Observation:
    return {name: values[0] for name, values in observation.items()}


def _single(infos: Info) -> Info:
    info: Info = {name: infos[name][0] for name in ("episode", "group", "action_mask") if name in infos}
    if "responses" in infos:
        info["response"] = infos["responses"][0]
    return info
