"""The reference that a policy is held to: the divergence is taken from the policy's own log-probs."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import torch

from palaestra.learn.losses import kl_k1
from palaestra.learn.policies.language_model import LanguageModelPolicy
from palaestra.learn.rollouts import Rollout


class Reference:
    """Log-probs of a rollout's tokens under fixed weights.

    With an adapter these are the policy's own weights with the adapter off, at no memory; else a copy of the
    policy as it is now, or another model.

    Arguments:
        policy: whose tokens will be judged; its temperature applies to the reference as well.
        model: other weights than the policy's own.
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


def penalise(rollout: Rollout, reference_BT: torch.Tensor, coefficient: float) -> float:
    """Subtract the divergence from the rewards, token by token; returns its mean over responses, in nats.

    The log-probs are those that the policy had when it chose the tokens: with the reference equal to the
    policy the divergence is 0.
    """
    rollout.reference_BT = reference_BT
    divergence_BT = kl_k1(rollout.logprobs_BT, reference_BT) * rollout.mask_BT
    rollout.rewards_BT = rollout.rewards_BT - coefficient * divergence_BT
    return float(divergence_BT.sum(-1).mean())
