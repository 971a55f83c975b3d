"""REINFORCE (Williams 1992) with a baseline: the return of each action minus its expected return.

The baseline is the mean return of the batch at the same step (`"batch"`), a critic that is trained with the policy
(`"critic"`), or 0 (`"none"`). Each rollout is used for one gradient step, so no ratio is clipped. Only with a critic are
truncated episodes bootstrapped; otherwise their returns contain no estimate of what would have followed.

With `credit="turn"` a message of a turn environment is one action, and its batch baseline is the mean return of the other
episodes from the same turn on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from palaestra.core.errors import SettingsError
from palaestra.core.settings import setting
from palaestra.rl.algorithms import Algorithm, AlgorithmConfig, MetricMeans
from palaestra.rl.losses import (
    compute_importance_weights,
    compute_returns_BT,
    compute_turn_leave_one_out_advantages_GKN,
    compute_value_loss,
    mean_where,
    measure_values,
    normalize,
    to_double,
)
from palaestra.rl.optimizers import Optimizer, retry_in_smaller_microbatches, training_mode
from palaestra.rl.rollouts import (
    ControlInputs,
    Rollout,
    Selection,
    Turns,
    select_all,
    select_sequences,
    split_microbatches,
)


@dataclass(frozen=True, kw_only=True)
class REINFORCEConfig(AlgorithmConfig):
    """Hyperparameters of REINFORCE, with the names of Stable-Baselines3."""

    critic_learning_rate: float = setting(1e-3, "Learning rate of the critic.", low=0)
    credit: Literal["token", "turn"] = setting(
        "token", "Compute returns and advantages per token (in classic environments: per step) or per turn."
    )
    gamma: float = setting(1.0, "Discount factor, per token or per turn as in credit.", low=0, high=1)
    baseline: Literal["batch", "critic", "none"] = setting(
        "batch", "Baseline of the returns: the mean of the batch, a critic, or none."
    )
    vf_coef: float = setting(0.5, "Weight of the value loss.", low=0)
    ent_coef: float = setting(0.0, "Weight of the entropy bonus.", low=0)
    normalize_advantage: bool = setting(True, "Normalize the advantages of an iteration.")

    @property
    def needs_critic(self) -> bool:
        return self.baseline == "critic"

    @property
    def whole_episodes(self) -> bool:
        return not self.needs_critic  # Without a critic the return of an unfinished episode is unknown.


class REINFORCE(Algorithm):
    """The policy gradient with a baseline."""

    Config = REINFORCEConfig
    distributed = True
    config: REINFORCEConfig

    def make_optimizer(self) -> Optimizer:
        if self.config.needs_critic and not self.policy.has_critic:
            raise SettingsError("REINFORCE with baseline 'critic' needs a policy with a critic")
        return super().make_optimizer()

    def update(self, rollout: Rollout, iteration: int, progress_remaining: float = 1.0) -> dict[str, float]:
        config, policy, optimizer = self.config, self.policy, self.optimizer
        optimizer.scale_learning_rates(config.scale_learning_rate(progress_remaining))
        rollout, self.metrics = rollout.to(policy.device), MetricMeans()
        mask_BT = rollout.valid_BT

        values_BT, next_values_BT = torch.zeros_like(rollout.rewards_BT), torch.zeros_like(rollout.rewards_BT)
        if config.needs_critic:  # Other baselines do not train the critic of the policy: its values mean nothing.
            values_BT, next_values_BT = policy.values_BT(rollout)
        ended_BT = rollout.ended_BT.clone()
        if isinstance(rollout.inputs, ControlInputs) and rollout.inputs.last_BF is not None:
            ended_BT[:, -1] = True  # The episode continues after the rollout: the critic estimates the rest.
        valued_BT = mask_BT  # The actions before which a critic learns a value.
        if config.credit == "turn":
            turns = Turns(rollout)
            returns_BN = compute_returns_BT(
                turns.sum_BN(rollout.rewards_BT),
                turns.last_BN(next_values_BT),
                turns.last_BN(rollout.terminated_BT),
                turns.last_BN(ended_BT),
                config.gamma,
            )
            if config.baseline == "batch":
                valid_BN = turns.reached_BN & rollout.valid_B[:, None]
                advantages_BN = compute_turn_leave_one_out_advantages_GKN(returns_BN[None], valid_BN[None])[0]
            else:
                advantages_BN = returns_BN - turns.first_BN(values_BT)
            returns_BT, advantages_BT = turns.spread_BT(returns_BN), turns.spread_BT(advantages_BN)
            valued_BT = mask_BT & turns.is_first_BT
        else:
            returns_BT = compute_returns_BT(
                rollout.rewards_BT, next_values_BT, rollout.terminated_BT, ended_BT, config.gamma
            )
            advantages_BT = returns_BT
            if config.baseline == "critic":
                advantages_BT = returns_BT - values_BT
            elif config.baseline == "batch":
                # In double precision the mean of equal returns is exact, and their advantage is 0.
                mean_T = (to_double(returns_BT) * mask_BT).sum(0) / mask_BT.sum(0).clamp(min=1)
                advantages_BT = returns_BT - mean_T.to(returns_BT.dtype)
        if config.normalize_advantage:
            advantages_BT = normalize(advantages_BT, mask_BT)
        self.advantages_BT = advantages_BT
        num_actions = float(mask_BT.sum().clamp(min=1))
        [batch] = select_all(rollout, policy.by_sequence)
        if policy.by_sequence:
            batch = select_sequences(rollout, [k for k in batch.index.tolist() if bool(rollout.valid_B[k])])

        with training_mode(policy):
            self.accumulate_gradients(batch, rollout, advantages_BT, returns_BT, valued_BT, num_actions)
            optimizer.reduce_gradients()
            self.metrics.add(grad_norm=optimizer.clip_grad_norm(config.max_grad_norm))
            optimizer.step()
            optimizer.zero_grad()

        if config.baseline != "critic":
            return self.metrics.compute()
        return {**self.metrics.compute(), **measure_values(values_BT[valued_BT], returns_BT[valued_BT])}

    @retry_in_smaller_microbatches
    def accumulate_gradients(
        self,
        minibatch: Selection,
        rollout: Rollout,
        advantages_BT: torch.Tensor,
        returns_BT: torch.Tensor,
        valued_BT: torch.Tensor,
        num_actions: float,
    ) -> None:
        """Add the gradient of the whole rollout, one microbatch after the other.

        Arguments:
            valued_BT: the actions whose values are learned.
        """
        config, policy = self.config, self.policy
        for microbatch in split_microbatches(minibatch, policy.max_microbatch_size(rollout)):
            mask = microbatch.take_mask(rollout.valid_BT).float()
            fraction = float(mask.sum()) / num_actions
            new = policy.evaluate_actions(
                rollout, microbatch, entropy=config.ent_coef != 0, values=config.baseline == "critic"
            )

            losses = -new.logprobs * microbatch.take(advantages_BT)
            if rollout.importance is not None:
                sampling_logprobs = microbatch.take(rollout.importance.sampling_logprobs_BT)
                losses = losses * compute_importance_weights(
                    microbatch.take(rollout.logprobs_BT), sampling_logprobs, rollout.importance.clip_max
                )
            if config.ent_coef:
                losses = losses - config.ent_coef * new.entropy
            policy_loss = mean_where(losses, mask)
            loss = policy_loss * fraction
            if config.baseline == "critic":
                value_losses = compute_value_loss(new.values, new.values.detach(), microbatch.take(returns_BT), None)
                if config.credit == "turn":  # The mean over turns, as a mean over tokens.
                    value_losses = value_losses * microbatch.take(valued_BT) * (num_actions / valued_BT.sum())
                loss = loss + config.vf_coef * mean_where(value_losses, mask) * fraction
            loss.backward()  # type: ignore[no-untyped-call]
            self.metrics.add(fraction, policy_loss=policy_loss)
