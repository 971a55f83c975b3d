"""RLOO (Ahmadian et al. 2024): REINFORCE whose baseline is the mean of the other members of the group.

The whole response is one action: its log-prob is the sum over its tokens, its return one number, from which
the divergence to a reference was subtracted beforehand. With more than one pass the ratio of the whole
response is clipped, as in TRL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from palaestra.core.errors import SettingsError
from palaestra.learn.advantages import leave_one_out_GK, normalised
from palaestra.learn.algorithms import GroupAlgorithm
from palaestra.learn.grpo import grouped, without_variance
from palaestra.learn.losses import approximate_kl, clip_fraction, clipped_policy_loss
from palaestra.learn.rollouts import Rollout, Selection, select_sequences
from palaestra.learn.updates import Means, gradient_step


@dataclass(frozen=True, slots=True)
class RLOOConfig:
    """How RLOO learns.

    Arguments:
        group_size: episodes that start alike.
        update_epochs: passes over each batch.
        clip: how far the ratio of a whole response may leave 1.
        normalise_advantages: over the batch.
    """

    learning_rate: float = 1e-4
    group_size: int = 8
    update_epochs: int = 1
    minibatches: int = 1
    clip: float = 0.2
    normalise_advantages: bool = False
    max_grad_norm: float = 1.0
    weight_decay: float = 0.0
    anneal: bool = False

    def __post_init__(self) -> None:
        if self.group_size < 2:
            raise SettingsError(f"RLOO compares with the others: group_size must be at least 2; got {self.group_size}")


class RLOO(GroupAlgorithm):
    """Learns from whole episodes in groups."""

    Config = RLOOConfig
    config: RLOOConfig

    @classmethod
    def configured(cls, settings: Any, policy: Any, kl: float) -> RLOOConfig:
        s = settings
        return RLOOConfig(
            learning_rate=s.learning_rate, group_size=s.group_size, update_epochs=s.epochs, minibatches=s.minibatches,
            clip=s.clip, max_grad_norm=s.max_grad_norm, anneal=s.anneal,
        )  # fmt: skip

    def update(self, rollout: Rollout, iteration: int, progress_remaining: float = 1.0) -> dict[str, float]:
        config, policy = self.config, self.policy
        self.optimizer.scale(progress_remaining if config.anneal else 1.0)
        returns_GK, valid_GK = grouped(rollout, config.group_size)
        advantages_B = leave_one_out_GK(returns_GK, valid_GK).flatten()
        without = without_variance(advantages_B, config.group_size)
        if config.normalise_advantages:
            advantages_B = normalised(advantages_B, valid_GK.flatten())
        sequences = [int(sequence) for sequence in ((advantages_B != 0) & valid_GK.flatten()).nonzero()[:, 0]]
        means = Means()
        policy.train()
        for batch in self.passes(rollout, sequences, iteration):
            num_sequences = float(valid_GK.sum()) * len(batch) / len(sequences)
            self._step(rollout, batch, advantages_B, num_sequences, means)
        policy.eval()
        return {**means.all(), "groups_without_variance": without}

    def _step(
        self, rollout: Rollout, batch: Selection, advantages_B: torch.Tensor, num_sequences: float, means: Means
    ) -> None:
        config, policy = self.config, self.policy

        def loss(microbatch: Selection) -> torch.Tensor:
            microbatch = select_sequences(rollout, microbatch.index.tolist())
            mask = microbatch.of(rollout.mask_BT).float()
            now = policy.evaluate_actions(rollout, microbatch, values=False)
            old = microbatch.of(rollout.logprobs_BT)
            now_B, old_B = (now.logprobs * mask).sum(-1), (old * mask).sum(-1)
            per_sequence_B = clipped_policy_loss(now_B, old_B, advantages_B[microbatch.index], config.clip)
            with torch.no_grad():
                means.add(
                    kl=approximate_kl(now.logprobs, old, mask),
                    clip_fraction=clip_fraction(now_B, old_B, None, config.clip),
                )
            return per_sequence_B.sum() / max(num_sequences, 1.0)

        means.add(gradient_norm=gradient_step(self.optimizer, batch, policy.max_microbatch_size(rollout), loss))
