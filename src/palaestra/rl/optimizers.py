"""AdamW over the parameter groups of a policy, Muon, with a state that checkpoints can store; training mode; seeded scopes.

16-bit weights are trained as copies of float32 weights (`MixedAdamW`): most steps are smaller than the distance between two
16-bit numbers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, TypeVar

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from palaestra.core.errors import ModelError
from palaestra.core.seeding import Seeds
from palaestra.kernels.cpu import select_matmul_kernels
from palaestra.rl.distributed.ranks import is_sharded, sum_gradients, sum_over_ranks, to_share, world_size
from palaestra.rl.rollouts import Rollout, Selection, split_microbatches

Result = TypeVar("Result")
MAX_FLAT_PARAMETERS = 1_000_000
"""Maximum number of parameters for which each group is stored in one contiguous tensor."""
_HALF = (torch.bfloat16, torch.float16)
_HOOKS = WeakTensorKeyDictionary()
"""By 16-bit parameter: the hook that moves its gradient to its copy."""
_BETAS, _EPSILON = (0.9, 0.999), 1e-8
"""Defaults of AdamW, as in torch."""
_MOMENTUM, _COEFFICIENTS = 0.95, (3.4445, -4.7750, 2.0315)
"""Of Muon: its momentum, and the coefficients of the Newton-Schulz iteration."""
_MOMENTS = {"mean": "exp_avg", "square": "exp_avg_sq"}
"""The moments in the state of `_FlatAdamW`, with their names in torch."""


def retry_in_smaller_microbatches(accumulate: Callable[..., Result]) -> Callable[..., Result]:
    """Decorate the method of an algorithm that accumulates the gradient of a minibatch.

    The method splits the minibatch into microbatches of `policy.max_microbatch_size(rollout)`. If a GPU has too little memory,
    the gradient and the metrics of the minibatch are discarded, and the method is called again with microbatches of half
    the size. The policy keeps that size. The tensors of the failed call are freed with its frame.

    Raises:
        ModelError: a single sequence does not fit into memory, or several processes train together.
    """

    @functools.wraps(accumulate)
    def accumulate_with_recovery(self: Any, minibatch: Selection, rollout: Rollout, *arguments: Any) -> Result:
        policy, metrics = self.policy, self.metrics
        while True:
            kept = metrics.copy()
            try:
                return accumulate(self, minibatch, rollout, *arguments)
            except torch.OutOfMemoryError as error:
                microbatches = split_microbatches(minibatch, policy.max_microbatch_size(rollout))
                largest = max(map(len, microbatches))
                if largest == 1 or not minibatch.by_sequence or world_size() > 1:
                    raise ModelError(_explain(error, largest, rollout)) from error
            # Outside of the handler: the error refers to the tensors of the failed pass.
            self.optimizer.zero_grad()
            metrics.restore(kept)
            torch.cuda.empty_cache()
            policy.microbatch_size = max(1, largest // 2)

    return accumulate_with_recovery


def _explain(error: torch.OutOfMemoryError, sequences: int, rollout: Rollout) -> str:
    tokens = int(rollout.mask_BT.sum(-1).max())
    reason = ". ".join(str(error).split(". ")[:2])
    return (
        f"the GPU has too little memory for a microbatch of {sequences} sequences with up to {tokens} actions ({reason}); "
        "set --microbatch-size to less, set --gradient-checkpointing, train an adapter (--method lora), or lower "
        "--max-tokens or --num-envs"
    )


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
        half = any(p.dtype in _HALF for group in groups for p in group["params"])
        self._inner: _FlatAdamW | _AdamW
        if any(is_sharded(p) for group in groups for p in group["params"]):
            self._inner = _ShardedAdamW(groups, weight_decay)
        else:
            self._inner = (_FlatAdamW if small and not half else _AdamW)(groups, weight_decay)
        self._scale = 1.0

    def scale_learning_rates(self, fraction: float) -> None:
        """Set every learning rate to `fraction` of its initial value."""
        self._scale = fraction

    def reduce_gradients(self) -> None:
        """Sum the gradient over all processes; see `palaestra.rl.distributed.ranks`."""
        self._inner.reduce_gradients()

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
        """Return the moments as named tensors, for checkpoints. Those of sharded parameters are sharded."""
        return self._inner.state()

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        self._inner.load_state(state)

    def list_moments(self) -> dict[str, torch.Tensor]:
        """By the name of each moment in a sharded state, the parameter whose shape and shards it has."""
        return {f"{k}/{key}": p for k, p in enumerate(self._inner.parameters) for key in _MOMENTS.values()}


class MixedAdamW(torch.optim.AdamW):
    """`torch.optim.AdamW` in which 16-bit parameters have float32 copies.

    Gradients are summed and clipped in float32, the copies are updated, and the parameters are set to them. `param_groups` has
    the copies. Other parameters are updated as by `torch.optim.AdamW`. A parameter belongs to the last optimizer that was made
    for it, until `close`.

    Arguments:
        groups: dictionaries with `params` and, optionally, `lr`; or parameters.
    """

    def __init__(self, groups: Sequence[Any], lr: float = 1e-3, weight_decay: float = 0.0) -> None:
        given = groups if isinstance(groups[0], dict) else [{"params": groups}]
        self._copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        """By the index of a 16-bit parameter: the parameter and its copy."""
        self._hooks: list[Any] = []
        index = 0
        updated = []
        for group in given:
            parameters = []
            for parameter in group["params"]:
                target = parameter
                if parameter.dtype in _HALF and not is_sharded(parameter):
                    target = parameter.detach().float().requires_grad_()
                    self._copies[index] = parameter, target
                    if parameter in _HOOKS:
                        _HOOKS[parameter].remove()
                    _HOOKS[parameter] = parameter.register_post_accumulate_grad_hook(partial(_move_gradient, target))
                    self._hooks.append(_HOOKS[parameter])
                parameters.append(target)
                index += 1
            updated.append({**group, "params": parameters})
        super().__init__(updated, lr=lr, weight_decay=weight_decay, fused=True)

    def close(self) -> None:
        """Leave the gradients of 16-bit parameters where they are from now on, so that the copies can be freed."""
        for hook in self._hooks:
            hook.remove()

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        super().step(closure)
        self._set_parameters()

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        for index, (_, copy) in self._copies.items():
            state["state"].setdefault(index, {})["copy"] = copy.detach()
        return state

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        moments = {index: dict(values) for index, values in state_dict["state"].items()}
        for index, (_, copy) in self._copies.items():
            if (value := moments.get(index, {}).pop("copy", None)) is not None:
                copy.copy_(value)
        super().load_state_dict({**state_dict, "state": {index: m for index, m in moments.items() if m}})
        self._set_parameters()

    @torch.no_grad()
    def _set_parameters(self) -> None:
        if self._copies:
            parameters, copies = zip(*self._copies.values(), strict=True)
            torch._foreach_copy_(list(parameters), list(copies))


class MuonAdamW(MixedAdamW):
    """Muon for the weight matrices of the blocks, `MixedAdamW` for the embeddings, the output layer and the vectors.

    Muon is momentum with orthogonalized steps, in float32. The algorithm is Keller Jordan's, with the step scaled to AdamW's
    size (Moonshot's rule), as in `torch.optim.Muon`. That one orthogonalizes in bfloat16, which is slow on CPUs without
    bfloat16 units. This one processes all matrices of one shape together.
    """

    def __init__(
        self, named: Iterable[tuple[str, torch.nn.Parameter]], lr: float = 1e-3, weight_decay: float = 0.0
    ) -> None:
        groups: dict[bool, list[torch.nn.Parameter]] = {True: [], False: []}
        for name, parameter in named:
            groups[parameter.ndim == 2 and "embed" not in name and "lm_head" not in name].append(parameter)
        super().__init__([{"params": groups[True]}, {"params": groups[False]}], lr, weight_decay)

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        matrices, self.param_groups = self.param_groups[0], self.param_groups[1:]
        super().step(closure)
        self.param_groups = [matrices, *self.param_groups]
        self._step_by_muon(matrices)
        self._set_parameters()

    @torch.no_grad()
    def _step_by_muon(self, group: dict[str, Any]) -> None:
        shapes: dict[torch.Size, list[torch.Tensor]] = {}
        for parameter in group["params"]:
            if parameter.grad is not None:
                shapes.setdefault(parameter.shape, []).append(parameter)
        for shape, parameters in shapes.items():
            updates = []
            for parameter in parameters:
                state = self.state[parameter]
                if not state:  # AdamW expects `step` in a state that it loads.
                    state |= {"momentum": torch.zeros_like(parameter), "step": torch.tensor(0.0)}
                assert parameter.grad is not None
                state["momentum"].lerp_(parameter.grad, 1 - _MOMENTUM)
                updates.append(parameter.grad.lerp(state["momentum"], _MOMENTUM))
            directions_MNK = orthogonalize(torch.stack(updates))
            rate = group["lr"] * 0.2 * max(shape) ** 0.5
            for parameter, direction_NK in zip(parameters, directions_MNK, strict=True):
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(direction_NK, alpha=-rate)


def orthogonalize(matrices_MNK: torch.Tensor, iterations: int = 5) -> torch.Tensor:
    """Bring all singular values of each matrix close to 1 by Newton-Schulz iterations."""
    tall = matrices_MNK.shape[-2] > matrices_MNK.shape[-1]
    x: torch.Tensor = matrices_MNK.mT if tall else matrices_MNK
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=1e-7)
    a, b, c = _COEFFICIENTS
    for _ in range(iterations):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


def _move_gradient(copy: torch.Tensor, parameter: torch.Tensor) -> None:
    """Add the gradient of a parameter to that of its copy."""
    assert parameter.grad is not None
    copy.grad = parameter.grad.float() if copy.grad is None else copy.grad.add_(parameter.grad)
    parameter.grad = None


class _AdamW:
    """`MixedAdamW`."""

    def __init__(self, groups: Sequence[dict[str, Any]], weight_decay: float) -> None:
        self.inner = MixedAdamW(groups, weight_decay=weight_decay)
        self.parameters = [p for group in self.inner.param_groups for p in group["params"]]

    def reduce_gradients(self) -> None:
        sum_gradients(self.parameters)

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


class _ShardedAdamW(_AdamW):
    """`torch.optim.AdamW` over sharded parameters. It also loads the state of a single process."""

    def reduce_gradients(self) -> None:
        """Do nothing: the backward pass of sharded parameters has summed their gradients."""

    def clip_grad_norm(self, max_norm: float) -> float:
        norm: Any = torch.nn.utils.clip_grad_norm_(self.parameters, max_norm or float("inf"))
        return float(norm.full_tensor())

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        if "steps" in state:
            sizes, steps = [p.numel() for p in self.parameters], state["steps"].float()
            split = {key: torch.split(state[name], sizes) for name, key in _MOMENTS.items()}
            state = {
                f"{k}/{key}": values[k].view(p.shape)
                for k, p in enumerate(self.parameters)
                for key, values in split.items()
            } | {f"{k}/step": steps for k in range(len(sizes))}
        share = {
            key: value.reshape(())
            if key.endswith("/step")
            else to_share(value, self.parameters[int(key.split("/")[0])])
            for key, value in state.items()
        }
        super().load_state(share)


class _FlatAdamW:
    """The update rule of `torch.optim.AdamW` over one long tensor."""

    def __init__(self, groups: Sequence[dict[str, Any]], weight_decay: float) -> None:
        self.weight_decay, self.steps = weight_decay, 0
        self.parameters = [p for group in groups for p in group["params"]]
        self.sizes = [sum(p.numel() for p in group["params"]) for group in groups]
        self.weights = torch.cat([p.detach().reshape(-1) for p in self.parameters])
        self.gradient = torch.zeros_like(self.weights)
        self.mean, self.square = torch.zeros_like(self.weights), torch.zeros_like(self.weights)
        start = 0
        for parameter in self.parameters:
            part = slice(start, start + parameter.numel())
            parameter.data = self.weights[part].view(parameter.shape)
            parameter.grad = self.gradient[part].view(parameter.shape)
            start += parameter.numel()

    def reduce_gradients(self) -> None:
        sum_over_ranks(self.gradient)

    def clip_grad_norm(self, max_norm: float) -> float:
        norm = float(self.gradient.norm())
        if max_norm and norm > max_norm:
            self.gradient.mul_(max_norm / (norm + 1e-6))
        return norm

    def step(self, learning_rates: Sequence[float]) -> None:
        beta1, beta2 = _BETAS
        self.steps += 1
        self.mean.lerp_(self.gradient, 1 - beta1)
        self.square.mul_(beta2).addcmul_(self.gradient, self.gradient, value=1 - beta2)
        scale = self.square.sqrt().div_(math.sqrt(1 - beta2**self.steps)).add_(_EPSILON)
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
        if state and "steps" not in state:  # Of several processes that shard the parameters.
            moments = {
                name: torch.cat(
                    [state.get(f"{k}/{key}", torch.zeros_like(p)).reshape(-1) for k, p in enumerate(self.parameters)]
                )
                for name, key in _MOMENTS.items()
            }
            state = {**moments, "steps": state["0/step"]}
        if state:
            self.mean.copy_(state["mean"])
            self.square.copy_(state["square"])
            self.steps = int(state["steps"])


@contextmanager
def training_mode(policy: torch.nn.Module) -> Iterator[None]:
    """Put the policy into training mode for an update, with the fastest CPU kernels, and back into evaluation mode."""
    policy.train()
    # Torch's own convolutions are slower than oneDNN's.
    with nullcontext() if getattr(policy, "trunk", None) is not None else select_matmul_kernels():
        yield
    policy.eval()


@contextmanager
def fork_torch_rng(seeds: Seeds) -> Iterator[None]:
    """Within the context, seed torch's global generators. Restore them afterwards."""
    with torch.random.fork_rng():
        torch.random.manual_seed(seeds.integer())
        yield
