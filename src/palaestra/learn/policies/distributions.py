"""Action distributions of classic environments as plain functions of a network's output.

`torch.distributions` would give the same results, but its overhead is larger than the time of small networks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch

from palaestra.core.errors import EnvError


@dataclass(frozen=True, slots=True)
class ActionHead:
    """Maps a network's output to actions of a space.

    Arguments:
        outputs: size of the network's output.
        parts: sizes of the discrete parts; empty for continuous actions.
        shape: of one action of the space.
    """

    space: gymnasium.Space[Any]
    outputs: int
    parts: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()

    @property
    def continuous(self) -> bool:
        return not self.parts

    def sample(
        self, output_BO: torch.Tensor, log_std_O: torch.Tensor | None, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Actions `[B, parts]` and their log-probs."""
        if self.continuous:
            assert log_std_O is not None
            noise_BO = torch.randn(output_BO.shape, generator=generator, device=output_BO.device)
            actions_BA = output_BO + noise_BO * log_std_O.exp()
            return actions_BA, _normal_logprobs(noise_BO, log_std_O)
        chosen, logprobs = [], torch.zeros(len(output_BO), device=output_BO.device)
        for logits in torch.split(output_BO, list(self.parts), -1):
            logp = logits.log_softmax(-1)
            uniform = torch.rand(len(logits), 1, generator=generator, device=logits.device)
            cumulative = logp.exp().cumsum(-1)
            action = (cumulative[:, :-1] <= uniform * cumulative[:, -1:]).sum(-1)
            chosen.append(action)
            logprobs = logprobs + logp.gather(-1, action[:, None])[:, 0]
        return torch.stack(chosen, -1), logprobs

    def mode(self, output_BO: torch.Tensor) -> torch.Tensor:
        """The most likely actions."""
        if self.continuous:
            return output_BO
        return torch.stack([logits.argmax(-1) for logits in torch.split(output_BO, list(self.parts), -1)], -1)

    def evaluate_actions(
        self, output_BO: torch.Tensor, log_std_O: torch.Tensor | None, actions_BA: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probs of actions, and entropies."""
        if self.continuous:
            assert log_std_O is not None
            noise_BO = (actions_BA - output_BO) * (-log_std_O).exp()
            entropy = (log_std_O + 0.5 * math.log(2 * math.pi * math.e)).sum()
            return _normal_logprobs(noise_BO, log_std_O), entropy.expand(len(output_BO))
        logprobs: torch.Tensor | float = 0.0
        entropies: torch.Tensor | float = 0.0
        for part, logits in enumerate(torch.split(output_BO, list(self.parts), -1)):
            logp = logits.log_softmax(-1)
            logprobs = logprobs + logp.gather(-1, actions_BA[:, part : part + 1])[:, 0]
            entropies = entropies - (logp.exp() * logp).sum(-1)
        assert isinstance(logprobs, torch.Tensor) and isinstance(entropies, torch.Tensor)  # noqa: PT018
        return logprobs, entropies

    def to_environment(self, actions_BA: torch.Tensor) -> np.ndarray:
        """Actions for the vector environment. Continuous ones are clipped to the bounds of the space."""
        values: np.ndarray = actions_BA.cpu().numpy()
        if isinstance(self.space, gymnasium.spaces.Box):
            clipped = np.clip(values.reshape(-1, *self.shape), self.space.low, self.space.high)
            return np.asarray(clipped, dtype=self.space.dtype)
        if isinstance(self.space, gymnasium.spaces.Discrete):
            return np.asarray(values[:, 0] + self.space.start)
        if isinstance(self.space, gymnasium.spaces.MultiDiscrete):
            return np.asarray(values.reshape(-1, *self.shape) + self.space.start, dtype=self.space.dtype)
        return values.reshape(-1, *self.shape).astype(self.space.dtype)


def make_action_head(space: gymnasium.Space[Any]) -> ActionHead:
    """Make the head for an action space.

    Raises:
        EnvError: the space is not Discrete, MultiDiscrete, MultiBinary or Box.
    """
    if isinstance(space, gymnasium.spaces.Discrete):
        return ActionHead(space, int(space.n), (int(space.n),))
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        parts = tuple(int(n) for n in space.nvec.flatten())
        return ActionHead(space, sum(parts), parts, space.nvec.shape)
    if isinstance(space, gymnasium.spaces.MultiBinary):
        count = int(np.prod(space.shape))
        return ActionHead(space, 2 * count, (2,) * count, space.shape)
    if isinstance(space, gymnasium.spaces.Box):
        return ActionHead(space, int(np.prod(space.shape)), (), space.shape)
    raise EnvError(f"expected a Discrete, MultiDiscrete, MultiBinary or Box action space; got {space}")


def count_features(space: gymnasium.Space[Any]) -> int:
    """The number of features of an observation.

    Raises:
        EnvError: the space is not Box, MultiBinary or Discrete.
    """
    if isinstance(space, (gymnasium.spaces.Box, gymnasium.spaces.MultiBinary)):
        return int(np.prod(space.shape))
    if isinstance(space, gymnasium.spaces.Discrete):
        return int(space.n)
    raise EnvError(
        f"expected a Box, MultiBinary or Discrete observation space; got {space}; "
        f"wrap the environment, for example in gymnasium.wrappers.FlattenObservation"
    )


def to_features(space: gymnasium.Space[Any], observations: np.ndarray) -> torch.Tensor:
    """A batch of observations as float features `[N, F]`."""
    if isinstance(space, gymnasium.spaces.Discrete):
        index = torch.as_tensor(np.asarray(observations) - space.start, dtype=torch.long)
        return torch.nn.functional.one_hot(index, int(space.n)).float()
    array = np.asarray(observations)
    return torch.from_numpy(array.reshape(len(array), -1).astype(np.float32))


def _normal_logprobs(noise_BO: torch.Tensor, log_std_O: torch.Tensor) -> torch.Tensor:
    return (-0.5 * noise_BO.square() - log_std_O - 0.5 * math.log(2 * math.pi)).sum(-1)
