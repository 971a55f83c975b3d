"""PPO (Schulman et al. 2017) for every policy: perceptrons, transformers over a history, language models.

Differences from common implementations:
- A truncated episode is bootstrapped with the value of its own last state if its environment has `bootstrap_truncated`.
  No advantage flows across the end of an episode.
- The KL penalty against a reference model (RLHF) is subtracted from the rewards of individual tokens before GAE.
- `target_kl` ends the update after the first minibatch beyond the target, not after the epoch.
- Actor and critic have separate learning rates. A shared trunk is trained with the actor's.
"""

from __future__ import annotations

import torch

from palaestra.rl.algorithms import Algorithm, MetricMeans
from palaestra.rl.configs import PPOConfig
from palaestra.rl.distributed.ranks import sum_over_ranks
from palaestra.rl.losses import (
    approximate_kl,
    compute_clip_fraction,
    compute_clip_ratios,
    compute_gae_BT,
    compute_importance_weights,
    compute_policy_loss,
    compute_value_loss,
    mean_where,
    measure_values,
    normalize,
)
from palaestra.rl.optimizers import retry_in_smaller_microbatches, training_mode
from palaestra.rl.rollouts import Rollout, Selection, make_minibatches, split_microbatches


class PPO(Algorithm):
    """Proximal policy optimization: a clipped surrogate objective, a critic, and GAE."""

    Config = PPOConfig
    distributed = True
    config: PPOConfig

    def update(self, rollout: Rollout, iteration: int, progress_remaining: float = 1.0) -> dict[str, float]:
        config, policy, optimizer = self.config, self.policy, self.optimizer
        optimizer.scale_learning_rates(progress_remaining if config.anneal_lr else 1.0)
        clip_range = config.clip_range * (progress_remaining if config.anneal_clip_range else 1.0)
        batch_size = config.batch_size or (8 if policy.by_sequence else 256)
        rollout, self.metrics = rollout.to(policy.device), MetricMeans()
        valid_BT = rollout.valid_BT

        values_BT, next_values_BT = policy.values_BT(rollout)
        advantages_BT = compute_gae_BT(
            rollout.rewards_BT,
            values_BT,
            next_values_BT,
            rollout.terminated_BT,
            rollout.ended_BT,
            config.gamma,
            config.gae_lambda,
        )
        returns_BT = advantages_BT + values_BT
        self.advantages_BT = advantages_BT

        epoch, stop = 0, False
        with training_mode(policy):
            while epoch < config.n_epochs and not stop:
                generator = self.seeds.derive("minibatches", iteration, epoch).generator()
                epoch += 1
                # Metrics describe the last epoch. Earlier epochs are measured only if `target_kl` needs it.
                measured = config.target_kl is not None or epoch == config.n_epochs
                for minibatch in make_minibatches(rollout, policy.by_sequence, batch_size, generator):
                    divergence = self.accumulate_gradients(
                        minibatch, rollout, advantages_BT, values_BT, returns_BT, clip_range, measured
                    )
                    optimizer.reduce_gradients()
                    grad_norm = optimizer.clip_grad_norm(config.max_grad_norm)
                    optimizer.step()
                    optimizer.zero_grad()
                    if measured:
                        self.metrics.add(grad_norm=grad_norm)
                    if config.target_kl is not None:
                        stop = float(sum_over_ranks(torch.tensor(divergence))) > config.target_kl
                    if stop:
                        break

        value_metrics = measure_values(values_BT[valid_BT], returns_BT[valid_BT])
        return {**self.metrics.compute(), **value_metrics, "n_epochs": float(epoch)}

    @retry_in_smaller_microbatches
    def accumulate_gradients(
        self,
        minibatch: Selection,
        rollout: Rollout,
        advantages_BT: torch.Tensor,
        values_BT: torch.Tensor,
        returns_BT: torch.Tensor,
        clip_range: float,
        measured: bool,
    ) -> float:
        """Add the gradient of a minibatch, one microbatch after the other.

        Arguments:
            measured: whether to add metrics.

        Returns:
            The divergence from the old policy, if it is measured.
        """
        config, policy, divergence = self.config, self.policy, 0.0
        # Single decisions are drawn from the valid ones; only sequences are padded.
        minibatch_mask = minibatch.take(rollout.valid_BT) if policy.by_sequence else None
        minibatch_advantages = minibatch.take(advantages_BT)
        if config.normalize_advantage:
            minibatch_advantages = normalize(minibatch_advantages, minibatch_mask)
        for microbatch in split_microbatches(minibatch, policy.max_microbatch_size(rollout)):
            mask, fraction = None, 1.0
            if minibatch_mask is not None:
                mask = microbatch.take_mask(rollout.valid_BT)
                fraction = float(mask.sum()) / max(1.0, float(minibatch_mask.sum()))
            advantages = minibatch_advantages[microbatch.rows]
            old_logprobs = microbatch.take(rollout.logprobs_BT)
            new = policy.evaluate_actions(rollout, microbatch, entropy=config.ent_coef != 0)

            policy_losses = compute_policy_loss(
                new.logprobs, old_logprobs, advantages, clip_range, config.clip_range_high
            )
            if rollout.importance is not None:
                sampling_logprobs = microbatch.take(rollout.importance.sampling_logprobs_BT)
                policy_losses = policy_losses * compute_importance_weights(
                    old_logprobs, sampling_logprobs, rollout.importance.clip_max
                )
            value_losses = compute_value_loss(
                new.values, microbatch.take(values_BT), microbatch.take(returns_BT), config.clip_range_vf
            )
            policy_loss, value_loss = mean_where(policy_losses, mask), mean_where(value_losses, mask)
            loss = policy_loss + config.vf_coef * value_loss
            if config.ent_coef:
                loss = loss - config.ent_coef * mean_where(new.entropy, mask)
            if fraction < 1.0:
                loss = loss * fraction
            loss.backward()  # type: ignore[no-untyped-call]
            if not measured:
                continue

            with torch.no_grad():
                approx_kl = float(approximate_kl(new.logprobs, old_logprobs, mask))
                clip_fraction = compute_clip_fraction(
                    new.logprobs, old_logprobs, mask, clip_range, config.clip_range_high
                )
                self.metrics.add(fraction, policy_loss=policy_loss, value_loss=value_loss)
                self.metrics.add(fraction, approx_kl=approx_kl, clip_fraction=clip_fraction)
                if mask is not None:  # A language model.
                    clipping = (advantages, mask, clip_range, config.clip_range_high)
                    self.metrics.add(fraction, **compute_clip_ratios(new.logprobs, old_logprobs, *clipping))
                if new.entropy is not None and rollout.entropy_BT is None:
                    self.metrics.add(fraction, entropy=mean_where(new.entropy, mask))
            divergence += approx_kl * fraction
        return divergence
