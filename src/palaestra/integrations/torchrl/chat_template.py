"""Conversations as prompts, rendered by the chat template of a tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import product
from typing import Any

import torch
from tensordict import TensorDictBase
from torchrl.data import Composite, Unbounded
from torchrl.modules.llm.policies import Text

from palaestra.core.errors import EnvError, UnknownNameError
from palaestra.integrations.torchrl.entries import (
    HISTORY,
    PROMPT,
    RESPONSE,
    Chat,
    Key,
    chats,
    set_prompts,
    set_texts,
    text_spec,
    texts,
)
from palaestra.integrations.torchrl.transforms import MLGymBaseTransform

PROBE = [
    {"role": "system", "content": "Seventeen grey herons."},
    {"role": "user", "content": "Nine quiet otters."},
    {"role": "assistant", "content": "Four young larches."},
    {"role": "user", "content": "Two slow barges."},
]
"""A conversation that is rendered to determine what a template supports."""


class Renderer:
    """Renders conversations with the chat template of a tokenizer.

    Templates differ in what they accept. Some reject or drop system messages; for those the system text is put in front
    of the first user message. Some require message parts instead of text. The form is determined once, by rendering a
    probe in each form. Without a template, the messages are written one per line.

    Arguments:
        tokenizer: a transformers tokenizer, or an object with its `apply_chat_template` and `chat_template`.
        template: a chat template that replaces the tokenizer's own.
        continue_final: leave the last message open for the model to continue, instead of asking for a new one.

    Raises:
        EnvError: in every form the template rejects the probe or drops a message.
    """

    def __init__(self, tokenizer: Any, template: str | None = None, continue_final: bool = False) -> None:
        self.tokenizer, self.continue_final = tokenizer, continue_final
        self.template = template if template is not None else tokenizer.chat_template
        self._in_parts, self._joined = self._form()

    def __call__(self, conversation: Chat, ask: bool = True) -> str:
        """Render a conversation.

        Arguments:
            ask: end with the prompt for the assistant's next message.

        Raises:
            EnvError: the template rejects the conversation.
        """
        if self.template is None:
            return "".join(f"{message['content']}\n" for message in conversation)
        return self._apply(conversation, ask, self._in_parts, self._joined)

    @property
    def ending(self) -> str:
        """The text that the template writes after an assistant message; empty if the template rejects one at the end."""
        *before, message, _ = PROBE
        try:
            return self([*before, message], ask=False).partition(message["content"])[2].strip()
        except EnvError:
            return ""

    def _form(self) -> tuple[bool, bool]:
        """Return whether to use message parts, and whether to merge the system text into the user's."""
        if self.template is None:
            return False, False
        lost, refused = list[str](), list[str]()
        for in_parts, joined in product((False, True), repeat=2):
            try:
                text = self._apply(PROBE, True, in_parts, joined)
            except EnvError as error:
                refused.append(str(error))
                continue
            missing = [message["role"] for message in PROBE if message["content"] not in text]
            if not missing:
                return in_parts, joined
            lost.append(f"the chat template drops the {missing[-1]} message")
        raise EnvError(f"{[*lost, *refused][0]}; set the tokenizer's `chat_template` to another one")

    def _apply(self, conversation: Chat, ask: bool, in_parts: bool, joined: bool) -> str:
        from jinja2 import TemplateError

        given: Sequence[dict[str, Any]] = _merge_system(conversation) if joined else conversation
        if in_parts:
            given = [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in given]
        try:
            # Not `History.apply_chat_template`: it uses TorchRL's own template for most tokenizers, by name.
            return str(
                self.tokenizer.apply_chat_template(
                    given,
                    chat_template=self.template,
                    tokenize=False,
                    **(
                        {"continue_final_message": True}
                        if ask and self.continue_final
                        else {"add_generation_prompt": ask}
                    ),
                )
            )
        except (TemplateError, TypeError, ValueError) as error:
            roles, reason = ", ".join(message["role"] for message in given), " ".join(str(error).split())
            raise EnvError(f"the chat template rejects messages with the roles {roles}: {reason}") from error


def _merge_system(conversation: Chat) -> Chat:
    """Move the system text to the beginning of the first user message."""
    match conversation:
        case [{"role": "system", "content": system}, {"role": "user", "content": asked}, *rest]:
            return [{"role": "user", "content": f"{system}\n\n{asked}"}, *rest]
    return conversation


