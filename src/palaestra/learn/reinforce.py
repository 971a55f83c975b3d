"""REINFORCE (Williams 1992) with a baseline: the return that followed each decision, less what was to be expected.

The baseline is the mean return of the batch at the same step (`"batch"`), a critic that learns beside the
policy (`"critic"`), or nothing (`"none"`). One pass over each batch: there is no ratio to clip.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch

from palaestra.core.errors import SettingsError
from palaestra.learn.advantages import discounted_returns_BT, explained_variance, normalised, precise
from palaestra.learn.algorithms import Algorithm
from palaestra.learn.losses import clipped_value_loss
from palaestra.learn.rollouts import Rollout, Selection, everything, select_sequences
from palaestra.learn.updates import Means, Optimizer, gradient_step


@dataclass(frozen=True, slots=True)
class REINFORCEConfig:
    """How REINFORCE learns.

    Arguments:
        gamma: discount.
        baseline: what is subtracted from a return; see above.
        normalise_advantages: over the batch.
    """

    learning_rate: float = 1e-4
    lr_critic: float = 1e-3
    gamma: float = 1.0
    baseline: Literal["batch", "critic", "none"] = "batch"
    value_coefficient: float = 0.5
    entropy_coefficient: float = 0.0
    normalise_advantages: bool = True
    max_grad_norm: float = 1.0
    weight_decay: float = 0.0
    anneal: bool = False


class REINFORCE(Algorithm):
    """Learns from rollouts of any kind."""

    Config = REINFORCEConfig
    config: REINFORCEConfig

    def make_optimizer(self) -> Optimizer:
        config = self.config
        if config.baseline == "critic" and not self.policy.has_critic:
            raise SettingsError("REINFORCE with baseline 'critic' needs a critic; the policy has none")
        groups = self.policy.parameter_groups(config.learning_rate, config.lr_critic)
        return Optimizer(
            groups if config.baseline == "critic" else groups[:1], config.max_grad_norm, config.weight_decay
        )

    @classmethod
    def configured(cls, settings: Any, policy: Any, kl: float) -> REINFORCEConfig:
        s = settings
        return REINFORCEConfig(
            learning_rate=s.learning_rate, lr_critic=s.critic_rate, gamma=s.gamma,
            baseline="critic" if policy.has_critic and not policy.by_sequence else "batch",
            entropy_coefficient=s.entropy, max_grad_norm=s.max_grad_norm, anneal=s.anneal,
        )  # fmt: skip

    def update(self, rollout: Rollout, iteration: int, progress_remaining: float = 1.0) -> dict[str, float]:
        config, policy = self.config, self.policy
        self.optimizer.scale(progress_remaining if config.anneal else 1.0)
        learned = config.baseline == "critic"
        values_BT, next_values_BT = torch.zeros_like(rollout.rewards_BT), torch.zeros_like(rollout.rewards_BT)
        if policy.has_critic:
            values_BT, next_values_BT = policy.values_BT(rollout)
        ended_BT = rollout.ended_BT.clone()
        if rollout.last_inputs is not None:
            ended_BT[:, -1] = True  # The sequence goes on behind the rollout: its rest is the critic's guess.
        returns_BT = discounted_returns_BT(
            rollout.rewards_BT, next_values_BT, rollout.terminated_BT, ended_BT, config.gamma
        )
        mask_BT = rollout.counted_BT
        advantages_BT = returns_BT
        if learned:
            advantages_BT = returns_BT - values_BT
        elif config.baseline == "batch":
            # With 64 bits the mean of equal returns is their value, and what is left of them nothing.
            mean_T = (precise(returns_BT) * mask_BT).sum(0) / mask_BT.sum(0).clamp(min=1)
            advantages_BT = returns_BT - mean_T.to(returns_BT.dtype)
        if config.normalise_advantages:
            advantages_BT = normalised(advantages_BT, mask_BT)
        means, total = Means(), float(mask_BT.sum().clamp(min=1))
        policy.train()

        def loss(microbatch: Selection) -> torch.Tensor:
            mask = microbatch.of(mask_BT).float()
            now = policy.evaluate_actions(rollout, microbatch, entropy=config.entropy_coefficient != 0, values=learned)
            per_decision = -now.logprobs * microbatch.of(advantages_BT)
            if config.entropy_coefficient:
                per_decision = per_decision - config.entropy_coefficient * now.entropy
            policy_loss: torch.Tensor = (per_decision * mask).sum() / total
            means.add(policy_loss=policy_loss.detach())
            if not learned:
                return policy_loss
            critic = clipped_value_loss(now.values, now.values.detach(), microbatch.of(returns_BT), None)
            return policy_loss + config.value_coefficient * (critic * mask).sum() / total

        size = rollout.num_sequences if policy.by_sequence else rollout.mask_BT.numel()
        whole = everything(rollout, policy.by_sequence, size)[0]
        if policy.by_sequence and rollout.valid_B is not None:
            whole = select_sequences(rollout, [k for k in whole.index.tolist() if bool(rollout.valid_B[k])])
        means.add(gradient_norm=gradient_step(self.optimizer, whole, policy.max_microbatch_size(rollout), loss))
        policy.eval()
        metrics = means.all()
        if learned:
            metrics["explained_variance"] = explained_variance(values_BT[mask_BT], returns_BT[mask_BT])
        return metrics
