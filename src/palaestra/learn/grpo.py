"""GRPO (Shao et al. 2024) and its variants: no critic, responses are compared within their group.

In order: the return of each episode; its advantage over the other members of its group; then the clipped
surrogate over all of the episode's decisions. `variant` sets what tells the published ones apart:

| variant | tokens are weighted | divided by the deviation | clip |
|---|---|---|---|
| `grpo` | by sequence, then over sequences | yes | symmetric |
| `dr_grpo` (Liu et al. 2025) | by a constant: no bias by length | no | symmetric |
| `dapo` (Yu et al. 2025) | all alike over the batch | yes | higher upwards (0.28), truncated responses masked |

Where it departs from common implementations:
- A response whose reward failed is no zero: it moves no mean and takes no part in the loss.
- Groups without variance teach nothing; they are left out of the passes, and counted.
- The divergence from a reference is a loss (`k3`) as in the paper, not a part of the reward.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from palaestra.core.errors import SettingsError
from palaestra.learn.advantages import group_advantages_GK
from palaestra.learn.algorithms import GroupAlgorithm
from palaestra.learn.losses import (
    Weighting,
    aggregate_BT,
    approximate_kl,
    clip_fraction,
    clipped_policy_loss,
    kl_k3,
    sequence_logprobs_BT,
)
from palaestra.learn.rollouts import Rollout, Selection, select_sequences
from palaestra.learn.updates import Means, gradient_step

Variant = Literal["grpo", "dr_grpo", "dapo"]


@dataclass(frozen=True, slots=True)
class GRPOConfig:
    """How GRPO learns.

    Arguments:
        group_size: episodes that start alike.
        update_epochs: passes over each batch; with 1 and one minibatch the ratio stays 1.
        minibatches: optimiser steps in one pass.
        clip_low, clip_high: how far the ratio may fall below and rise above 1.
        weighting: how tokens are weighted; see `palaestra.learn.losses.aggregate_BT`.
        scale: divide advantages by the deviation of their group.
        ratio: importance ratios by token, or one for the whole sequence (GSPO).
        mask_truncated: leave responses that were cut at the limit out of the loss.
        kl_coefficient: weight of the divergence from the reference.
    """

    learning_rate: float = 1e-4
    group_size: int = 8
    update_epochs: int = 1
    minibatches: int = 1
    clip_low: float = 0.2
    clip_high: float = 0.2
    weighting: Weighting = "sequence"
    scale: bool = True
    ratio: Literal["token", "sequence"] = "token"
    mask_truncated: bool = False
    kl_coefficient: float = 0.0
    entropy_coefficient: float = 0.0
    max_grad_norm: float = 1.0
    weight_decay: float = 0.0
    anneal: bool = False

    def __post_init__(self) -> None:
        if self.group_size < 2:
            raise SettingsError(
                f"GRPO compares the members of a group: group_size must be at least 2; got {self.group_size}"
            )


def variant(name: Variant, config: GRPOConfig = GRPOConfig()) -> GRPOConfig:
    """The settings of a published variant, the rest as in `config`."""
    if name == "dr_grpo":
        return replace(config, weighting="constant", scale=False)
    if name == "dapo":
        return replace(config, weighting="token", clip_high=max(0.28, config.clip_high), mask_truncated=True)
    if name == "grpo":
        return replace(config, weighting="sequence", scale=True)
    raise SettingsError(f"the variants are grpo, dr_grpo and dapo; got {name!r}")


class GRPO(GroupAlgorithm):
    """Learns from whole episodes in groups."""

    Config = GRPOConfig
    kl_in_loss = True
    config: GRPOConfig

    @classmethod
    def configured(cls, settings: Any, policy: Any, kl: float) -> GRPOConfig:
        s = settings
        config = variant(s.variant, GRPOConfig(
            learning_rate=s.learning_rate, group_size=s.group_size, update_epochs=s.epochs, minibatches=s.minibatches,
            clip_low=s.clip, clip_high=s.clip_high, mask_truncated=s.mask_truncated, kl_coefficient=kl,
            entropy_coefficient=s.entropy, max_grad_norm=s.max_grad_norm, anneal=s.anneal,
        ))  # fmt: skip
        return replace(config, weighting=s.weighting) if s.weighting else config

    def advantages_B(self, rollout: Rollout) -> torch.Tensor:
        """One advantage an episode, from the returns of its group."""
        returns_GK, valid_GK = grouped(rollout, self.config.group_size)
        return group_advantages_GK(returns_GK, valid_GK, self.config.scale).flatten()

    def update(self, rollout: Rollout, iteration: int, progress_remaining: float = 1.0) -> dict[str, float]:
        config, policy = self.config, self.policy
        self.optimizer.scale(progress_remaining if config.anneal else 1.0)
        advantages_B = self.advantages_B(rollout)
        assert rollout.valid_B is not None and rollout.cut_B is not None  # noqa: PT018
        counted_B = rollout.valid_B & ~rollout.cut_B if config.mask_truncated else rollout.valid_B
        mask_BT = rollout.mask_BT & counted_B[:, None]
        # With a divergence to hold down, episodes without an advantage still have a gradient.
        teaching_B = counted_B & ((advantages_B != 0) | bool(config.kl_coefficient) | bool(config.entropy_coefficient))
        sequences = [int(sequence) for sequence in teaching_B.nonzero()[:, 0]]
        means = Means()
        metrics = {"groups_without_variance": without_variance(advantages_B, config.group_size)}
        policy.train()
        for batch in self.passes(rollout, sequences, iteration):
            share = counted_B.sum() * len(batch) / len(sequences)
            self._step(rollout, batch, advantages_B, mask_BT, share, means)
        policy.eval()
        return {**means.all(), **metrics, "epochs": float(config.update_epochs if sequences else 0)}

    def _step(
        self,
        rollout: Rollout,
        batch: Selection,
        advantages_B: torch.Tensor,
        mask_BT: torch.Tensor,
        num_sequences: torch.Tensor,
        means: Means,
    ) -> None:
        config, policy = self.config, self.policy
        # Episodes without an advantage were left out of the passes, not out of the count.
        tokens = float(mask_BT.sum()) * float(num_sequences) / max(1.0, float((mask_BT.any(-1)).sum()))
        # A constant of the run: the longest response of this batch would make the step depend on it.
        length = rollout.limit or rollout.mask_BT.shape[1]

        def loss(microbatch: Selection) -> torch.Tensor:
            microbatch = select_sequences(rollout, microbatch.index.tolist())
            mask = microbatch.of(mask_BT).float()
            now = policy.evaluate_actions(rollout, microbatch, entropy=config.entropy_coefficient != 0, values=False)
            old = microbatch.of(rollout.logprobs_BT)
            compared = now.logprobs
            if config.ratio == "sequence":
                compared = sequence_logprobs_BT(now.logprobs, old, mask)
            advantages = advantages_B[microbatch.index][:, None]
            per_token = clipped_policy_loss(compared, old, advantages, config.clip_low, config.clip_high)
            if config.kl_coefficient:
                assert rollout.reference_BT is not None, "a divergence needs a reference"
                per_token = per_token + config.kl_coefficient * kl_k3(now.logprobs, microbatch.of(rollout.reference_BT))
            if config.entropy_coefficient:
                per_token = per_token - config.entropy_coefficient * now.entropy
            with torch.no_grad():
                means.add(
                    kl=approximate_kl(now.logprobs, old, mask),
                    clip_fraction=clip_fraction(compared, old, mask, config.clip_low, config.clip_high),
                )
            return aggregate_BT(per_token, mask, config.weighting, float(num_sequences), tokens, length)

        norm = gradient_step(self.optimizer, batch, policy.max_microbatch_size(rollout), loss)
        means.add(gradient_norm=norm)


def without_variance(advantages_B: torch.Tensor, group_size: int) -> float:
    """The share of groups that teach nothing because no known member is above another."""
    return float((advantages_B.view(-1, group_size) == 0).all(-1).float().mean())


def grouped(rollout: Rollout, group_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The returns of the episodes by group, and which of them are known: `[groups, members]`."""
    if rollout.group_B is None or rollout.valid_B is None:
        raise SettingsError("group methods need whole episodes in groups; this rollout has none")
    if rollout.num_sequences % group_size:
        raise SettingsError(f"{rollout.num_sequences} episodes do not make whole groups of {group_size}")
    returns_B = (rollout.rewards_BT * rollout.mask_BT).sum(-1)
    return returns_B.view(-1, group_size), rollout.valid_B.view(-1, group_size)
