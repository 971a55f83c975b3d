"""vLLM's weight transfer: its workers receive the learners' broadcasts themselves, see `palaestra.executors.broadcast`.

The backend `palaestra` of vLLM's `weight_transfer_config`. Every worker of a tensor-parallel engine receives all weights and loads
its part. The entry point `vllm.general_plugins` registers it in every process of vLLM, also of `vllm serve`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from palaestra.engines.served_weights import get_model_weights
from palaestra.executors.broadcast import SharedWeights


@dataclass
class InitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """Nothing: a worker joins the samplers when it receives its first weights."""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """See `SharedWeights.describe`."""

    meeting: dict[str, Any]
    number: int
    version: int
    checksums: list[int]


class BroadcastTransferEngine(WeightTransferEngine[InitInfo, UpdateInfo]):  # type: ignore[misc]
    """Receives a version in a worker of vLLM and loads it."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Do nothing."""

    def start_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: UpdateInfo) -> None:
        weights = get_model_weights(SharedWeights.from_description(**asdict(update_info)))
        self.model.load_weights((name, tensor.to(self.device)) for name, tensor in weights.items())

    def finish_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Do nothing: the receiver of this process ends with the learners."""
