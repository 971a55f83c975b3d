"""RLOO (Ahmadian et al. 2024): REINFORCE whose baseline is the mean return of the other members of the group.

The whole response is one action. Its log-prob is the sum over its tokens and its return is one number, from which the
KL penalty against a reference model has been subtracted. With more than one epoch the ratio of the whole response is
clipped, as in TRL. With `credit="turn"` each turn of an episode is such an action, and its return begins with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from palaestra.core.settings import setting
from palaestra.rl.algorithms import Algorithm, MetricMeans, TurnCreditConfig
from palaestra.rl.losses import (
    approximate_kl,
    compute_clip_fraction,
    compute_clip_ratios,
    compute_frac_reward_zero_std,
    compute_importance_weights,
    compute_leave_one_out_advantages_GK,
    compute_policy_loss,
    compute_turn_leave_one_out_advantages_GKN,
    normalize,
)
from palaestra.rl.optimizers import retry_in_smaller_microbatches, training_mode
from palaestra.rl.rollouts import Rollout, Selection, Turns, make_group_minibatches, split_microbatches, sum_by_turn


@dataclass(frozen=True, kw_only=True)
class RLOOConfig(TurnCreditConfig):
    """Hyperparameters of RLOO, with the names of TRL and Stable-Baselines3."""

    clip_range: float = setting(0.2, "Clipping range of the probability ratio of a response around 1.", low=0, high=1)
    normalize_advantage: bool = setting(False, "Normalize the advantages of an iteration.")


class RLOO(Algorithm):
    """REINFORCE leave-one-out."""

    Config = RLOOConfig
    distributed = True
    config: RLOOConfig

    def update(self, rollout: Rollout, iteration: int, progress_remaining: float = 1.0) -> dict[str, float]:
        config, policy, optimizer = self.config, self.policy, self.optimizer
        optimizer.scale_learning_rates(config.scale_learning_rate(progress_remaining))
        rollout, self.metrics = rollout.to(policy.device), MetricMeans()

        returns_GK, known_GK = rollout.group_returns(config.group_size)
        valid_B = rollout.spread_over_sequences(known_GK)
        # An action is an episode, N = 1, or a turn.
        if config.credit == "turn":
            turns = Turns(rollout)
            turn_returns_GKN, reached_GKN = rollout.group_turn_returns(turns, config.group_size, config.gamma)
            advantages_BN = compute_turn_leave_one_out_advantages_GKN(turn_returns_GKN, reached_GKN).flatten(0, 1)
            reached_BN = reached_GKN.flatten(0, 1)
        else:
            advantages_GK = compute_leave_one_out_advantages_GK(returns_GK, known_GK)
            advantages_BN, reached_BN = rollout.spread_over_sequences(advantages_GK)[:, None], valid_B[:, None]
        if config.normalize_advantage:
            advantages_BN = normalize(advantages_BN, reached_BN)
        self.advantages_BT = (
            turns.spread_BT(advantages_BN) if config.credit == "turn" else advantages_BN.expand(rollout.mask_BT.shape)
        )
        # Episodes without an advantage have no gradient.
        sequences = [int(sequence) for sequence in ((advantages_BN != 0).any(-1) & valid_B).nonzero()[:, 0]]

        epoch, stop = 0, not sequences
        with training_mode(policy):
            while epoch < config.n_epochs and not stop:
                generator = self.seeds.derive("minibatches", iteration, epoch).generator()
                epoch += 1
                for minibatch in make_group_minibatches(rollout, sequences, config.num_minibatches, generator):
                    # Skipped episodes count in the mean: they have a loss, and its gradient is 0.
                    num_sequences = float(valid_B.sum()) * len(minibatch) / len(sequences)
                    divergence = self.accumulate_gradients(minibatch, rollout, advantages_BN, num_sequences)
                    optimizer.reduce_gradients()
                    self.metrics.add(grad_norm=optimizer.clip_grad_norm(config.max_grad_norm))
                    optimizer.step()
                    optimizer.zero_grad()
                    stop = self.exceeds_target_kl(divergence)
                    if stop:
                        break

        metrics = self.metrics.compute()
        # Skipped episodes count in the fractions of clipped ratios, as in TRL.
        updated = len(sequences) / max(1.0, float((valid_B & rollout.mask_BT.any(-1)).sum()))
        return {
            **metrics,
            **{name: value * updated for name, value in metrics.items() if name.startswith("clip_ratio/")},
            "frac_reward_zero_std": compute_frac_reward_zero_std(returns_GK, known_GK),
            "n_epochs": float(epoch),
        }

    @retry_in_smaller_microbatches
    def accumulate_gradients(
        self, minibatch: Selection, rollout: Rollout, advantages_BN: torch.Tensor, num_sequences: float
    ) -> torch.Tensor:
        """Add the gradient of a minibatch, one microbatch after the other, and return the divergence from the old policy.

        Arguments:
            num_sequences: the number of sequences in the minibatch, including its share of skipped episodes.
        """
        config, policy, divergence = self.config, self.policy, torch.zeros((), device=self.policy.device)
        for part in split_microbatches(minibatch, policy.max_microbatch_size(rollout)):
            microbatch = part.cut(rollout)
            mask = microbatch.take_mask(rollout.mask_BT).float()
            fraction = float(mask.sum() / minibatch.take(rollout.mask_BT).sum())
            new = policy.evaluate_actions(rollout, microbatch, values=False)
            old_logprobs = microbatch.take(rollout.logprobs_BT)
            advantages = advantages_BN[microbatch.index]
            turn = None if rollout.turn_BT is None or config.credit == "episode" else microbatch.take(rollout.turn_BT)
            sum_actions = partial(sum_by_turn, index_BT=turn, num_turns=advantages.shape[1])
            new_BN, old_BN = sum_actions(new.logprobs * mask), sum_actions(old_logprobs * mask)

            losses_BN = compute_policy_loss(new_BN, old_BN, advantages, config.clip_range)
            if rollout.importance is not None:
                sampling_BN = sum_actions(microbatch.take(rollout.importance.sampling_logprobs_BT) * mask)
                losses_BN = losses_BN * compute_importance_weights(old_BN, sampling_BN, rollout.importance.clip_max)
            loss = losses_BN.sum() / max(num_sequences, 1.0)
            loss.backward()  # type: ignore[no-untyped-call]

            with torch.no_grad():
                present_BN = (sum_actions(mask) > 0).float()
                clip_fraction = compute_clip_fraction(new_BN, old_BN, present_BN, config.clip_range)
                clip_ratios = compute_clip_ratios(new_BN, old_BN, advantages, present_BN, config.clip_range)
                approx_kl = approximate_kl(new.logprobs, old_logprobs, mask)
                divergence = divergence + fraction * approx_kl
                self.metrics.add(fraction, approx_kl=approx_kl)
                self.metrics.add(float(present_BN.sum()) / len(minibatch), clip_fraction=clip_fraction, **clip_ratios)
        return divergence
