"""The interface between policies and algorithms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from palaestra.learn.rollouts import Rollout, Selection


@dataclass(slots=True)
class ActionEvaluation:
    """Actions of a rollout, evaluated under the current weights with gradients.

    Arguments:
        logprobs: the log-prob of each action, in the shape of the selection.
        entropy: the entropy of each action's distribution; `None` if it was not asked for.
        values: the critic's value of the state before each action; `None` without a critic.
    """

    logprobs: torch.Tensor
    entropy: torch.Tensor | None = None
    values: torch.Tensor | None = None


class Policy(Protocol):
    """An actor and, if the algorithm needs one, its critic."""

    by_sequence: bool
    """Whether minibatches are whole sequences (language models) or single decisions."""
    has_critic: bool

    def evaluate_actions(
        self, rollout: Rollout, selection: Selection, entropy: bool = False, values: bool = True
    ) -> ActionEvaluation:
        """Evaluate the selected actions of a rollout under the current weights."""
        ...

    def max_microbatch_size(self, rollout: Rollout) -> int:
        """How many sequences one pass with gradients can take."""
        ...

    def values_BT(self, rollout: Rollout) -> tuple[torch.Tensor, torch.Tensor]:
        """The values of all states, and of the states after them; without gradients."""
        ...

    def parameter_groups(self, learning_rate: float, critic_learning_rate: float) -> list[dict[str, object]]:
        """Parameter groups for an optimizer."""
        ...
