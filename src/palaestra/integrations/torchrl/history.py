"""The conversation."""

from __future__ import annotations

from tensordict import TensorDictBase

from palaestra.integrations.torchrl.entries import FULL, HISTORY, RESPONSE, chats, extend, put, texts
from palaestra.integrations.torchrl.transform import MLGymBaseTransform


class MessageToHistory(MLGymBaseTransform):
    """The `message` is appended to `("history", "prompt")` as the user's.

    The other way it reads `("history", "full")`, which TorchRL's wrappers write in their history mode: the assistant's
    message behind the prompt is the response.
    """

    def __init__(self) -> None:
        super().__init__(in_keys=["message", HISTORY], out_keys=[HISTORY])

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        return self._appended(next_tensordict, self.acting(tensordict))

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return self._appended(tensordict_reset, [True] * len(self.wrapper.slots))

    def _appended(self, tensordict: TensorDictBase, acting: list[bool]) -> TensorDictBase:
        extend(tensordict, tensordict, "user", texts(tensordict, "message", len(acting)) or [], acting)
        return tensordict

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        full = chats(tensordict, FULL)
        if full is None:
            return tensordict
        said = []
        for whole, before in zip(full, chats(tensordict) or [], strict=True):
            # Only the first: a model that runs on speaks for the user, too.
            behind = [message["content"] for message in whole[len(before) :] if message["role"] == "assistant"]
            said.append(behind[0] if behind else "")
        put(tensordict, RESPONSE, said)
        return tensordict
