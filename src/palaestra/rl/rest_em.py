"""ReST-EM (Singh et al. 2024): sample, keep what was rewarded, and fine-tune on it.

The E-step is the rollout. The M-step maximizes the likelihood of the kept responses for several epochs. As in the paper each
M-step starts from the weights before training, so that errors do not accumulate; `from_base=False` continues from the last
weights, which is RAFT (Dong et al. 2023). Departures from the paper: a response is kept if its return is above the mean of its
group, unless `min_return` is set, because rewards here need not be 0 or 1; and all tokens of an iteration have the same weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from palaestra.core.seeding import Seeds
from palaestra.core.settings import setting
from palaestra.rl.algorithms import Algorithm, GroupConfig, MetricMeans
from palaestra.rl.losses import compute_frac_reward_zero_std
from palaestra.rl.optimizers import retry_in_smaller_microbatches, training_mode
from palaestra.rl.rollouts import Rollout, Selection, make_group_minibatches, split_microbatches


@dataclass(frozen=True, kw_only=True)
class RestEMConfig(GroupConfig):
    """Hyperparameters of ReST-EM."""

    n_epochs: int = setting(4, "Epochs over the kept responses of an iteration.", low=1)
    num_minibatches: int = setting(4, "Optimizer steps in an epoch.", low=1)
    min_return: float | None = setting(
        None, "Keep responses with at least this return; by default those above the mean of their group."
    )
    from_base: bool = setting(True, "Start each update from the weights before training, not from the last ones.")


class RestEM(Algorithm):
    """Supervised fine-tuning on the model's own best responses."""

    Config = RestEMConfig
    distributed = True
    config: RestEMConfig

    def __init__(self, policy: Any, config: RestEMConfig | None = None, seeds: Seeds = Seeds(0)) -> None:
        super().__init__(policy, config, seeds)
        self.base = [p.detach().clone() for p in self.get_parameters()] if self.config.from_base else []

    def get_parameters(self) -> list[torch.nn.Parameter]:
        groups = self.policy.parameter_groups(1.0, 1.0)[:1]
        return [parameter for group in groups for parameter in group["params"]]

    def update(self, rollout: Rollout, iteration: int, progress_remaining: float = 1.0) -> dict[str, float]:
        config, policy = self.config, self.policy
        rollout, self.metrics = rollout.to(policy.device), MetricMeans()

        returns_GK, known_GK = rollout.group_returns(config.group_size)
        if config.min_return is None:
            means_G1 = (returns_GK * known_GK).sum(1, True) / known_GK.sum(1, True).clamp(min=1)
            kept_GK = known_GK & (returns_GK > means_G1)
        else:
            kept_GK = known_GK & (returns_GK >= config.min_return)
        kept_B = rollout.spread_over_sequences(kept_GK)
        self.advantages_BT = kept_B.float()[:, None].expand(rollout.mask_BT.shape)
        sequences = [int(sequence) for sequence in (kept_B & rollout.mask_BT.any(-1)).nonzero()[:, 0]]

        if sequences and config.from_base:
            with torch.no_grad():
                for parameter, base in zip(self.get_parameters(), self.base, strict=True):
                    parameter.copy_(base)
            self.optimizer = self.make_optimizer()
        self.optimizer.scale_learning_rates(config.scale_learning_rate(progress_remaining))
        with training_mode(policy):
            for epoch in range(config.n_epochs if sequences else 0):
                generator = self.seeds.derive("minibatches", iteration, epoch).generator()
                for minibatch in make_group_minibatches(rollout, sequences, config.num_minibatches, generator):
                    self.accumulate_gradients(minibatch, rollout)
                    self.optimizer.reduce_gradients()
                    self.metrics.add(grad_norm=self.optimizer.clip_grad_norm(config.max_grad_norm))
                    self.optimizer.step()
                    self.optimizer.zero_grad()
        return {
            **self.metrics.compute(),
            "kept": float(kept_GK.float().mean()),
            "frac_reward_zero_std": compute_frac_reward_zero_std(returns_GK, known_GK),
        }

    @retry_in_smaller_microbatches
    def accumulate_gradients(self, minibatch: Selection, rollout: Rollout) -> None:
        """Add the gradient of a minibatch, one microbatch after the other."""
        num_tokens = minibatch.take(rollout.mask_BT).sum()
        for part in split_microbatches(minibatch, self.policy.max_microbatch_size(rollout)):
            microbatch = part.cut(rollout)
            mask = microbatch.take_mask(rollout.mask_BT).float()
            logprobs = self.policy.evaluate_actions(rollout, microbatch, values=False).logprobs
            loss = -(logprobs * mask).sum() / num_tokens
            loss.backward()
            self.metrics.add(float(mask.sum() / num_tokens), loss=loss.detach() * num_tokens / mask.sum().clamp(min=1))
