"""The conversation as the text that a model reads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
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
    Key,
    chats,
    set_prompts,
    set_texts,
    text_spec,
    texts,
)
from palaestra.integrations.torchrl.rendering import Renderer
from palaestra.integrations.torchrl.transform import MLGymBaseTransform


class TemplateTransform(MLGymBaseTransform):
    """`("history", "prompt")` through the tokenizer's chat template becomes `("text", "prompt")`.

    Where there is no history, the conversation is the `message` alone, or, without one, the `observation`, as a user's.
    The other way the response is cut where the assistant's turn ends in this template: what a model wrote beyond that is
    not part of its message. What a template takes, and how it ends a turn, is found by rendering a conversation with it; see
    `Renderer`.

    The arguments are those of TorchRL's `TemplateTransform`, in the same order.

    Arguments:
        in_keys: where the conversation is read, by default `("history", "prompt")`.
        out_keys: where the prompt is written, by default `("text", "prompt")`.
        in_keys_inv: where the response is read; of several keys, as TorchRL gives prompt and response, the last.
        out_keys_inv: where it is written.
        tokenizer: of transformers, or anything with its `apply_chat_template`, `chat_template` and `eos_token`.
        chat_template_name: a template of TorchRL (`"chatml_format"`, ...) in place of the tokenizer's own.
        continue_final_message: let the model go on with the last message instead of asking for another.
        tokenize: write token ids of the shape (slots, tokens) instead of text; a response of token ids is decoded.
        return_tensors: `"pt"`; the ids are torch tensors.
        return_dict: write `input_ids` and `attention_mask` instead of the ids alone.
        padding, truncation: of the tokenizer, where ids are written; slots of different lengths need padding.

    Raises:
        EnvError: it is no tokenizer, its chat template leaves out what somebody says, or an argument makes no sense.
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
            raise EnvError(f"a tokenizer of transformers is expected as tokenizer=; got {type(tokenizer).__name__}")
        if return_tensors != "pt":
            raise EnvError(f"return_tensors is 'pt': TorchRL's data are torch tensors; got {return_tensors!r}")
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
        return tuple(dict.fromkeys(one for one in (self._render.ending, self.tokenizer.eos_token) if one))

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        slots = len(self.wrapper.slots)
        conversations = chats(next_tensordict, self.in_keys[0])
        if conversations is None:
            heard = (
                texts(next_tensordict, "message", slots) or texts(next_tensordict, "observation", slots) or [""] * slots
            )
            conversations = [[{"role": "user", "content": text}] for text in heard]
        prompts = [self._render(conversation) for conversation in conversations]
        if self.tokenize:
            self._put_ids(next_tensordict, prompts)
        elif self.out_keys[0] == PROMPT:
            set_prompts(next_tensordict, prompts)
        else:
            set_texts(next_tensordict, self.out_keys[0], prompts)
        return next_tensordict

    def _put_ids(self, tensordict: TensorDictBase, prompts: list[str]) -> None:
        try:
            found = self.tokenizer(
                prompts, add_special_tokens=False, return_tensors="pt", padding=self.padding, truncation=self.truncation
            )
        except ValueError as error:
            raise EnvError(f"the prompts cannot be one tensor: {error}") from error
        names = ("input_ids", "attention_mask") if self.return_dict else ("input_ids",)
        for name in names:
            key = self.out_keys[0]
            path = (*((key,) if isinstance(key, str) else key), name) if self.return_dict else key
            tensordict.set(path, found[name].to(tensordict.device))

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return self._call(tensordict_reset)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        if not self.in_keys_inv:
            return tensordict
        found = tensordict.get(self.in_keys_inv[-1], None)
        if isinstance(found, torch.Tensor):
            said: list[str] | None = self.tokenizer.batch_decode(found)
        else:
            said = texts(tensordict, self.in_keys_inv[-1], len(self.wrapper.slots))
        if said is not None:
            set_texts(tensordict, self.out_keys_inv[0], [self._cut(text) for text in said])
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

    def _cut(self, text: str) -> str:
        for ending in self.endings:
            text = text.partition(ending)[0]
        return text


def _template(name: str | None) -> str | None:
    """A chat template of TorchRL's by its name."""
    if name is None:
        return None
    from torchrl.data.llm.history import _CHAT_TEMPLATES

    if name not in _CHAT_TEMPLATES:
        raise UnknownNameError("chat template of TorchRL", name, _CHAT_TEMPLATES)
    return str(_CHAT_TEMPLATES[name])
