"""What the work is worth."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase

from palaestra.integrations.torchrl.transform import MLGymBaseTransform


class MLGymRewardAssignment(MLGymBaseTransform):
    """Adds to the reward how far the score is ahead of the baseline's, the metric's direction respected.

    It is paid in the step that hands in, once; for validations only where the environment was told so
    (`validation_reward`). It is read from what the evaluator gave, so nothing that an agent prints has any effect.

    Arguments:
        scaled: in units of the metric's scale, so that tasks are worth alike; else in those of the metric.
    """

    def __init__(self, scaled: bool = False) -> None:
        super().__init__(in_keys=["reward", "gain"], out_keys=["reward"])
        self.scaled = scaled

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        gain = next_tensordict.get("gain")
        if not self.scaled:
            scales = [slot.env.task.metric.scale for slot in self.wrapper.slots]
            gain = gain * torch.tensor(scales, dtype=gain.dtype, device=gain.device).reshape(-1, 1)
        return next_tensordict.set("reward", next_tensordict.get("reward") + gain)
