"""Prompts, responses and rewards of token environments."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsFloat, SupportsIndex

import numpy as np

from palaestra.chat.rendering import prompt_ids
from palaestra.core.errors import EnvError, ModelError, RewardError
from palaestra.core.records import Message, Problem, StopReason
from palaestra.core.registry import describe_error, describe_location, describe_origin
from palaestra.core.seeding import Seeds
from palaestra.core.settings import short_repr
from palaestra.core.text import clean_text
from palaestra.models import registry as models

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


PromptLike = str | Sequence[int] | Sequence[Message] | Problem
"""A text, token ids, a conversation, or a problem of a task."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A tokenized prompt.

    Arguments:
        ids: the exact token ids that the model is given.
        text: the question as readable text.
        source: the object that the prompt was made from, for example the `Problem`.
    """

    ids: tuple[int, ...]
    text: str
    source: object = None


@dataclass(frozen=True, slots=True)
class Response:
    """A finished response.

    Arguments:
        token_ids: the exact ids that were sampled, including the end-of-sequence token.
        text: decoded, without the end-of-sequence token, up to a stop string.
        reward: of the whole response; `None` if computing it failed.
        failure: why there is no reward; empty otherwise.
        token_rewards: one per token, if the environment computes them.
        reward_parts: the values of several reward functions by name.
        columns, metrics: what reward functions log about the response, and about all that were scored with it.
        messages: the conversation after the prompt, if the episode has several turns; `text` is its last answer.
    """

    prompt: Prompt
    token_ids: tuple[int, ...]
    text: str
    stop_reason: StopReason
    episode: int = 0
    group: int = 0
    reward: float | None = None
    failure: str = ""
    token_rewards: tuple[float, ...] = field(default=())
    reward_parts: Mapping[str, float] = field(default_factory=dict)
    columns: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    messages: tuple[Message, ...] = ()

    @property
    def truncated(self) -> bool:
        return self.stop_reason is StopReason.LENGTH


def load_tokenizer(model: str | PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model by its name. A tokenizer object is returned unchanged.

    Raises:
        ModelError: the model has no tokenizer that transformers can load.
    """
    if not isinstance(model, str):
        return model
    from transformers import AutoTokenizer

    where = models.locate(model)
    files = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "vocab.txt", "tokenizer.model", "spiece.model")
    if Path(where).is_dir() and not any((Path(where) / name).exists() for name in files):
        raise ModelError(f"the model '{model}' has no tokenizer: {where} contains none of {', '.join(files)}")
    try:
        return AutoTokenizer.from_pretrained(where, padding_side="left", trust_remote_code=False)
    except Exception as error:  # transformers and tokenizers raise many types.
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ModelError(f"cannot load the tokenizer of '{model}': {reason.strip()}") from error


