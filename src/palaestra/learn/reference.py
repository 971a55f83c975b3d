"""The reference model of the KL penalty."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import torch

from palaestra.learn.losses import kl_k1
from palaestra.learn.policies.language_model import LanguageModelPolicy
from palaestra.learn.rollouts import Rollout


class ReferencePolicy:
    """Computes the log-probs of a rollout's tokens under fixed weights.

    By default these are the current weights of the policy: with an adapter, the base weights without a copy; otherwise
    a copy.

    Arguments:
        policy: the trained policy; its temperature applies to the reference as well.
        model: other weights, for example of a larger model.
    """

    def __init__(self, policy: LanguageModelPolicy, model: Any = None) -> None:
        self.policy = policy
        self._own: LanguageModelPolicy | None = None
        if model is None and not hasattr(policy.model, "disable_adapter"):
            model = copy.deepcopy(policy.model)
        if model is not None:
            model.requires_grad_(False)
            self._own = LanguageModelPolicy(
                model,
                temperature=policy.temperature,
                vocabulary=policy.vocabulary,
                microbatch_size=policy.microbatch_size,
            )

    def logprobs_BT(self, rollout: Rollout) -> torch.Tensor:
        with nullcontext() if self._own is not None else self.policy.adapter_off():
            return (self._own or self.policy).logprobs_BT(rollout)


def apply_kl_penalty(rollout: Rollout, reference_BT: torch.Tensor, kl_coef: float) -> float:
    """Subtract the KL penalty of each token from its reward. Returns the mean divergence per response, in nats.

    The policy's log-probs are those at the time of sampling. If the reference equals the policy, the penalty is 0.
    """
    rollout.reference_BT = reference_BT
    divergence_BT = kl_k1(rollout.logprobs_BT, reference_BT) * rollout.mask_BT
    rollout.rewards_BT = rollout.rewards_BT - kl_coef * divergence_BT
    return float(divergence_BT.sum(-1).mean())
