"""How texts and conversations lie in tensordicts: one a slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict, TensorDictBase, lazy_stack
from torchrl.data import Categorical, Composite, NonTensor
from torchrl.data.llm import History
from torchrl.modules.llm.policies import ChatHistory, Text

from palaestra.core.text import clean_text

Key = str | tuple[str, ...]
Chat = list[dict[str, str]]
"""The messages of a conversation: `role` and `content`."""

HISTORY: Key = ("history", "prompt")
FULL: Key = ("history", "full")
PROMPT: Key = ("text", "prompt")
RESPONSE: Key = ("text", "response")
ASSISTANT = "assistant_mask"
"""Which messages of the conversation the policy wrote, of the shape (1, messages); only where there is one slot."""


def set_texts(tensordict: TensorDictBase, key: Key, texts: Sequence[str]) -> None:
    """Write a text a slot."""
    # Stacked by hand: what a plain list becomes is a setting of tensordict's.
    tensordict.set(key, NonTensorStack(*(NonTensorData(text, device=tensordict.device) for text in texts)))


def texts(tensordict: TensorDictBase, key: Key, slots: int) -> list[str] | None:
    """The texts under a key, one a slot; `None` where there are none.

    A batch of one may hold its text bare, as scripts write it. Lone surrogates are replaced.
    """
    found: Any = tensordict.get(key, None)
    if found is None:
        return None
    if hasattr(found, "tolist"):
        found = found.tolist()
    if isinstance(found, str):
        found = [found] * slots
    return [clean_text(str(text)) for text in found]


def set_prompts(tensordict: TensorDictBase, prompts: Sequence[str]) -> None:
    """Write a text a slot, under `("text", "prompt")`."""
    held = TensorDict(batch_size=tensordict.batch_size, device=tensordict.device)
    set_texts(held, "prompt", prompts)
    tensordict.set("text", Text.from_tensordict(held))


def text_spec(slots: int, device: torch.device | None, example: str = "a text") -> NonTensor:
    """The spec of a text a slot."""
    return NonTensor(example_data=example, shape=(slots,), device=device)


def chats(tensordict: TensorDictBase, key: Key = HISTORY) -> list[Chat] | None:
    """The conversations under a key, one a slot, to be read; `None` where there are none."""
    found = tensordict.get(key, None)
    if found is None:
        return None
    made = []
    for history in found.unbind(0):
        listed = history.tolist(tolist_first=True)
        # Conversations of other lengths in the same batch are filled up with this role.
        made.append([{"role": m["role"], "content": m["content"]} for m in listed if m["role"] != "<none>"])
    return made


def begin(tensordict: TensorDictBase, role: str, texts: Sequence[str]) -> None:
    """Write a conversation a slot, each of one message."""
    _put(tensordict, [lazy_stack([_message(role, text, tensordict.device)]) for text in texts])


def extend(
    tensordict: TensorDictBase, source: TensorDictBase, role: str, texts: Sequence[str], slots: Sequence[bool]
) -> None:
    """Write the conversations of `source`, in some slots with one more message. Those before it are shared, not copied.

    Where `source` has none, they begin with the message.
    """
    found = source.get(HISTORY, None)
    if found is None:
        begin(tensordict, role, texts)
        return
    histories = list(found.unbind(0))
    for slot, (text, here) in enumerate(zip(texts, slots, strict=True)):
        if here:
            histories[slot] = histories[slot].append(_message(role, text, tensordict.device), inplace=False)
    _put(tensordict, histories)


def _message(role: str, text: str, device: torch.device | None) -> History:
    return History(role=role, content=text, batch_size=(), device=device)


def _put(tensordict: TensorDictBase, histories: Sequence[History]) -> None:
    prompt = lazy_stack(list(histories))
    if len(histories) == 1:
        # For `ParallelEnv`. It consolidates what its workers send, which no lazy stack survives. And it resets one worker
        # of several only if the workers' data are stacked lazily, which it does for tensors of different shapes alone.
        prompt = prompt.contiguous()
        spoken = [[role == "assistant" for role in histories[0].role]]
        tensordict.set(ASSISTANT, torch.tensor(spoken, device=tensordict.device))
    held = TensorDict({"prompt": prompt}, batch_size=tensordict.batch_size, device=tensordict.device)
    tensordict.set("history", ChatHistory.from_tensordict(held))


def add_history_spec(observation_spec: Composite) -> Composite:
    """Add the specs of what `begin` and `extend` write."""
    slots, device = observation_spec.shape[0], observation_spec.device
    if slots == 1:
        observation_spec[ASSISTANT] = Categorical(2, shape=(1, -1), device=device, dtype=torch.bool)
    observation_spec["history"] = _history_spec(slots, device)
    return observation_spec


def _history_spec(slots: int, device: torch.device | None) -> Composite:
    shape = torch.Size((slots, -1))
    examples: dict[str, Any] = {"role": "user", "content": "a text", "is_complete": True}
    # Not by `ChatHistory.default_spec`: it leaves out the dimension of the messages, of which its examples then warn, and it
    # promises calls of tools, which no message has.
    fields = {name: NonTensor(example_data=one, shape=shape, device=device) for name, one in examples.items()}
    messages = Composite(fields, shape=shape, device=device, data_cls=History)
    return Composite(prompt=messages, shape=shape[:1], device=device, data_cls=ChatHistory, step_mdp_static=True)
