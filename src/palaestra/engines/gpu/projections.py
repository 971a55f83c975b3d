"""Linear layers of the same input as one matrix product, with or without LoRA adapters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import linear


def takes_adapter(layer: Any) -> bool:
    """Whether `JointProjection` computes a linear layer as it is, or as peft has wrapped it."""
    if not hasattr(layer, "base_layer"):
        return type(layer) is torch.nn.Linear
    from peft.tuners.lora import Linear

    if type(layer) is not Linear or type(layer.base_layer) is not torch.nn.Linear:
        return False
    return not (layer.lora_variant or any(layer.lora_bias.values())) and len(layer.active_adapters) <= 1


class JointProjection:
    """The product of an input with the weights of several layers, whose outputs follow each other.

    An adapter of rank R adds a product with its `[R, D]` matrix and one with its `[K, R]` matrix, in the dtype of the weights.

    Arguments:
        layers: layers for which `takes_adapter` is true. The weights of several layers are copied; call `refresh` after they
            change. The copies keep their place in memory, which captured graphs refer to.
    """

    def __init__(self, layers: Sequence[Any]) -> None:
        self._layers = layers
        self.weight_KD, self.bias_K = self._read_weights()
        self._down_RD, self._up_KR = self._read_adapters()

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the weights again."""
        weight_KD, bias_K = self._read_weights()
        if len(self._layers) == 1:
            self.weight_KD, self.bias_K = weight_KD, bias_K
        for old, new in zip(
            (self.weight_KD, self.bias_K, self._down_RD, self._up_KR),
            (weight_KD, bias_K, *self._read_adapters()),
            strict=True,
        ):
            if old is not None and new is not None and old is not new:
                old.copy_(new)

    def __call__(self, inputs_ND: torch.Tensor, onto_NK: torch.Tensor | None = None) -> torch.Tensor:
        """Project the inputs, and add the result to `onto_NK` if it is given."""
        if onto_NK is None:
            outputs_NK = linear(inputs_ND, self.weight_KD, self.bias_K)
        else:
            outputs_NK = torch.addmm(onto_NK, inputs_ND, self.weight_KD.t())
        if self._down_RD is None or self._up_KR is None:
            return outputs_NK
        return torch.addmm(outputs_NK, linear(inputs_ND, self._down_RD), self._up_KR.t())

    def _read_weights(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        plain = [getattr(layer, "base_layer", layer) for layer in self._layers]
        if len(plain) == 1:
            return plain[0].weight.detach(), plain[0].bias
        bias = torch.cat([layer.bias for layer in plain]) if plain[0].bias is not None else None
        return torch.cat([layer.weight.detach() for layer in plain]), bias

    @torch.no_grad()
    def _read_adapters(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """The adapters of all layers, one below the other; a layer without one adds nothing."""
        down, up = [], []
        for layer in self._layers:
            weight = getattr(layer, "base_layer", layer).weight
            down_RD, up_KR = weight.new_zeros((0, weight.shape[1])), weight.new_zeros((weight.shape[0], 0))
            for name in getattr(layer, "lora_A", {}):
                used = name in layer.active_adapters and not (layer.merged or layer.disable_adapters)
                scale = layer.scaling[name] if used else 0.0
                down_RD = torch.cat([down_RD, layer.lora_A[name].weight.to(weight.dtype)])
                up_KR = torch.cat([up_KR, (layer.lora_B[name].weight * scale).to(weight.dtype)], 1)
            down.append(down_RD)
            up.append(up_KR)
        if not any(map(len, down)):
            return None, None
        return torch.cat(down), torch.block_diag(*up)  # type: ignore[no-untyped-call]
