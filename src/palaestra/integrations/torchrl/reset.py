"""The beginning of an episode, and the assistant's part of its conversation."""

from __future__ import annotations

from tensordict import TensorDictBase
from torchrl.data import Composite

from palaestra.integrations.torchrl.entries import HISTORY, RESPONSE, add_history_spec, begin, extend, texts
from palaestra.integrations.torchrl.transform import MLGymBaseTransform


class ResetModule(MLGymBaseTransform):
    """Opens the workspace of the task that was drawn; the history begins with the system message.

    In a step it carries the history over, and appends what the assistant said, readable or not.
    """

    def __init__(self) -> None:
        super().__init__(out_keys=[HISTORY])

    def _reset_env_preprocess(self, tensordict: TensorDictBase | None) -> TensorDictBase | None:
        wrapper = self.wrapper
        drawn = None if tensordict is None else texts(tensordict, "task", len(wrapper.slots))
        if tensordict is not None and drawn is not None:
            for slot in wrapper.slots_in_mask(tensordict.get("_reset", None)):
                wrapper.choose(slot, drawn[slot])
        return tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        begin(tensordict_reset, "system", [slot.system for slot in self.wrapper.slots])
        return tensordict_reset

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        acting = self.acting(tensordict)
        # Without `IsolateCodeBlock` in the chain what is said is the bare command.
        said = (
            texts(tensordict, RESPONSE, len(acting)) or texts(tensordict, "action", len(acting)) or [""] * len(acting)
        )
        extend(next_tensordict, tensordict, "assistant", said, acting)
        return next_tensordict

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        return add_history_spec(observation_spec)
