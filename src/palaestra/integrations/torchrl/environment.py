"""A transformed environment whose transforms also see the steps that are skipped."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from torchrl.envs import ConditionalSkip, TransformedEnv

from palaestra.integrations.torchrl.entries import ASSISTANT

__all__ = ["ConditionalSkip", "MLGymEnv"]


class MLGymEnv(TransformedEnv):  # type: ignore[misc]  # TorchRL has no types.
    """`TransformedEnv` over an environment that knows which of its slots are to step (`_step`).

    TorchRL's own leaves the transforms out when every slot is skipped: nobody could pay the penalty of a message that
    cannot be read, or answer it. Here the base environment is asked for a step in which no slot moves, and the transforms
    see it as any other. Several slots are stacked lazily, as in TorchRL's environments of chats: conversations of different
    lengths can be put together in no other way, which a reset of some of the slots has to do.
    """

    def _skip_tensordict(self, tensordict: TensorDictBase) -> TensorDictBase:
        tensordict.set("_step", torch.zeros(self.batch_size, dtype=torch.bool, device=self.device))
        next_tensordict = self.transform._step(tensordict, self.base_env._step(tensordict))
        tensordict.pop("_step")
        return next_tensordict

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._stacked(super()._step(tensordict))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return self._stacked(super()._reset(tensordict, **kwargs))

    def _reset_proc_data(self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase) -> TensorDictBase:
        # TorchRL writes the new conversation into the old one, whose shape stays that of the old; one that is not there is set.
        if tensordict is not None and self.batch_size.numel() == 1:
            mask = tensordict.get("_reset", None)
            if mask is None or mask.all():
                tensordict.pop("history", None)
                tensordict.pop(ASSISTANT, None)
        return super()._reset_proc_data(tensordict, tensordict_reset)

    def _stacked(self, tensordict: TensorDictBase) -> TensorDictBase:
        # Not where there is one slot: `SerialEnv` and `ParallelEnv` stack lazy stacks along their inner dimension, where
        # they cannot reset one environment and leave another.
        return tensordict if self.batch_size.numel() == 1 else tensordict.to_lazystack(0)
