"""GRPO (Shao et al. 2024) and its variants: no critic; responses are compared within their group.

`variant` sets the differences between the published algorithms. Each can be overridden by its own hyperparameter.

| variant | loss_aggregation | scale_rewards | clip_range_high | mask_truncated_completions |
|---|---|---|---|---|
| `grpo` | `sequence` | yes | clip_range | no |
| `dr_grpo` (Liu et al. 2025) | `constant` | no | clip_range | no |
| `dapo` (Yu et al. 2025) | `token` | yes | 0.28 | yes |

Differences from common implementations:
- A response whose reward failed is excluded from the mean of its group and from the loss. It does not count as 0.
- Groups without variance have no gradient. They are skipped. `frac_reward_zero_std` is the fraction of groups whose rewards are equal.
- The KL penalty against a reference model is a term of the loss (the `k3` estimator), as in the paper.
- With `credit="turn"` the return from each turn on is compared with that of the other episodes from the same turn on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from palaestra.core.settings import setting
from palaestra.rl.algorithms import Algorithm, MetricMeans, TurnCreditConfig
from palaestra.rl.losses import (
    aggregate_losses,
    approximate_kl,
    compute_clip_fraction,
    compute_clip_ratios,
    compute_frac_reward_zero_std,
    compute_group_advantages_GK,
    compute_importance_weights,
    compute_policy_loss,
    compute_sequence_logprobs_BT,
    compute_turn_group_advantages_GKN,
    kl_k3,
    mean_where,
)
from palaestra.rl.optimizers import retry_in_smaller_microbatches, training_mode
from palaestra.rl.rollouts import Rollout, Selection, Turns, make_group_minibatches, split_microbatches

_Variant = Literal["grpo", "dr_grpo", "dapo"]
_VARIANTS: Mapping[_Variant, Mapping[str, Any]] = {
    "grpo": {"loss_aggregation": "sequence", "scale_rewards": True, "mask_truncated_completions": False},
    "dr_grpo": {"loss_aggregation": "constant", "scale_rewards": False, "mask_truncated_completions": False},
    "dapo": {"loss_aggregation": "token", "scale_rewards": True, "mask_truncated_completions": True, "clip_range_high": 0.28},
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class GRPOConfig(TurnCreditConfig):
    """Hyperparameters of GRPO, with the names of TRL and Stable-Baselines3. `None` is replaced by the variant's value."""

    variant: Literal["grpo", "dr_grpo", "dapo"] = setting(
        "grpo", "Published variant whose values are the defaults of the next five options."
    )
    loss_aggregation: Literal["token", "turn", "sequence", "constant"] | None = setting(
        None,
        "Average the loss over all tokens, per turn, per sequence, or over a constant length; by default the variant's.",
    )
    scale_rewards: bool | None = setting(
        None, "Divide advantages by the standard deviation of their group; by default the variant's."
    )
    mask_truncated_completions: bool | None = setting(
        None, "Exclude responses that reached the token limit from the loss; by default the variant's."
    )
    clip_range: float = setting(0.2, "Clipping range of the probability ratio around 1.", low=0, high=1)
    clip_range_high: float | None = setting(None, "Clipping range above 1; by default the variant's.", low=0)
    importance_sampling_level: Literal["token", "sequence"] = setting(
        "token", "Compute probability ratios per token, or per sequence as in GSPO."
    )
    ent_coef: float = setting(0.0, "Weight of the entropy bonus.", low=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in {"clip_range_high": self.clip_range, **_VARIANTS[self.variant]}.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)