def vocabulary_size(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the number of ids: the largest id plus one, even if the tokenizer leaves some ids unused."""
    return max(len(tokenizer), 1 + max(tokenizer.get_vocab().values(), default=-1))


def find_end_ids(tokenizer: PreTrainedTokenizerBase, more: Sequence[int] = ()) -> tuple[int, ...]:
    """Return the ids that end a response: the tokenizer's end-of-sequence token and `more`."""
    if tokenizer.eos_token_id is None and not more:
        raise ModelError("the tokenizer has no end-of-sequence token; pass `end_ids` to the environment")
    own = () if tokenizer.eos_token_id is None else (int(tokenizer.eos_token_id),)
    return tuple(dict.fromkeys((*own, *(int(i) for i in more))))


def find_special_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """Return the special tokens and their ids. They are skipped when a response is decoded."""
    added = {str(token): int(i) for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    named = zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True)
    return {**{name: int(i) for name, i in named if i is not None}, **added}


def tokenize_prompt(item: PromptLike | Prompt, tokenizer: PreTrainedTokenizerBase, chat: bool) -> Prompt:
    """Tokenize one prompt.

    Arguments:
        chat: whether a text becomes a user message, if the tokenizer has a chat template. Otherwise it is tokenized as
            plain text.

    Raises:
        EnvError: the type of the prompt is unknown, or the chat template rejects it.
    """
    from jinja2 import TemplateError

    try:
        return _tokenize(item, tokenizer, chat)
    except TemplateError as error:
        reason = " ".join(str(error).split())
        raise EnvError(f"the tokenizer's chat template rejects it: {reason}") from error


def _tokenize(item: PromptLike | Prompt, tokenizer: PreTrainedTokenizerBase, chat: bool) -> Prompt:
    if isinstance(item, Prompt):
        return item
    if isinstance(item, Problem):
        return Prompt(_encode_messages(item.messages, tokenizer), item.messages[-1].text, item)
    if isinstance(item, str):
        item = clean_text(item)
        if chat and tokenizer.chat_template is not None:
            # The template of an empty message still has tokens, but an empty prompt must be rejected.
            return Prompt(tuple(prompt_ids(tokenizer, (Message("user", item),))) if item.strip() else (), item, item)
        return Prompt(tuple(tokenizer.encode(item)), item, item)
    values: list[Any] = list(item) if isinstance(item, (Sequence, np.ndarray)) else [None]
    if values and all(isinstance(value, Message) for value in values):
        return Prompt(_encode_messages(values, tokenizer), values[-1].text, item)
    if all(isinstance(value, (int, np.integer)) for value in values):
        ids = tuple(int(value) for value in values)
        # The environment checks the range later; decoding an impossible id would raise here.
        return Prompt(ids, str(tokenizer.decode([token for token in ids if 0 <= token < 1 << 31])), item)
    raise EnvError(f"expected a text, token ids, messages or a problem; got {type(item).__name__}: {str(item)[:60]!r}")


def _encode_messages(messages: Sequence[Message], tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    if any(message.has_image for message in messages):
        raise EnvError("it has an image; token environments accept text only")
    return tuple(prompt_ids(tokenizer, messages))


def prompt_order(count: int, seed: int, group: int) -> int:
    """Return the index of a group's prompt. Each pass over all prompts has its own random order."""
    lap, place = divmod(group, count)
    return int(_permutation(count, seed, lap)[place])


def split_prompts(prompts: Sequence[Prompt], count: int) -> tuple[list[int], list[int]]:
    """Choose `count` prompts to hold out. Returns the indices of the held-out prompts and of the others.

    The choice depends only on the prompts' tokens, and equal prompts stay together. At most a fifth of the distinct
    prompts is held out. If that is no prompt (fewer than five prompts, or a count of 0), both lists contain all.
    """
    copies: dict[tuple[int, ...], list[int]] = {}
    for index, prompt in enumerate(prompts):
        copies.setdefault(prompt.ids, []).append(index)
    order = sorted(copies, key=lambda ids: hashlib.blake2b(repr(ids).encode()).digest())
    out = {index for ids in order[: min(count, len(order) // 5)] for index in copies[ids]}
    every = range(len(prompts))
    return sorted(out) or list(every), [index for index in every if index not in out]


@lru_cache(maxsize=8)
def _permutation(count: int, seed: int, lap: int) -> np.ndarray:
    """Return the order of one pass over the prompts, cached because every group needs it."""
    return Seeds(seed).derive("prompts", count, lap).generator().permutation(count)


def compute_rewards(
    rewards: Callable[[Sequence[Response]], Sequence[float | RewardError]], responses: Sequence[Response], batch: bool
) -> list[float | BaseException]:
    """Compute the reward of each response, or the exception that explains why it has none.

    Arguments:
        rewards: computes the rewards of several responses.
        batch: whether to pass all responses in one call. If that fails, each response is passed on its own, so that
            one bad response does not affect the others.

    Raises:
        EnvError: the environment itself failed, not the scoring of a response.
    """
    if len(responses) > 1 and not batch:
        return [compute_rewards(rewards, [response], False)[0] for response in responses]
    try:
        values = rewards(responses)
        if not isinstance(values, Iterable):
            raise RewardError(f"expected a list of numbers; got {short_repr(values)}")
        values = list(values)
        if len(values) != len(responses):
            raise RewardError(f"rewards returned {len(values)} values for {len(responses)} responses")
    except (EnvError, KeyboardInterrupt):
        raise
    except BaseException as error:  # User code may raise anything, also SystemExit.
        return [error] if len(responses) == 1 else compute_rewards(rewards, responses, False)
    return [_to_reward_or_error(value) for value in values]


def to_reward(value: object) -> float:
    """Convert a reward to a float.

    Raises:
        RewardError: it is not a finite number. Strings such as "1" are rejected.
    """
    try:
        if isinstance(value, str) or not isinstance(value, (SupportsFloat, SupportsIndex)):
            raise TypeError
        reward = float(value)
    except (TypeError, ValueError, OverflowError):
        raise RewardError(f"expected a number; got {type(value).__name__} {str(value)[:40]!r}") from None
    if not math.isfinite(reward):
        raise RewardError(f"expected a finite number; got {reward}")
    return reward


def reward_error(error: BaseException, what: str, prompt: Prompt, function: Callable[..., object]) -> RewardError:
    """Make an error of one line with the cause, the user's file and line, and the prompt."""
    cause = describe_error(error)
    where = "" if describe_origin(error) else describe_location(function)
    wrapped = RewardError(f"the {what} of a response failed: {cause}{where}; its prompt: {prompt.text[:50]!r}")
    wrapped.__cause__ = error
    return wrapped


def _to_reward_or_error(value: object) -> float | Exception:
    if isinstance(value, RewardError):
        return value
    try:
        return to_reward(value)
    except Exception as error:
        return error
