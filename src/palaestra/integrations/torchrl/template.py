"""The conversation as the text that a model reads."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from tensordict import TensorDictBase
from torchrl.data import Composite
from torchrl.modules.llm.policies import Text

from palaestra.core.errors import EnvError
from palaestra.integrations.torchrl.entries import (
    HISTORY,
    PROMPT,
    RESPONSE,
    chats,
    put,
    put_prompts,
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

    Arguments:
        tokenizer: of transformers, or anything with its `apply_chat_template`, `chat_template` and `eos_token`.

    Raises:
        EnvError: it is no tokenizer, or its chat template leaves out what somebody says.
    """

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(in_keys=[HISTORY], out_keys=[PROMPT], in_keys_inv=[RESPONSE], out_keys_inv=[RESPONSE])
        if not hasattr(tokenizer, "apply_chat_template"):
            raise EnvError(f"a tokenizer of transformers is expected; got {type(tokenizer).__name__}")
        self.tokenizer, self._render = tokenizer, Renderer(tokenizer)

    @cached_property
    def endings(self) -> tuple[str, ...]:
        """The texts that end an assistant's turn."""
        return tuple(dict.fromkeys(one for one in (self._render.ending, self.tokenizer.eos_token) if one))

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        slots = len(self.wrapper.slots)
        conversations = chats(next_tensordict)
        if conversations is None:
            heard = (
                texts(next_tensordict, "message", slots) or texts(next_tensordict, "observation", slots) or [""] * slots
            )
            conversations = [[{"role": "user", "content": text}] for text in heard]
        put_prompts(next_tensordict, [self._render(conversation) for conversation in conversations])
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return self._call(tensordict_reset)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        said = texts(tensordict, RESPONSE, len(self.wrapper.slots))
        if said is not None:
            put(tensordict, RESPONSE, [self._cut(text) for text in said])
        return tensordict

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        shape, device = observation_spec.shape, observation_spec.device
        observation_spec["text"] = Composite(
            prompt=text_spec(shape[0], device), shape=shape, device=device, data_cls=Text, step_mdp_static=True
        )
        return observation_spec

    def _cut(self, text: str) -> str:
        for ending in self.endings:
            text = text.partition(ending)[0]
        return text
