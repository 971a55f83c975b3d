"""What the work is worth."""

from __future__ import annotations

import math

import torch
from tensordict import TensorDictBase

from palaestra.core.errors import RewardError
from palaestra.integrations.torchrl.transform import MLGymBaseTransform


class MLGymRewardAssignment(MLGymBaseTransform):
    """Adds to the reward how far the score is ahead of the baseline's, the metric's direction respected.

    It is paid in the step that hands in, once; for validations only where the environment was told so
    (`validation_reward`). It is read from what the evaluator gave, so nothing that an agent prints has any effect.

    Arguments:
        scaled: in units of the metric's scale, so that tasks are worth alike; else in those of the metric.

    Raises:
        RewardError: in a step whose reward is larger than a float32 can say.
    """

    def __init__(self, scaled: bool = False) -> None:
        super().__init__(in_keys=["reward", "gain"], out_keys=["reward"])
        self.scaled = scaled

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        gain = next_tensordict.get("gain")
        if not self.scaled:
            scales = [slot.env.task.metric.scale for slot in self.wrapper.slots]
            gain = gain * torch.tensor(scales, dtype=gain.dtype, device=gain.device).reshape(-1, 1)
        before = next_tensordict.get("reward")
        reward = (before + gain).to(before.dtype)
        for slot, paid in enumerate(reward.flatten().tolist()):
            if not math.isfinite(paid):
                task = self.wrapper.slots[slot].env.task
                raise RewardError(
                    f"a reward is a finite number of 32 bits; the work on '{task.name}' is {gain[slot].item():g} ahead of the "
                    f"baseline; bound the metric, or give it a larger scale than {task.metric.scale:g} and take scaled=True"
                )
        return next_tensordict.set("reward", reward)
