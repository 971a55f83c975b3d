"""RLOO (Ahmadian et al. 2024): REINFORCE whose baseline is the mean return of the other members of the group.

The whole response is one action. Its log-prob is the sum over its tokens and its return is one number, from which the
KL penalty against a reference model has been subtracted. With more than one epoch the ratio of the whole response is
clipped, as in TRL.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from palaestra.core.settings import setting
from palaestra.learn.advantages import compute_frac_reward_zero_std, compute_leave_one_out_advantages_GK, normalize
from palaestra.learn.algorithms import Algorithm, GroupConfig, MetricMeans
from palaestra.learn.losses import (
    approximate_kl,
    compute_clip_fraction,
    compute_clip_ratios,
    compute_importance_weights,
    compute_policy_loss,
)
from palaestra.learn.microbatches import backward_in_microbatches
from palaestra.learn.optimizers import Optimizer, training_mode
from palaestra.learn.rollouts import Rollout, Selection, make_group_minibatches


@dataclass(frozen=True, kw_only=True)
class RLOOConfig(GroupConfig):
    """Hyperparameters of RLOO, with the names of TRL and Stable-Baselines3."""

    clip_range: float = setting(0.2, "Clipping range of the probability ratio of a response around 1.", low=0, high=1)
    normalize_advantage: bool = setting(False, "Normalize the advantages of an iteration.")


class RLOO(Algorithm):
    """REINFORCE leave-one-out."""

    Config = RLOOConfig
    distributed = True
    config: RLOOConfig

    def make_optimizer(self) -> Optimizer:
        config = self.config
        actor = self.policy.parameter_groups(config.learning_rate, config.learning_rate)[:1]
        return Optimizer(actor, config.weight_decay)

    def update(self, rollout: Rollout, iteration: int, progress_remaining: float = 1.0) -> dict[str, float]:
        config, policy, optimizer = self.config, self.policy, self.optimizer
        optimizer.scale_learning_rates(progress_remaining if config.anneal_lr else 1.0)
        rollout = rollout.to(policy.device)

        returns_GK, known_GK = rollout.group_returns(config.group_size)
        advantages_GK = compute_leave_one_out_advantages_GK(returns_GK, known_GK)
        advantages_B, valid_B = map(rollout.spread_over_sequences, (advantages_GK, known_GK))
        if config.normalize_advantage:
            advantages_B = normalize(advantages_B, valid_B)
        self.advantages_BT = advantages_B[:, None].expand(rollout.mask_BT.shape)
        # Episodes without an advantage have no gradient.
        sequences = [int(sequence) for sequence in ((advantages_B != 0) & valid_B).nonzero()[:, 0]]

        metrics = MetricMeans()

        def backward(part: Selection, _: Any, minibatch: Selection) -> None:
            microbatch = part.cut(rollout)
            # Skipped episodes count in the mean: they have a loss, and its gradient is 0.
            num_sequences = float(valid_B.sum()) * len(minibatch) / len(sequences)
            mask = microbatch.take_mask(rollout.mask_BT).float()
            fraction = float(mask.sum() / minibatch.take(rollout.mask_BT).sum())
            new = policy.evaluate_actions(rollout, microbatch, values=False)
            old_logprobs = microbatch.take(rollout.logprobs_BT)
            new_B, old_B = (new.logprobs * mask).sum(-1), (old_logprobs * mask).sum(-1)
            losses_B = compute_policy_loss(new_B, old_B, advantages_B[microbatch.index], config.clip_range)
            if rollout.sampling_logprobs_BT is not None:
                sampling_B = (microbatch.take(rollout.sampling_logprobs_BT) * mask).sum(-1)
                losses_B = losses_B * compute_importance_weights(old_B, sampling_B, rollout.importance_clip_max)
            loss = losses_B.sum() / max(num_sequences, 1.0)
            loss.backward()  # type: ignore[no-untyped-call]

            with torch.no_grad():
                approx_kl = approximate_kl(new.logprobs, old_logprobs, mask)
                present_B = mask.any(-1).float()
                clip_fraction = compute_clip_fraction(new_B, old_B, present_B, config.clip_range)
                metrics.add(fraction, approx_kl=approx_kl)
                clip_ratios = compute_clip_ratios(
                    new_B, old_B, advantages_B[microbatch.index], present_B, config.clip_range
                )
                metrics.add(float(present_B.sum()) / len(minibatch), clip_fraction=clip_fraction, **clip_ratios)

        with training_mode(policy):
            for epoch in range(config.n_epochs if sequences else 0):
                generator = self.seeds.derive("minibatches", iteration, epoch).generator()
                for minibatch in make_group_minibatches(rollout, sequences, config.num_minibatches, generator):
                    backward_in_microbatches(
                        partial(backward, minibatch=minibatch), minibatch, policy, rollout, optimizer, metrics
                    )
                    optimizer.reduce_gradients()
                    metrics.add(grad_norm=optimizer.clip_grad_norm(config.max_grad_norm))
                    optimizer.step()
                    optimizer.zero_grad()

        values = metrics.compute()
        # Skipped episodes count in the fractions of clipped ratios, as in TRL.
        updated = len(sequences) / max(1.0, float((valid_B & rollout.mask_BT.any(-1)).sum()))
        return {
            **values,
            **{name: value * updated for name, value in values.items() if name.startswith("clip_ratio/")},
            "frac_reward_zero_std": compute_frac_reward_zero_std(returns_GK, known_GK),
        }
