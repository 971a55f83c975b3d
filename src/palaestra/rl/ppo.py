"""PPO (Schulman et al. 2017) for every policy: perceptrons, transformers over a history, language models.

Differences from common implementations:
- A truncated episode is bootstrapped with the value of its own last state if its environment has `bootstrap_truncated`.
  No advantage flows across the end of an episode.
- The KL penalty against a reference model (RLHF) is subtracted from the rewards of individual tokens before GAE.
- With `credit="turn"` a message of a turn environment is one action: one value before it, one advantage for its tokens, and
  `gamma` and `gae_lambda` once per turn instead of once per token.
- `target_kl` ends the update after the first minibatch beyond the target, not after the epoch.
- Actor and critic have separate learning rates. A shared trunk is trained with the actor's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from palaestra.core.settings import accept_aliases, setting
from palaestra.rl.algorithms import Algorithm, AlgorithmConfig, MetricMeans
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
from palaestra.rl.rollouts import Rollout, Selection, Turns, make_minibatches, split_microbatches

_GYMFORMER_NAMES = {
    "lr_actor": "learning_rate",
    "lr_critic": "critic_learning_rate",
    "K_epochs": "n_epochs",
    "update_epochs": "n_epochs",
    "eps_clip": "clip_range",
    "minibatch_size": "batch_size",
}
"""Names of Gymformer that `PPOConfig` accepts as well. Its `pad_obs` and `int_obs` are accepted and ignored."""


@accept_aliases(_GYMFORMER_NAMES, ignored=("pad_obs", "int_obs"))
@dataclass(frozen=True, kw_only=True)
class PPOConfig(AlgorithmConfig):
    """Hyperparameters of PPO, with the names of Stable-Baselines3. Gymformer's names are accepted as well."""

    learning_rate: float = setting(3e-4, "Learning rate of the actor.", low=0)
    critic_learning_rate: float = setting(1e-3, "Learning rate of the critic.", low=0)
    n_epochs: int = setting(10, "Epochs over the data of an iteration.", low=1)
    batch_size: int | None = setting(
        None,
        "Actions, or responses of a language model, in a minibatch; by default 256 actions or 8 responses.",
        low=1,
    )
    credit: Literal["token", "turn"] = setting(
        "token", "Compute values and advantages per token (in classic environments: per step) or per turn."
    )
    gamma: float = setting(0.99, "Discount factor, per token or per turn as in credit.", low=0, high=1)
    gae_lambda: float = setting(0.95, "Trade-off between bias and variance in GAE.", low=0, high=1)
    clip_range: float = setting(0.2, "Clipping range of the probability ratio around 1.", low=0, high=1)
    clip_range_high: float | None = setting(None, "Clipping range above 1; by default clip_range.", low=0)
    clip_range_vf: float | None = setting(
        None, "Clipping range of the value function; by default not clipped.", above=0
    )
    vf_coef: float = setting(0.5, "Weight of the value loss.", low=0)
    ent_coef: float = setting(0.0, "Weight of the entropy bonus.", low=0)
    target_kl: float | None = setting(
        None, "End an update if the KL divergence from the old policy exceeds this.", above=0
    )
    normalize_advantage: bool = setting(True, "Normalize the advantages of a minibatch.")
    max_grad_norm: float = setting(0.5, "Maximum norm of the gradient; 0 disables clipping.", low=0)
    anneal_clip_range: bool = setting(False, "Decrease clip_range linearly to 0 over the run.")

    @property
    def needs_critic(self) -> bool:
        return True


class PPO(Algorithm):
    """Proximal policy optimization: a clipped surrogate objective, a critic, and GAE."""

    Config = PPOConfig
    distributed = True
    config: PPOConfig

    def update(self, rollout: Rollout, iteration: int, progress_remaining: float = 1.0) -> dict[str, float]:
        config, policy, optimizer = self.config, self.policy, self.optimizer
        optimizer.scale_learning_rates(config.scale_learning_rate(progress_remaining))
        clip_range = config.clip_range * (progress_remaining if config.anneal_clip_range else 1.0)
        batch_size = config.batch_size or (8 if policy.by_sequence else 256)
        rollout, self.metrics = rollout.to(policy.device), MetricMeans()
        valid_BT = rollout.valid_BT

        values_BT, next_values_BT = policy.values_BT(rollout)
        valued_BT = valid_BT  # The actions before which the critic learns a value.
        if config.credit == "turn":
            turns = Turns(rollout)
            values_BN = turns.first_BN(values_BT)
            advantages_BN = compute_gae_BT(
                turns.sum_BN(rollout.rewards_BT),
                values_BN,
                turns.last_BN(next_values_BT),
                turns.last_BN(rollout.terminated_BT),
                turns.last_BN(rollout.ended_BT),
                config.gamma,
                config.gae_lambda,
            )
            advantages_BT, returns_BT = turns.spread_BT(advantages_BN), turns.spread_BT(advantages_BN + values_BN)
            valued_BT = valid_BT & turns.is_first_BT
        else:
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
                        minibatch, rollout, advantages_BT, values_BT, returns_BT, valued_BT, clip_range, measured
                    )
                    optimizer.reduce_gradients()
                    grad_norm = optimizer.clip_grad_norm(config.max_grad_norm)
                    optimizer.step()
                    optimizer.zero_grad()
                    if measured:
                        self.metrics.add(grad_norm=grad_norm)
                    stop = self.exceeds_target_kl(divergence)
                    if stop:
                        break

        value_metrics = measure_values(values_BT[valued_BT], returns_BT[valued_BT])
        return {**self.metrics.compute(), **value_metrics, "n_epochs": float(epoch)}

    @retry_in_smaller_microbatches
    def accumulate_gradients(
        self,
        minibatch: Selection,
        rollout: Rollout,
        advantages_BT: torch.Tensor,
        values_BT: torch.Tensor,
        returns_BT: torch.Tensor,
        valued_BT: torch.Tensor,
        clip_range: float,
        measured: bool,
    ) -> float:
        """Add the gradient of a minibatch, one microbatch after the other.

        Arguments:
            valued_BT: the actions whose values are learned.
            measured: whether to add metrics.

        Returns:
            The divergence from the old policy, if it is measured.
        """
        config, policy, divergence = self.config, self.policy, 0.0
        # Single actions are drawn from the valid ones; only sequences are padded.
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
            if config.credit == "turn" and minibatch_mask is not None:  # The mean over turns, as a mean over tokens.
                tokens_per_turn = minibatch_mask.sum() / minibatch.take(valued_BT).sum().clamp(min=1)
                value_losses = value_losses * microbatch.take(valued_BT) * tokens_per_turn
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
