"""PPO (Schulman et al. 2017) for any policy: perceptrons, transformers over a history, language models.

In order: values of all states; advantages by GAE, bootstrapped where an episode was cut; then epochs of
minibatches with the clipped surrogate, the clipped value loss and an entropy bonus.

Where it departs from common implementations:
- A truncated episode is bootstrapped with the value of its own last state, and nothing flows over the
  end of an episode.
- The divergence from a reference (RLHF) is subtracted from the rewards, token by token, before GAE.
- `target_kl` stops the epochs of an update between two minibatches, before the step that would go further.
- Actor and critic have rates of their own; with one trunk for both, the trunk has the actor's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from palaestra.learn.advantages import explained_variance, generalised_advantages_BT, normalised
from palaestra.learn.algorithms import Algorithm
from palaestra.learn.losses import approximate_kl, clip_fraction, clipped_policy_loss, clipped_value_loss, masked_mean
from palaestra.learn.rollouts import Rollout, Selection, select
from palaestra.learn.updates import Means, Optimizer, gradient_step


@dataclass(frozen=True, slots=True)
class PPOConfig:
    """How PPO learns. The first names are Gymformer's.

    Arguments:
        lr_actor, lr_critic: learning rates.
        gamma: discount.
        update_epochs: passes over each rollout.
        eps_clip: how far the ratio may leave 1; `eps_clip_high` upwards, if it is another.
        minibatch_size: decisions of a control policy, or responses of a language model, in a minibatch; 0
            means what suits: 256 decisions, or 8 responses.
        pad_obs, int_obs: taken for Gymformer's sake and not needed: padding and integer observations are
            recognised.
        gae_lambda: how far advantages look ahead before they trust the critic.
        value_clip: how far a value may move in one update; `None` does not clip.
        target_kl: stop an update's epochs once the policy has moved this far; 0 never stops.
        anneal: let the learning rate fall linearly to 0 over the run; `anneal_clip` the clipping range.
    """

    lr_actor: float = 3e-4
    lr_critic: float = 1e-3
    gamma: float = 0.99
    update_epochs: int = 10
    eps_clip: float = 0.2
    minibatch_size: int = 0
    pad_obs: bool = False
    int_obs: bool = False
    eps_clip_high: float | None = None
    gae_lambda: float = 0.95
    value_clip: float | None = None
    value_coefficient: float = 0.5
    entropy_coefficient: float = 0.0
    normalise_advantages: bool = True
    max_grad_norm: float = 0.5
    target_kl: float = 0.0
    anneal: bool = False
    anneal_clip: bool = False
    weight_decay: float = 0.0


class PPO(Algorithm):
    """Learns from rollouts of a policy with a critic."""

    Config = PPOConfig
    critic = True
    config: PPOConfig

    def make_optimizer(self) -> Optimizer:
        config = self.config
        groups = self.policy.parameter_groups(config.lr_actor, config.lr_critic)
        return Optimizer(groups, config.max_grad_norm, config.weight_decay)

    @classmethod
    def configured(cls, settings: Any, policy: Any, kl: float) -> PPOConfig:
        s = settings
        return PPOConfig(
            lr_actor=s.learning_rate, lr_critic=s.critic_rate, gamma=s.gamma, update_epochs=s.epochs, eps_clip=s.clip,
            minibatch_size=s.minibatch, eps_clip_high=s.clip_high, gae_lambda=s.gae_lambda,
            value_clip=s.value_clip or None, value_coefficient=s.value_weight, entropy_coefficient=s.entropy,
            max_grad_norm=s.max_grad_norm, target_kl=s.target_kl, anneal=s.anneal,
        )  # fmt: skip

    def update(self, rollout: Rollout, iteration: int, progress_remaining: float = 1.0) -> dict[str, float]:
        config, policy = self.config, self.policy
        self.optimizer.scale(progress_remaining if config.anneal else 1.0)
        clip = config.eps_clip * (progress_remaining if config.anneal_clip else 1.0)
        values_BT, next_values_BT = policy.values_BT(rollout)
        advantages_BT = generalised_advantages_BT(
            rollout.rewards_BT, values_BT, next_values_BT, rollout.terminated_BT, rollout.ended_BT,
            config.gamma, config.gae_lambda,
        )  # fmt: skip
        returns_BT = advantages_BT + values_BT
        mask_BT = rollout.counted_BT
        size = config.minibatch_size or (8 if policy.by_sequence else 256)
        means, stopped = Means(), 0
        policy.train()
        for epoch in range(config.update_epochs):
            order = self.seeds.derive("minibatches", iteration, epoch).generator()
            # The metrics of the last pass say how far the update went; the others are only needed to stop it.
            watched = bool(config.target_kl) or epoch == config.update_epochs - 1
            for batch in select(rollout, policy.by_sequence, size, order):
                # Single decisions are chosen from those that count; only sequences have padding to be masked.
                mask = batch.of(mask_BT) if batch.by_sequence else None
                chosen = batch.of(advantages_BT)
                if config.normalise_advantages:
                    chosen = normalised(chosen, mask)
                kl = self._step(rollout, batch, mask, chosen, values_BT, returns_BT, clip, means if watched else None)
                if config.target_kl and kl > config.target_kl:
                    stopped = epoch + 1
                    break
            if stopped:
                break
        policy.eval()
        foreseen = explained_variance(values_BT[mask_BT], returns_BT[mask_BT])
        return {**means.all(), "explained_variance": foreseen, "epochs": float(stopped or config.update_epochs)}

    def _step(
        self,
        rollout: Rollout,
        batch: Selection,
        mask: torch.Tensor | None,
        advantages: torch.Tensor,
        values_BT: torch.Tensor,
        returns_BT: torch.Tensor,
        clip: float,
        means: Means | None,
    ) -> float:
        """One minibatch; returns how far the policy had moved before it (0 where nobody watches)."""
        config, policy = self.config, self.policy
        clip_high = config.eps_clip_high
        moved, start = 0.0, 0

        def loss(microbatch: Selection) -> torch.Tensor:
            nonlocal moved, start
            part, mine, share = mask, advantages, 1.0
            if len(microbatch) < len(batch):
                rows = slice(start, start + len(microbatch))
                assert mask is not None
                part, mine = mask[rows], advantages[rows]
                share = float(part.sum()) / max(1.0, float(mask.sum()))
                start += len(microbatch)
            now = policy.evaluate_actions(rollout, microbatch, entropy=config.entropy_coefficient != 0)
            old = microbatch.of(rollout.logprobs_BT)
            surrogate = clipped_policy_loss(now.logprobs, old, mine, clip, clip_high)
            critic = clipped_value_loss(
                now.values, microbatch.of(values_BT), microbatch.of(returns_BT), config.value_clip
            )
            policy_loss, value_loss = masked_mean(surrogate, part), masked_mean(critic, part)
            total = policy_loss + config.value_coefficient * value_loss
            if config.entropy_coefficient:
                total = total - config.entropy_coefficient * masked_mean(now.entropy, part)
            if means is not None:
                with torch.no_grad():
                    kl = float(approximate_kl(now.logprobs, old, part))
                    moved += kl * share
                    clipped = clip_fraction(now.logprobs, old, part, clip, clip_high)
                    means.add(policy_loss=policy_loss, value_loss=value_loss, kl=kl, clip_fraction=clipped)
                    if now.entropy is not None and rollout.entropy_BT is None:
                        means.add(entropy=masked_mean(now.entropy, part))
            return total if share == 1.0 else total * share

        norm = gradient_step(self.optimizer, batch, policy.max_microbatch_size(rollout), loss)
        if means is not None:
            means.add(gradient_norm=norm)
        return moved
