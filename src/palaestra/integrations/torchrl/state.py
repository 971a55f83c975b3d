"""Where the agent stands."""

from __future__ import annotations

import json

from tensordict import TensorDictBase
from torchrl.data import Composite

from palaestra.integrations.torchrl.entries import set_texts, text_spec
from palaestra.integrations.torchrl.slots import Slot
from palaestra.integrations.torchrl.transform import MLGymBaseTransform


class ReadState(MLGymBaseTransform):
    """`state` is JSON: the open file and the window of it, the current folder, the steps done and left, validations left."""

    def __init__(self) -> None:
        super().__init__(out_keys=["state"])

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        set_texts(next_tensordict, "state", [read_state(slot) for slot in self.wrapper.slots])
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return self._call(tensordict_reset)

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        observation_spec["state"] = text_spec(observation_spec.shape[0], observation_spec.device, "{}")
        return observation_spec


def read_state(slot: Slot) -> str:
    """Where the agent in a slot stands, as JSON."""
    return json.dumps(slot.state(), default=str)
