"""Conversations as prompts, rendered by the chat template of a tokenizer."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Composite, Unbounded

from palaestra.chat.rendering import MARK
from palaestra.chat.template import ChatTemplate
from palaestra.core.errors import EnvError, UnknownNameError
from palaestra.core.records import Message
from palaestra.core.tables import load_table
from palaestra.integrations.torchrl.entries import (
    HISTORY,
    PROMPT,
    RESPONSE,
    Key,
    chats,
    set_prompts,
    set_texts,
    text_entry_spec,
    text_spec,
)
from palaestra.integrations.torchrl.transforms import MLGymBaseTransform

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_PROBE = (
    Message("system", "Seventeen grey herons."),
    Message("user", "Nine quiet otters."),
    Message("assistant", "Four young larches."),
    Message("user", "Two slow barges."),
)
"""A conversation that is rendered to determine what a template supports."""
_ENCODED = ("input_ids", "attention_mask")
_TO_PARTS: str = load_table(__file__, "jinja")["to_parts"]
"""Jinja that turns the text of messages into lists of parts."""


def _load_template(tokenizer: PreTrainedTokenizerBase, name: str | None = None) -> ChatTemplate:
    """Load a chat template in the form in which it renders all messages: with texts, or with lists of parts.

    Arguments:
        name: a template of TorchRL that replaces the tokenizer's own.

    Raises:
        EnvError: in both forms the template rejects a conversation or drops a message.
        UnknownNameError: TorchRL has no such template.
    """
    from torchrl.data.llm.history import _CHAT_TEMPLATES

    if name is not None and name not in _CHAT_TEMPLATES:
        raise UnknownNameError("chat template of TorchRL", name, _CHAT_TEMPLATES)
    text = tokenizer.chat_template if name is None else str(_CHAT_TEMPLATES[name])
    problems: list[str] = []
    for form in (text,) if text is None else (text, _TO_PARTS + text):
        variant = copy.copy(tokenizer)
        variant.chat_template = form
        template = ChatTemplate(variant, "the tokenizer")
        try:
            rendered = template.render(template.adapt(_PROBE))
        except EnvError as error:
            problems.append(str(error))
            continue
        dropped = [message.role for message in _PROBE if message.text not in rendered]
        if not dropped:
            return template
        problems.append(f"the chat template drops the {dropped[-1]} message")
    raise EnvError(f"{problems[0]}; set the tokenizer's `chat_template` to another one")


class TemplateTransform(MLGymBaseTransform):
    """Renders `("history", "prompt")` with the tokenizer's chat template as `("text", "prompt")`.

    Without a history the conversation is the `message` alone, or else the `observation`, as a user message. In the
    other direction the response is cut at the end of the assistant's turn; text that the model wrote beyond it is
    dropped. See `palaestra.chat.template.ChatTemplate` for system messages that the template does not support.

    The arguments are those of TorchRL's `TemplateTransform`, in the same order.

    Arguments:
        in_keys: where the conversation is read, by default `("history", "prompt")`.
        out_keys: where the prompt is written, by default `("text", "prompt")`.
        in_keys_inv: where the response is read. Of several keys (TorchRL passes prompt and response), the last is used.
        out_keys_inv: where the response is written.
        tokenizer: a transformers tokenizer.
        chat_template_name: a TorchRL template (`"chatml_format"`, ...) that replaces the tokenizer's own.
        continue_final_message: let the model continue the last message instead of writing a new one.
        tokenize: write token ids of shape (slots, tokens) instead of text. A response of token ids is decoded.
        return_tensors: `"pt"`; the ids are torch tensors.
        return_dict: write `input_ids` and `attention_mask` instead of only the ids.
        padding, truncation: passed to the tokenizer with `tokenize`. Slots of different lengths need padding.

    Raises:
        EnvError: `tokenizer` is not a tokenizer, its chat template drops messages, or an argument has an invalid value.
    """

    def __init__(
        self,
        in_keys: Sequence[Key] | None = None,
        out_keys: Sequence[Key] | None = None,
        in_keys_inv: Sequence[Key] | None = None,
        out_keys_inv: Sequence[Key] | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        chat_template_name: str | None = None,
        continue_final_message: bool = False,
        tokenize: bool = False,
        return_tensors: str = "pt",
        return_dict: bool = False,
        padding: bool | str = False,
        truncation: bool | str = False,
    ) -> None:
        if tokenizer is None or not hasattr(tokenizer, "apply_chat_template"):
            raise EnvError(f"expected a transformers tokenizer as tokenizer=; got {type(tokenizer).__name__}")
        if return_tensors != "pt":
            raise EnvError(f"return_tensors must be 'pt', since TorchRL has torch tensors; got {return_tensors!r}")
        super().__init__(
            in_keys=[HISTORY] if in_keys is None else list(in_keys),
            out_keys=[PROMPT] if out_keys is None else list(out_keys),
            in_keys_inv=[RESPONSE] if in_keys_inv is None else list(in_keys_inv),
            out_keys_inv=[RESPONSE] if out_keys_inv is None else list(out_keys_inv),
        )
        self.tokenizer, self.chat_template_name = tokenizer, chat_template_name
        self.continue_final_message, self.tokenize, self.return_dict = continue_final_message, tokenize, return_dict
        self.return_tensors, self.padding, self.truncation = return_tensors, padding, truncation
        self._template = _load_template(tokenizer, chat_template_name)

    @cached_property
    def endings(self) -> tuple[str, ...]:
        """The texts that end an assistant's turn."""
        conversation = self._template.adapt([*_PROBE[:2], Message("assistant", MARK)])
        try:
            ending = self._template.render_after_mark(conversation, generation_prompt=False).strip()
        except EnvError:  # The template rejects an assistant's message at the end.
            ending = ""
        return tuple(dict.fromkeys(filter(None, (ending, str(self.tokenizer.eos_token or "")))))

    def render(self, conversation: Sequence[Message]) -> str:
        """Render the prompt of a conversation.

        Raises:
            EnvError: the template rejects the conversation.
        """
        adapted = self._template.adapt(conversation)
        text = self._template.render(adapted, generation_prompt=not self.continue_final_message)
        if not self.continue_final_message:
            return text
        final = adapted[-1].text.strip()
        return text[: text.rindex(final) + len(final)]

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        conversations = chats(next_tensordict, self.in_keys[0])
        if conversations is None:
            conversations = [[Message("user", text)] for text in self.texts(next_tensordict, "message", "observation")]
        prompts = [self.render(conversation) for conversation in conversations]
        if self.tokenize:
            self._set_ids(next_tensordict, prompts)
        elif self.out_keys[0] == PROMPT:
            set_prompts(next_tensordict, prompts)
        else:
            set_texts(next_tensordict, self.out_keys[0], prompts)
        return next_tensordict

    def _set_ids(self, tensordict: TensorDictBase, prompts: list[str]) -> None:
        try:
            options = {"padding": self.padding, "truncation": self.truncation}
            encoding = self.tokenizer(prompts, add_special_tokens=False, return_tensors="pt", **options)
        except ValueError as error:
            raise EnvError(f"the prompts cannot be stacked into one tensor: {error}") from error
        entry = TensorDict({name: encoding[name] for name in _ENCODED}, tensordict.batch_size, tensordict.device)
        tensordict.set(self.out_keys[0], entry if self.return_dict else entry["input_ids"])

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return self._call(tensordict_reset)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        if not self.in_keys_inv:
            return tensordict
        key = self.in_keys_inv[-1]
        entry = tensordict.get(key, None)
        if entry is not None:
            encoded = isinstance(entry, torch.Tensor)
            responses = self.tokenizer.batch_decode(entry) if encoded else self.texts(tensordict, key)
            set_texts(tensordict, self.out_keys_inv[0], [self._truncate(text) for text in responses])
        return tensordict

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        shape, device, key = observation_spec.shape, observation_spec.device, self.out_keys[0]
        if self.tokenize:
            fields = {name: Unbounded(shape=(*shape, -1), device=device, dtype=torch.int64) for name in _ENCODED}
            entry = Composite(fields, shape=shape, device=device)
            observation_spec[key] = entry if self.return_dict else entry["input_ids"]
        elif key == PROMPT:
            observation_spec["text"] = text_entry_spec(observation_spec, prompt=text_spec(shape[0], device))
        else:
            observation_spec[key] = text_spec(shape[0], device)
        return observation_spec

    def _truncate(self, text: str) -> str:
        for ending in self.endings:
            text = text.partition(ending)[0]
        return text
