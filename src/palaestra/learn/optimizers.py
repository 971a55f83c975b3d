"""AdamW over the parameter groups of a policy, with a state that checkpoints can store; training mode; seeded scopes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from palaestra.core.errors import ModelError
from palaestra.core.seeding import Seeds
from palaestra.engines.cpu.kernels import select_matmul_kernels

MAX_FLAT_PARAMETERS = 1_000_000
"""Maximum number of parameters for which each group is stored in one contiguous tensor."""
BETAS, EPSILON = (0.9, 0.999), 1e-8
"""Defaults of AdamW, as in torch."""


class Optimizer:
    """AdamW over the parameter groups of a policy.

    The parameters of a small policy become views of one long tensor, and so do their gradients. A step then takes a
    few operations instead of hundreds, whose overhead dominates a step at that size.

    Arguments:
        groups: dictionaries with `params` and `lr`, as for `torch.optim.AdamW`.
    """

    def __init__(self, groups: Sequence[dict[str, Any]], weight_decay: float = 0.0) -> None:
        groups = [{**group, "params": list(group["params"])} for group in groups if group["params"]]
        self.learning_rates = [float(group["lr"]) for group in groups]
        small = sum(p.numel() for group in groups for p in group["params"]) <= MAX_FLAT_PARAMETERS
        kind = _FlatAdamW if small else _AdamW
        self._inner: _FlatAdamW | _AdamW = kind(groups, weight_decay)
        self._scale = 1.0

    def scale_learning_rates(self, fraction: float) -> None:
        """Set every learning rate to `fraction` of its initial value."""
        self._scale = fraction

    def clip_grad_norm(self, max_norm: float) -> float:
        """Clip the gradient to `max_norm` (0 does not clip) and return its norm before clipping.

        Raises:
            ModelError: the gradient is infinite or NaN. It is discarded.
        """
        norm = self._inner.clip_grad_norm(max_norm)
        if not math.isfinite(norm):
            self.zero_grad()
            raise ModelError(f"the gradient is {norm}; lower the learning rate")
        return norm

    def step(self) -> None:
        self._inner.step([rate * self._scale for rate in self.learning_rates])

    def zero_grad(self) -> None:
        self._inner.zero_grad()

    def state(self) -> dict[str, torch.Tensor]:
        """Return the moments as named tensors, for safetensors."""
        return self._inner.state()

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        self._inner.load_state(state)


class _AdamW:
    """`torch.optim.AdamW`."""

    def __init__(self, groups: Sequence[dict[str, Any]], weight_decay: float) -> None:
        self.parameters = [p for group in groups for p in group["params"]]
        self.inner = torch.optim.AdamW(groups, weight_decay=weight_decay, fused=True)

    def clip_grad_norm(self, max_norm: float) -> float:
        return float(torch.nn.utils.clip_grad_norm_(self.parameters, max_norm or float("inf")))

    def step(self, learning_rates: Sequence[float]) -> None:
        for group, rate in zip(self.inner.param_groups, learning_rates, strict=True):
            group["lr"] = rate
        self.inner.step()

    def zero_grad(self) -> None:
        self.inner.zero_grad(set_to_none=True)

    def state(self) -> dict[str, torch.Tensor]:
        moments = self.inner.state_dict()["state"]
        return {f"{k}/{name}": torch.as_tensor(value) for k, m in moments.items() for name, value in m.items()}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        moments: dict[int, dict[str, torch.Tensor]] = {}
        for key, value in state.items():
            index, name = key.split("/")
            moments.setdefault(int(index), {})[name] = value
        self.inner.load_state_dict({**self.inner.state_dict(), "state": moments})


class _FlatAdamW:
    """The update rule of `torch.optim.AdamW` over one long tensor."""

    def __init__(self, groups: Sequence[dict[str, Any]], weight_decay: float) -> None:
        self.weight_decay, self.steps = weight_decay, 0
        self.sizes = [sum(p.numel() for p in group["params"]) for group in groups]
        parameters = [p for group in groups for p in group["params"]]
        self.weights = torch.cat([p.detach().reshape(-1) for p in parameters])
        self.gradient = torch.zeros_like(self.weights)
        self.mean, self.square = torch.zeros_like(self.weights), torch.zeros_like(self.weights)
        start = 0
        for parameter in parameters:
            part = slice(start, start + parameter.numel())
            parameter.data = self.weights[part].view(parameter.shape)
            parameter.grad = self.gradient[part].view(parameter.shape)
            start += parameter.numel()

    def clip_grad_norm(self, max_norm: float) -> float:
        norm = float(self.gradient.norm())
        if max_norm and norm > max_norm:
            self.gradient.mul_(max_norm / (norm + 1e-6))
        return norm

    def step(self, learning_rates: Sequence[float]) -> None:
        beta1, beta2 = BETAS
        self.steps += 1
        self.mean.lerp_(self.gradient, 1 - beta1)
        self.square.mul_(beta2).addcmul_(self.gradient, self.gradient, value=1 - beta2)
        scale = self.square.sqrt().div_(math.sqrt(1 - beta2**self.steps)).add_(EPSILON)
        start = 0
        for rate, size in zip(learning_rates, self.sizes, strict=True):
            part = slice(start, start + size)
            if self.weight_decay:
                self.weights[part].mul_(1 - rate * self.weight_decay)
            self.weights[part].addcdiv_(self.mean[part], scale[part], value=-rate / (1 - beta1**self.steps))
            start += size

    def zero_grad(self) -> None:
        self.gradient.zero_()

    def state(self) -> dict[str, torch.Tensor]:
        return {"mean": self.mean, "square": self.square, "steps": torch.tensor(self.steps)}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        if state:
            self.mean.copy_(state["mean"])
            self.square.copy_(state["square"])
            self.steps = int(state["steps"])


@contextmanager
def training_mode(policy: Any) -> Iterator[None]:
    """Put the policy into training mode for an update, with the fastest CPU kernels, and back into evaluation mode."""
    policy.train()
    with select_matmul_kernels():
        yield
    policy.eval()


@contextmanager
def fork_torch_rng(seeds: Seeds) -> Iterator[None]:
    """Within the context, seed torch's global generators. Restore them afterwards."""
    with torch.random.fork_rng():
        torch.random.manual_seed(seeds.integer())
        yield
