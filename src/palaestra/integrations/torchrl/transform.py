"""What the transforms share."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torchrl.envs import Transform

from palaestra.core.errors import EnvError
from palaestra.integrations.torchrl.base import MLGymWrapper
from palaestra.integrations.torchrl.entries import texts

FORMAT_ERROR = "format_error"
"""What was wrong with a message, on its way to the base environment and back; in no observation."""


class MLGymBaseTransform(Transform):  # type: ignore[misc]  # TorchRL has no types.
    """A transform over `MLGymWrapper`."""

    @property
    def wrapper(self) -> MLGymWrapper:
        """The environment under all transforms."""
        container = self.container
        base = None if container is None else container.base_env
        if not isinstance(base, MLGymWrapper):
            # Not an AttributeError: torch would take it for a missing member of the transform.
            raise EnvError(
                f"{type(self).__name__} works in an environment over MLGymWrapper; got {type(base).__name__}"
            )
        return base

    def acting(self, tensordict: TensorDictBase) -> list[bool]:
        """Which slots say something in this step: all, but those that TorchRL leaves out because they are done."""
        slots = len(self.wrapper.slots)
        stepped = tensordict.get("_step", None)
        if stepped is None:
            return [True] * slots
        errors = texts(tensordict, FORMAT_ERROR, slots) or [""] * slots
        return [moved or error != "" for moved, error in zip(stepped.reshape(slots).tolist(), errors, strict=True)]


def flags(values: list[bool], device: torch.device | None) -> torch.Tensor:
    """A truth value a slot, in the shape of `done`."""
    return torch.tensor(values, dtype=torch.bool, device=device).unsqueeze(-1)