class TemplateTransform(MLGymBaseTransform):
    """Renders `("history", "prompt")` with the tokenizer's chat template as `("text", "prompt")`.

    Without a history the conversation is the `message` alone, or else the `observation`, as a user message. In the
    other direction the response is cut at the end of the assistant's turn; text that the model wrote beyond it is
    dropped. See `Renderer` for how the template's conventions are determined.

    The arguments are those of TorchRL's `TemplateTransform`, in the same order.

    Arguments:
        in_keys: where the conversation is read, by default `("history", "prompt")`.
        out_keys: where the prompt is written, by default `("text", "prompt")`.
        in_keys_inv: where the response is read. Of several keys (TorchRL passes prompt and response), the last is used.
        out_keys_inv: where the response is written.
        tokenizer: a transformers tokenizer, or an object with its `apply_chat_template`, `chat_template` and
            `eos_token`.
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
        tokenizer: Any = None,
        chat_template_name: str | None = None,
        continue_final_message: bool = False,
        tokenize: bool = False,
        return_tensors: str = "pt",
        return_dict: bool = False,
        padding: bool | str = False,
        truncation: bool | str = False,
    ) -> None:
        if not hasattr(tokenizer, "apply_chat_template"):
            raise EnvError(f"expected a transformers tokenizer as tokenizer=; got {type(tokenizer).__name__}")
        if return_tensors != "pt":
            raise EnvError(
                f"return_tensors must be 'pt', because TorchRL's data are torch tensors; got {return_tensors!r}"
            )
        super().__init__(
            in_keys=[HISTORY] if in_keys is None else list(in_keys),
            out_keys=[PROMPT] if out_keys is None else list(out_keys),
            in_keys_inv=[RESPONSE] if in_keys_inv is None else list(in_keys_inv),
            out_keys_inv=[RESPONSE] if out_keys_inv is None else list(out_keys_inv),
        )
        self.tokenizer, self.chat_template_name = tokenizer, chat_template_name
        self.continue_final_message, self.tokenize, self.return_dict = continue_final_message, tokenize, return_dict
        self.return_tensors, self.padding, self.truncation = return_tensors, padding, truncation
        self._render = Renderer(tokenizer, _template(chat_template_name), continue_final_message)

    @cached_property
    def endings(self) -> tuple[str, ...]:
        """The texts that end an assistant's turn."""
        return tuple(dict.fromkeys(ending for ending in (self._render.ending, self.tokenizer.eos_token) if ending))

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        slots = len(self.wrapper.slots)
        conversations = chats(next_tensordict, self.in_keys[0])
        if conversations is None:
            observations = (
                texts(next_tensordict, "message", slots) or texts(next_tensordict, "observation", slots) or [""] * slots
            )
            conversations = [[{"role": "user", "content": text}] for text in observations]
        prompts = [self._render(conversation) for conversation in conversations]
        if self.tokenize:
            self._set_ids(next_tensordict, prompts)
        elif self.out_keys[0] == PROMPT:
            set_prompts(next_tensordict, prompts)
        else:
            set_texts(next_tensordict, self.out_keys[0], prompts)
        return next_tensordict

    def _set_ids(self, tensordict: TensorDictBase, prompts: list[str]) -> None:
        try:
            encoding = self.tokenizer(
                prompts, add_special_tokens=False, return_tensors="pt", padding=self.padding, truncation=self.truncation
            )
        except ValueError as error:
            raise EnvError(f"the prompts cannot be stacked into one tensor: {error}") from error
        names = ("input_ids", "attention_mask") if self.return_dict else ("input_ids",)
        for name in names:
            key = self.out_keys[0]
            path = (*((key,) if isinstance(key, str) else key), name) if self.return_dict else key
            tensordict.set(path, encoding[name].to(tensordict.device))

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return self._call(tensordict_reset)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        if not self.in_keys_inv:
            return tensordict
        entry = tensordict.get(self.in_keys_inv[-1], None)
        if isinstance(entry, torch.Tensor):
            responses: list[str] | None = self.tokenizer.batch_decode(entry)
        else:
            responses = texts(tensordict, self.in_keys_inv[-1], len(self.wrapper.slots))
        if responses is not None:
            set_texts(tensordict, self.out_keys_inv[0], [self._truncate(text) for text in responses])
        return tensordict

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        shape, device, key = observation_spec.shape, observation_spec.device, self.out_keys[0]
        if self.tokenize:
            ids = Unbounded(shape=(*shape, -1), device=device, dtype=torch.int64)
            names = ("input_ids", "attention_mask")
            fields = {name: ids.clone() for name in names}
            observation_spec[key] = Composite(fields, shape=shape, device=device) if self.return_dict else ids
        elif key == PROMPT:
            observation_spec["text"] = Composite(
                prompt=text_spec(shape[0], device), shape=shape, device=device, data_cls=Text, step_mdp_static=True
            )
        else:
            observation_spec[key] = text_spec(shape[0], device)
        return observation_spec

    def _truncate(self, text: str) -> str:
        for ending in self.endings:
            text = text.partition(ending)[0]
        return text


def _template(name: str | None) -> str | None:
    """Return a TorchRL chat template by name."""
    if name is None:
        return None
    from torchrl.data.llm.history import _CHAT_TEMPLATES

    if name not in _CHAT_TEMPLATES:
        raise UnknownNameError("chat template of TorchRL", name, _CHAT_TEMPLATES)
    return str(_CHAT_TEMPLATES[name])
