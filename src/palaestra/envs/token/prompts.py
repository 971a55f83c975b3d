"""What a token environment is given and what comes out of it: prompts and responses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from palaestra.core.errors import EnvError, ModelError
from palaestra.core.records import Message, Problem, StopReason
from palaestra.core.seeding import Seeds
from palaestra.core.text import clean_text
from palaestra.engines import models
from palaestra.engines.chat import prompt_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PromptLike = str | Sequence[int] | Sequence[Message] | Problem
"""A text, token ids, a conversation, or a problem of a task."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model continues.

    Arguments:
        ids: exactly the tokens that it is given.
        text: the question as a person would read it.
        source: what the prompt was made from, for example the `Problem`.
    """

    ids: tuple[int, ...]
    text: str
    source: Any = None


@dataclass(frozen=True, slots=True)
class Response:
    """A finished response.

    Arguments:
        token_ids: exactly the tokens that were chosen, the end-of-sequence token included.
        text: decoded, without the end-of-sequence token and from before any stop string.
        reward: of the whole response; `None` where it failed.
        failure: why there is no reward, else empty.
        token_rewards: of each token, where the environment gives them.
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

    @property
    def truncated(self) -> bool:
        return self.stop_reason is StopReason.LENGTH


def load_tokenizer(model: str | PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """The tokenizer of a model by its name, or the one that is given.

    Raises:
        ModelError: the model has no tokenizer that transformers can load.
    """
    if not isinstance(model, str):
        return model
    from transformers import AutoTokenizer

    where = models.locate(model)
    files = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "vocab.txt", "tokenizer.model", "spiece.model")
    if Path(where).is_dir() and not any((Path(where) / name).exists() for name in files):
        raise ModelError(f"the model '{model}' has no tokenizer: {where} holds none of {', '.join(files)}")
    try:
        return AutoTokenizer.from_pretrained(where, padding_side="left")
    except Exception as error:  # transformers and tokenizers each raise their own.
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ModelError(f"cannot load the tokenizer of '{model}': {reason.strip()}") from error


def vocabulary_size(tokenizer: PreTrainedTokenizerBase) -> int:
    """How many ids there are to choose from: one more than the greatest.

    A tokenizer whose ids have holes knows fewer tokens than that.
    """
    return max(len(tokenizer), 1 + max(tokenizer.get_vocab().values(), default=-1))


def find_end_ids(tokenizer: PreTrainedTokenizerBase, more: Sequence[int] = ()) -> tuple[int, ...]:
    """The tokens that end a response."""
    if tokenizer.eos_token_id is None and not more:
        raise ModelError("the tokenizer names no end-of-sequence token; give `end_ids` to the environment")
    own = () if tokenizer.eos_token_id is None else (int(tokenizer.eos_token_id),)
    return tuple(dict.fromkeys((*own, *(int(i) for i in more))))


def find_special_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """The tokens that are left out when a response is decoded: what they are called, and their ids."""
    added = {str(token): int(i) for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    named = zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True)
    return {**{name: int(i) for name, i in named if i is not None}, **added}


def encode_prompt(item: PromptLike | Prompt, tokenizer: PreTrainedTokenizerBase, chat: bool) -> Prompt:
    """Tokenize one prompt; a text becomes a user's message where the tokenizer has a chat template.

    Arguments:
        chat: `False` takes a text as it is, to be continued rather than answered.

    Raises:
        EnvError: it is none of these, or the chat template refuses it.
    """
    from jinja2 import TemplateError

    try:
        return _encoded(item, tokenizer, chat)
    except TemplateError as error:
        reason = " ".join(str(error).split())
        raise EnvError(f"the tokenizer's chat template refuses it: {reason}") from error


def _encoded(item: PromptLike | Prompt, tokenizer: PreTrainedTokenizerBase, chat: bool) -> Prompt:
    if isinstance(item, Prompt):
        return item
    if isinstance(item, Problem):
        return Prompt(_ids_of(item.messages, tokenizer), item.messages[-1].text, item)
    if isinstance(item, str):
        item = clean_text(item)
        if chat and tokenizer.chat_template is not None:
            # A template makes tokens of nothing as well; there is still nothing asked.
            return Prompt(tuple(prompt_ids(tokenizer, (Message("user", item),))) if item.strip() else (), item, item)
        return Prompt(tuple(tokenizer.encode(item)), item, item)
    values: list[Any] = list(item) if isinstance(item, (Sequence, np.ndarray)) else [None]
    if values and all(isinstance(value, Message) for value in values):
        return Prompt(_ids_of(values, tokenizer), values[-1].text, item)
    if all(isinstance(value, (int, np.integer)) for value in values):
        ids = tuple(int(value) for value in values)
        # Whether they are the tokenizer's is for the environment to say; decoding what is no id at all would raise.
        return Prompt(ids, str(tokenizer.decode([one for one in ids if 0 <= one < 1 << 31])), item)
    raise EnvError(f"expected a text, token ids, messages or a problem; got {type(item).__name__}: {str(item)[:60]!r}")


def _ids_of(messages: Sequence[Message], tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    if any(message.has_image for message in messages):
        raise EnvError("it holds an image, and an environment of tokens reads text only")
    return tuple(prompt_ids(tokenizer, messages))


def prompt_order(count: int, seed: int, group: int) -> int:
    """The index of the prompt of a group: all prompts once, in random order, before any comes again."""
    lap, place = divmod(group, count)
    return int(_permutation(count, seed, lap)[place])


@lru_cache(maxsize=8)
def _permutation(count: int, seed: int, lap: int) -> np.ndarray:
    """The order of one lap, remembered: it is asked for once a group."""
    return Seeds(seed).derive("prompts", count, lap).generator().permutation(count)
