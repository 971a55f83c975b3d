"""The conversation."""

from __future__ import annotations

from tensordict import TensorDictBase
from torchrl.data import Composite

from palaestra.integrations.torchrl.entries import (
    FULL,
    HISTORY,
    RESPONSE,
    add_history_spec,
    chats,
    extend,
    set_texts,
    texts,
)
from palaestra.integrations.torchrl.transform import MLGymBaseTransform


class MessageToHistory(MLGymBaseTransform):
    """The `message` is appended to `("history", "prompt")` as the user's.

    Where there is no history yet (without `ResetModule` in the chain), it begins with the message; without a message (without
    `StateToMessage`), nothing is appended, and none begins.

    The other way it reads `("history", "full")`, which TorchRL's wrappers write in their history mode: the assistant's
    message behind the prompt is the response.
    """

    def __init__(self) -> None:
        super().__init__(in_keys=["message", HISTORY], out_keys=[HISTORY])

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        return self._appended(next_tensordict, tensordict, self.acting(tensordict))

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return self._appended(tensordict_reset, tensordict_reset, [True] * len(self.wrapper.slots))

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        known = set(observation_spec.keys())
        if "message" in known and "history" not in known:
            return add_history_spec(observation_spec)
        return observation_spec

    def _appended(self, tensordict: TensorDictBase, before: TensorDictBase, acting: list[bool]) -> TensorDictBase:
        told = texts(tensordict, "message", len(acting))
        if told is not None:
            grown = tensordict if tensordict.get(HISTORY, None) is not None else before
            extend(tensordict, grown, "user", told, acting)
        return tensordict

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        full = chats(tensordict, FULL)
        if full is None:
            return tensordict
        said = []
        for whole, before in zip(full, chats(tensordict) or [[] for _ in full], strict=True):
            # Only the first: a model that runs on speaks for the user, too.
            behind = [message["content"] for message in whole[len(before) :] if message["role"] == "assistant"]
            said.append(behind[0] if behind else "")
        set_texts(tensordict, RESPONSE, said)
        return tensordict
