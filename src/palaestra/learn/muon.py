"""Muon in float32: momentum whose steps are orthogonalised, for the weight matrices of a model.

The algorithm is Keller Jordan's, with the step scaled to AdamW's size (Moonshot's rule), as in
`torch.optim.Muon`. That one orthogonalises in bfloat16, which a CPU without bfloat16 units computes
far too slowly; this one keeps float32 and treats all matrices of one shape at once.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


class Muon(torch.optim.Optimizer):
    """Muon for parameters with two dimensions."""

    def __init__(
        self, parameters: Iterable[torch.nn.Parameter], lr: float, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.ndim != 2:
                    raise ValueError(f"Muon needs matrices; got a parameter of shape {tuple(parameter.shape)}")

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            shapes: dict[torch.Size, list[torch.nn.Parameter]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    shapes.setdefault(parameter.shape, []).append(parameter)
            for shape, parameters in shapes.items():
                updates = []
                for parameter in parameters:
                    state = self.state[parameter]
                    if not state:
                        state["momentum"] = torch.zeros_like(parameter)
                    assert parameter.grad is not None
                    state["momentum"].lerp_(parameter.grad, 1 - group["momentum"])
                    updates.append(parameter.grad.lerp(state["momentum"], group["momentum"]))
                directions_MNK = orthogonalise(torch.stack(updates))
                rate = group["lr"] * 0.2 * max(shape) ** 0.5
                for parameter, direction_NK in zip(parameters, directions_MNK, strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.add_(direction_NK, alpha=-rate)


def orthogonalise(matrices_MNK: torch.Tensor, iterations: int = 5) -> torch.Tensor:
    """Bring all singular values of each matrix near 1 by Newton-Schulz iterations."""
    tall = matrices_MNK.shape[-2] > matrices_MNK.shape[-1]
    x: torch.Tensor = matrices_MNK.mT if tall else matrices_MNK
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(iterations):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x
