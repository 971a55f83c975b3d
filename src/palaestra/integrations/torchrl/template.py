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
    Chat,
    chats,
    put,
    put_prompts,
    text_spec,
    texts,
)
from palaestra.integrations.torchrl.transform import MLGymBaseTransform

PROBE = "Seventeen grey herons."
"""What is looked for in a rendered conversation, to see what a template puts behind an assistant's message."""


class TemplateTransform(MLGymBaseTransform):
    """`("history", "prompt")` through the tokenizer's chat template becomes `("text", "prompt")`.

    The other way the response is cut where the assistant's turn ends in this template: what a model wrote beyond that is
    not part of its message. Any template will do, as its ending is found by rendering a conversation with it. A
    tokenizer without a template gets the texts of the messages, a line each.

    Arguments:
        tokenizer: of transformers, or anything with its `apply_chat_template`, `chat_template` and `eos_token`.
    """

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(in_keys=[HISTORY], out_keys=[PROMPT], in_keys_inv=[RESPONSE], out_keys_inv=[RESPONSE])
        if not hasattr(tokenizer, "apply_chat_template"):
            raise EnvError(f"a tokenizer of transformers is expected; got {type(tokenizer).__name__}")
        self.tokenizer = tokenizer

    @cached_property
    def endings(self) -> tuple[str, ...]:
        """The texts that end an assistant's turn."""
        text = self._rendered([{"role": "user", "content": "?"}, {"role": "assistant", "content": PROBE}], False)
        behind = text.partition(PROBE)[2].strip()
        return tuple(dict.fromkeys(one for one in (behind, self.tokenizer.eos_token) if one))

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        conversations = chats(next_tensordict) or []
        put_prompts(next_tensordict, [self._rendered(conversation, True) for conversation in conversations])
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

    def _rendered(self, conversation: Chat, ask: bool) -> str:
        from jinja2 import TemplateError

        if self.tokenizer.chat_template is None:
            return "".join(f"{message['content']}\n" for message in conversation)
        try:
            return self._applied(conversation, ask)
        except TemplateError:
            first, *rest = conversation
            if first["role"] != "system" or not rest:
                raise
            # Some templates refuse system messages; there it is the beginning of the user's.
            joined = {"role": "user", "content": f"{first['content']}\n\n{rest[0]['content']}"}
            return self._applied([joined, *rest[1:]], ask)

    def _applied(self, conversation: Chat, ask: bool) -> str:
        # Not by `History.apply_chat_template`: it takes a template of TorchRL's own for most tokenizers, by their name.
        return str(self.tokenizer.apply_chat_template(conversation, add_generation_prompt=ask, tokenize=False))
