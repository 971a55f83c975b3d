"""What every policy offers to the algorithms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from palaestra.learn.rollouts import Rollout, Selection


@dataclass(slots=True)
class ActionEvaluation:
    """A policy's view of decisions that were made before, with gradients.

    Arguments:
        logprobs: of each decision now; the shape is that of the selection.
        entropy: of each decision's distribution; `None` where nobody asked.
        values: what the critic expects from each decision's state; `None` without a critic.
    """

    logprobs: torch.Tensor
    entropy: torch.Tensor | None = None
    values: torch.Tensor | None = None


class Policy(Protocol):
    """An actor and, where an algorithm needs one, its critic."""

    by_sequence: bool
    """Whether decisions are judged by whole sequences (language models) or one by one."""
    has_critic: bool

    def evaluate_actions(
        self, rollout: Rollout, selection: Selection, entropy: bool = False, values: bool = True
    ) -> ActionEvaluation:
        """Judge decisions of a rollout again, under the weights of now."""
        ...

    def max_microbatch_size(self, rollout: Rollout) -> int:
        """The most sequences that one pass with gradients can take."""
        ...

    def values_BT(self, rollout: Rollout) -> tuple[torch.Tensor, torch.Tensor]:
        """The values of all states, and of the states that the decisions led to; without gradients."""
        ...

    def parameter_groups(self, actor_rate: float, critic_rate: float) -> list[dict[str, object]]:
        """What an optimizer is to change, and how fast."""
        ...
