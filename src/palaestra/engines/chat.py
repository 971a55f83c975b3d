"""How a conversation becomes token ids: in one place, for engines and for training alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from palaestra.core.records import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def end_ids(weights: Any, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """The tokens that end a response: the tokenizer's, and those of the model's generation settings."""
    settings = getattr(weights, "generation_config", None)
    own = settings.eos_token_id if settings is not None else None
    several = own if isinstance(own, list) else [own]
    return tuple(dict.fromkeys(int(i) for i in (*several, tokenizer.eos_token_id) if i is not None))


def prompt_ids(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> list[int]:
    """The ids that ask the model for the next assistant message.

    A tokenizer without a chat template gets the texts of the messages, a line each.
    """
    if tokenizer.chat_template is None:
        text = "".join(f"{message.text}\n" for message in messages)
        return list(tokenizer.encode(text))
    conversation = [{"role": message.role, "content": message.text} for message in messages]
    text = tokenizer.apply_chat_template(conversation, add_generation_prompt=True, tokenize=False)
    return list(tokenizer.encode(text, add_special_tokens=False))
