"""What the algorithms share: one optimiser step on a minibatch, and the state that a checkpoint keeps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from palaestra.core.errors import ModelError
from palaestra.engines.cpu.kernels import select_matmul_kernels
from palaestra.learn.rollouts import Selection, split_microbatches

FLAT_UP_TO = 1_000_000
"""Parameters up to which those of a group are laid side by side in memory."""


class Optimizer:
    """AdamW with gradient clipping, over the parameter groups of a policy.

    The parameters of a small policy become views of one long tensor a group, and so do their gradients: a
    handful of operations instead of hundreds, which is most of the time of a step at that size.

    Arguments:
        groups: each with `params` and `lr`.
        clip: the largest norm of a gradient; 0 clips nothing.
    """

    def __init__(
        self, groups: Sequence[dict[str, Any]], clip: float, weight_decay: float = 0.0, epsilon: float = 1e-8
    ) -> None:
        groups = [{**group, "params": list(group["params"])} for group in groups if group["params"]]
        self.learning_rates = [float(group["lr"]) for group in groups]
        self.clip = clip
        small = sum(p.numel() for group in groups for p in group["params"]) <= FLAT_UP_TO
        kind = _FlatAdamW if small else _AdamW
        self._inner: _FlatAdamW | _AdamW = kind(groups, weight_decay, epsilon)
        self._scale = 1.0

    def scale(self, fraction: float) -> None:
        """Set every rate to `fraction` of its first value."""
        self._scale = fraction

    def step(self) -> float:
        """Clip, step, forget the gradients; returns the norm that they had."""
        norm = self._inner.clip(self.clip)
        if not math.isfinite(norm):
            self._inner.forget()
            raise ModelError(f"the gradient is {norm}; lower the learning rate")
        self._inner.step([rate * self._scale for rate in self.learning_rates])
        self._inner.forget()
        return norm

    def state(self) -> dict[str, torch.Tensor]:
        """The moments by place, for safetensors."""
        return self._inner.state()

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        self._inner.load_state(state)


class _AdamW:
    """Torch's own."""

    def __init__(self, groups: Sequence[dict[str, Any]], weight_decay: float, epsilon: float) -> None:
        self.parameters = [p for group in groups for p in group["params"]]
        self.inner = torch.optim.AdamW(groups, weight_decay=weight_decay, eps=epsilon, fused=True)

    def clip(self, most: float) -> float:
        return float(torch.nn.utils.clip_grad_norm_(self.parameters, most or float("inf")))

    def step(self, learning_rates: Sequence[float]) -> None:
        for group, rate in zip(self.inner.param_groups, learning_rates, strict=True):
            group["lr"] = rate
        self.inner.step()

    def forget(self) -> None:
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
    """The same rule over one long tensor a group (`torch.optim.AdamW`, tested against it)."""

    def __init__(
        self,
        groups: Sequence[dict[str, Any]],
        weight_decay: float,
        epsilon: float,
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        self.weight_decay, self.epsilon, self.betas, self.steps = weight_decay, epsilon, betas, 0
        self.sizes = [sum(p.numel() for p in group["params"]) for group in groups]
        parameters = [p for group in groups for p in group["params"]]
        self.weights = torch.cat([p.detach().reshape(-1) for p in parameters])
        self.gradient = torch.zeros_like(self.weights)
        self.mean, self.square = torch.zeros_like(self.weights), torch.zeros_like(self.weights)
        start = 0
        for parameter in parameters:
            stretch = slice(start, start + parameter.numel())
            parameter.data = self.weights[stretch].view(parameter.shape)
            parameter.grad = self.gradient[stretch].view(parameter.shape)
            start += parameter.numel()

    def clip(self, most: float) -> float:
        norm = float(self.gradient.norm())
        if most and norm > most:
            self.gradient.mul_(most / (norm + 1e-6))
        return norm

    def step(self, learning_rates: Sequence[float]) -> None:
        beta1, beta2 = self.betas
        self.steps += 1
        self.mean.lerp_(self.gradient, 1 - beta1)
        self.square.mul_(beta2).addcmul_(self.gradient, self.gradient, value=1 - beta2)
        scale = self.square.sqrt().div_(math.sqrt(1 - beta2**self.steps)).add_(self.epsilon)
        start = 0
        for rate, size in zip(learning_rates, self.sizes, strict=True):
            part = slice(start, start + size)
            if self.weight_decay:
                self.weights[part].mul_(1 - rate * self.weight_decay)
            self.weights[part].addcdiv_(self.mean[part], scale[part], value=-rate / (1 - beta1**self.steps))
            start += size

    def forget(self) -> None:
        self.gradient.zero_()

    def state(self) -> dict[str, torch.Tensor]:
        return {"mean": self.mean, "square": self.square, "steps": torch.tensor(self.steps)}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        if state:
            self.mean.copy_(state["mean"])
            self.square.copy_(state["square"])
            self.steps = int(state["steps"])


def gradient_step(
    optimizer: Optimizer, selection: Selection, most: int, loss: Callable[[Selection], torch.Tensor]
) -> float:
    """One optimiser step on a minibatch, computed in microbatches of at most `most` sequences; returns the gradient's norm.

    `loss` must be the microbatch's fraction of the minibatch's loss: divided by the whole minibatch's counts.
    """
    with select_matmul_kernels():
        for microbatch in split_microbatches(selection, most):
            loss(microbatch).backward()  # type: ignore[no-untyped-call]
    return optimizer.step()


class Means:
    """Running means of metrics, each weighted alike."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def add(self, **metrics: float | torch.Tensor) -> None:
        for name, value in metrics.items():
            self._sums[name] = self._sums.get(name, 0.0) + float(value)
            self._counts[name] = self._counts.get(name, 0) + 1

    def all(self) -> dict[str, float]:
        return {name: total / self._counts[name] for name, total in self._sums.items()}
