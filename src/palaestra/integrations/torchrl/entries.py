"""Texts and conversations as entries of tensordicts, one per slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict, TensorDictBase, lazy_stack
from torchrl.data import Categorical, Composite, NonTensor
from torchrl.data.llm import History
from torchrl.modules.llm.policies import ChatHistory, Text

from palaestra.core.records import Message
from palaestra.core.text import clean_text

Key = str | tuple[str, ...]

HISTORY: Key = ("history", "prompt")
FULL: Key = ("history", "full")
PROMPT: Key = ("text", "prompt")
RESPONSE: Key = ("text", "response")
ASSISTANT = "assistant_mask"
"""Which messages the policy wrote, of shape (1, messages). Present only with a single slot."""


def set_texts(tensordict: TensorDictBase, key: Key, texts: Sequence[str]) -> None:
    """Set one text per slot."""
    # Stacked explicitly, because the conversion of a plain list depends on a tensordict setting.
    tensordict.set(key, NonTensorStack(*(NonTensorData(text, device=tensordict.device) for text in texts)))


def texts(tensordict: TensorDictBase, key: Key, slots: int) -> list[str] | None:
    """Return the texts under a key, one per slot; `None` if the key is missing.

    A batch of one may contain a bare text, as scripts write it. Lone surrogates are replaced.
    """
    entry: Any = tensordict.get(key, None)
    if entry is None:
        return None
    if hasattr(entry, "tolist"):
        entry = entry.tolist()
    if isinstance(entry, str):
        entry = [entry] * slots
    return [clean_text(str(text)) for text in entry]


def set_prompts(tensordict: TensorDictBase, prompts: Sequence[str]) -> None:
    """Set one text per slot under `("text", "prompt")`."""
    held = TensorDict(batch_size=tensordict.batch_size, device=tensordict.device)
    set_texts(held, "prompt", prompts)
    tensordict.set("text", Text.from_tensordict(held))


def text_spec(slots: int, device: torch.device | None, example: str = "a text") -> NonTensor:
    """Return the spec of one text per slot."""
    return NonTensor(example_data=example, shape=(slots,), device=device)


def text_entry_spec(around: Composite, **texts: NonTensor) -> Composite:
    """Return the spec of the entry `text` within another spec. A step replaces the whole entry: no old text remains."""
    return Composite(texts, shape=around.shape, device=around.device, data_cls=Text, step_mdp_static=True)


def chats(tensordict: TensorDictBase, key: Key = HISTORY) -> list[list[Message]] | None:
    """Return the conversations under a key, one per slot; `None` if the key is missing."""
    entry = tensordict.get(key, None)
    if entry is None:
        return None
    conversations = []
    for history in entry.unbind(0):
        messages = history.tolist(tolist_first=True)
        # Shorter conversations in the same batch are padded with this role.
        conversations.append([Message(m["role"], m["content"]) for m in messages if m["role"] != "<none>"])
    return conversations


def begin(tensordict: TensorDictBase, role: str, texts: Sequence[str]) -> None:
    """Set one conversation per slot, each with a single message."""
    _set_histories(tensordict, [lazy_stack([_message(role, text, tensordict.device)]) for text in texts])


def extend(
    tensordict: TensorDictBase, source: TensorDictBase, role: str, texts: Sequence[str], slots: Sequence[bool]
) -> None:
    """Set the conversations of `source`, with one more message in the selected slots. Earlier messages are shared, not
    copied.

    If `source` has no conversations, they begin with this message.
    """
    entry = source.get(HISTORY, None)
    if entry is None:
        begin(tensordict, role, texts)
        return
    histories = list(entry.unbind(0))
    for slot, (text, here) in enumerate(zip(texts, slots, strict=True)):
        if here:
            histories[slot] = histories[slot].append(_message(role, text, tensordict.device), inplace=False)
    _set_histories(tensordict, histories)


def _message(role: str, text: str, device: torch.device | None) -> History:
    return History(role=role, content=text, batch_size=(), device=device)


def _set_histories(tensordict: TensorDictBase, histories: Sequence[History]) -> None:
    prompt = lazy_stack(list(histories))
    if len(histories) == 1:
        # For `ParallelEnv`: it consolidates the data of its workers, which breaks lazy stacks. It resets a single
        # worker only if the workers' data are stacked lazily, which it does only for tensors of different shapes.
        prompt = prompt.contiguous()
        is_assistant = [[role == "assistant" for role in histories[0].role]]
        tensordict.set(ASSISTANT, torch.tensor(is_assistant, device=tensordict.device))
    held = TensorDict({"prompt": prompt}, batch_size=tensordict.batch_size, device=tensordict.device)
    tensordict.set("history", ChatHistory.from_tensordict(held))


def add_history_spec(observation_spec: Composite) -> Composite:
    """Add the specs of the entries that `begin` and `extend` set."""
    slots, device = observation_spec.shape[0], observation_spec.device
    if slots == 1:
        observation_spec[ASSISTANT] = Categorical(2, shape=(1, -1), device=device, dtype=torch.bool)
    shape = torch.Size((slots, -1))
    examples: dict[str, object] = {"role": "user", "content": "a text", "is_complete": True}
    # Not `ChatHistory.default_spec`: it lacks the message dimension and declares tool calls, which no message has.
    fields = {name: NonTensor(example_data=example, shape=shape, device=device) for name, example in examples.items()}
    messages = Composite(fields, shape=shape, device=device, data_cls=History)
    observation_spec["history"] = Composite(
        prompt=messages, shape=shape[:1], device=device, data_cls=ChatHistory, step_mdp_static=True
    )
    return observation_spec