class GRPO(Algorithm):
    """Group relative policy optimization."""

    Config = GRPOConfig
    kl_in_loss = True
    distributed = True
    config: GRPOConfig

    def update(self, rollout: Rollout, iteration: int, progress_remaining: float = 1.0) -> dict[str, float]:
        config, policy, optimizer = self.config, self.policy, self.optimizer
        optimizer.scale_learning_rates(config.scale_learning_rate(progress_remaining))
        rollout, self.metrics = rollout.to(policy.device), MetricMeans()

        # Advantages: the return of each episode, compared with those of its group.
        returns_GK, known_GK = rollout.group_returns(config.group_size)
        valid_B = rollout.spread_over_sequences(known_GK)
        if config.credit == "turn":
            turns = Turns(rollout)
            turn_returns_GKN, reached_GKN = rollout.group_turn_returns(turns, config.group_size, config.gamma)
            advantages_GKN = compute_turn_group_advantages_GKN(
                turn_returns_GKN, reached_GKN, bool(config.scale_rewards)
            )
            advantages_BT = turns.spread_BT(advantages_GKN.flatten(0, 1))
        else:
            advantages_GK = compute_group_advantages_GK(returns_GK, known_GK, bool(config.scale_rewards))
            advantages_BT = rollout.spread_over_sequences(advantages_GK)[:, None].expand(rollout.mask_BT.shape)
        self.advantages_BT = advantages_BT
        if config.mask_truncated_completions:
            valid_B = valid_B & ~rollout.get_episodes().truncated_B
        mask_BT = rollout.mask_BT & valid_B[:, None]
        # The weights of the tokens in the loss. Only the mean per turn has other weights than 0 and 1.
        weights_BT = mask_BT * Turns(rollout).weights_BT if config.loss_aggregation == "turn" else mask_BT.float()
        # With a KL penalty or an entropy bonus, episodes without an advantage still have a gradient.
        has_advantage_B = ((advantages_BT != 0) & rollout.mask_BT).any(-1)
        has_gradient_B = valid_B & (has_advantage_B | bool(config.kl_coef) | bool(config.ent_coef))
        sequences = [int(sequence) for sequence in has_gradient_B.nonzero()[:, 0]]

        epoch, stop = 0, not sequences
        with training_mode(policy):
            while epoch < config.n_epochs and not stop:
                generator = self.seeds.derive("minibatches", iteration, epoch).generator()
                epoch += 1
                for minibatch in make_group_minibatches(rollout, sequences, config.num_minibatches, generator):
                    # Skipped episodes count in the means: they have a loss, and its gradient is 0.
                    num_sequences = float(valid_B.sum() * len(minibatch) / len(sequences))
                    total = float(weights_BT.sum()) * num_sequences / max(1.0, float(mask_BT.any(-1).sum()))
                    divergence = self.accumulate_gradients(
                        minibatch, rollout, advantages_BT, weights_BT, num_sequences, total
                    )
                    optimizer.reduce_gradients()
                    self.metrics.add(grad_norm=optimizer.clip_grad_norm(config.max_grad_norm))
                    optimizer.step()
                    optimizer.zero_grad()
                    stop = self.exceeds_target_kl(divergence)
                    if stop:
                        break

        metrics = self.metrics.compute()
        # Skipped episodes count in the fractions of clipped ratios, as in TRL.
        by_sequence = config.importance_sampling_level == "sequence"
        counts_B = mask_BT.any(-1).float() if by_sequence else mask_BT.sum(-1).float()
        updated = float(counts_B[sequences].sum() / counts_B.sum().clamp(min=1))
        return {
            **metrics,
            **{name: value * updated for name, value in metrics.items() if name.startswith("clip_ratio/")},
            "frac_reward_zero_std": compute_frac_reward_zero_std(returns_GK, known_GK),
            "n_epochs": float(epoch),
        }

    @retry_in_smaller_microbatches
    def accumulate_gradients(
        self,
        minibatch: Selection,
        rollout: Rollout,
        advantages_BT: torch.Tensor,
        weights_BT: torch.Tensor,
        num_sequences: float,
        total_weight: float,
    ) -> torch.Tensor:
        """Add the gradient of a minibatch, one microbatch after the other, and return the divergence from the old policy.

        Arguments:
            num_sequences, total_weight: sums of the minibatch, including its share of skipped episodes.
        """
        config, policy, divergence = self.config, self.policy, torch.zeros((), device=self.policy.device)
        aggregation = config.loss_aggregation or "sequence"
        # The run's limit, because the length of this batch's longest response must not change the step size.
        max_length = rollout.get_episodes().limit or rollout.mask_BT.shape[1]
        for part in split_microbatches(minibatch, policy.max_microbatch_size(rollout)):
            microbatch = part.cut(rollout)
            weights = microbatch.take_mask(weights_BT)
            mask = (weights > 0).float()
            fraction = float(mask.sum() / (minibatch.take(weights_BT) > 0).sum())
            advantages = microbatch.take(advantages_BT)
            old_logprobs = microbatch.take(rollout.logprobs_BT)
            new = policy.evaluate_actions(rollout, microbatch, entropy=config.ent_coef != 0, values=False)
            logprobs = new.logprobs
            if config.importance_sampling_level == "sequence":
                logprobs = compute_sequence_logprobs_BT(new.logprobs, old_logprobs, mask)

            losses = compute_policy_loss(logprobs, old_logprobs, advantages, config.clip_range, config.clip_range_high)
            if rollout.importance is not None:
                sampling_logprobs = microbatch.take(rollout.importance.sampling_logprobs_BT)
                losses = losses * compute_importance_weights(
                    old_logprobs, sampling_logprobs, rollout.importance.clip_max
                )
            if config.kl_coef:
                assert rollout.reference_BT is not None, "a KL penalty needs a reference"
                divergences = kl_k3(new.logprobs, microbatch.take(rollout.reference_BT))
                losses = losses + config.kl_coef * divergences
                self.metrics.add(fraction, kl=mean_where(divergences.detach(), mask))
            if config.ent_coef:
                losses = losses - config.ent_coef * new.entropy
            loss = aggregate_losses(losses, weights, aggregation, num_sequences, total_weight, max_length)
            loss.backward()  # type: ignore[no-untyped-call]

            with torch.no_grad():
                clip_range = (config.clip_range, config.clip_range_high)
                approx_kl = approximate_kl(new.logprobs, old_logprobs, mask)
                divergence = divergence + fraction * approx_kl
                self.metrics.add(fraction, approx_kl=approx_kl)
                self.metrics.add(
                    fraction, clip_fraction=compute_clip_fraction(logprobs, old_logprobs, mask, *clip_range)
                )
                if config.importance_sampling_level == "sequence":  # One ratio per sequence.
                    logprobs, old_logprobs, mask = logprobs[:, :1], old_logprobs[:, :1], mask[:, :1]
                    advantages = advantages[:, :1]
                    fraction = float(mask.sum()) / len(minibatch)
                self.metrics.add(fraction, **compute_clip_ratios(logprobs, old_logprobs, advantages, mask, *clip_range))
        return divergence
