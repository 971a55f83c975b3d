"""After an out-of-memory error a minibatch is computed again in halves, with the same gradient and metrics."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from palaestra.core.errors import ModelError
from palaestra.core.seeding import Seeds
from palaestra.engines.models import LoadedModel
from palaestra.learn.algorithms import MetricMeans
from palaestra.learn.grpo import GRPO, GRPOConfig
from palaestra.learn.microbatches import backward_in_microbatches
from palaestra.learn.policies.language_model import LanguageModelPolicy
from palaestra.learn.ppo import PPO, PPOConfig
from palaestra.learn.reinforce import REINFORCE, REINFORCEConfig
from palaestra.learn.rloo import RLOO, RLOOConfig
from palaestra.learn.rollouts import Rollout, TokenInputs, make_episode_rollout, select_sequences

ALGORITHMS = {
    "ppo": (PPO, PPOConfig(n_epochs=1, batch_size=8)), "grpo": (GRPO, GRPOConfig(group_size=4)),
    "rloo": (RLOO, RLOOConfig(group_size=4)), "reinforce": (REINFORCE, REINFORCEConfig()),
}  # fmt: skip


class Crowded(LanguageModelPolicy):
    """A policy on a GPU that is too small for more than `room` sequences."""

    room = 1 << 30
    refused: list[int]

    def evaluate_actions(self, rollout: Rollout, selection: Any, **options: Any) -> Any:
        evaluation = super().evaluate_actions(rollout, selection, **options)
        if len(selection) > self.room and torch.is_grad_enabled():
            self.refused.append(len(selection))
            # The first half of the gradient has been added when memory runs out.
            evaluation.logprobs[: len(selection) // 2].sum().backward()
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ...")
        return evaluation


def make_rollout() -> Rollout:
    generator = np.random.default_rng(0)
    lengths = generator.integers(2, 9, 8).tolist()
    prompts = [tuple(range(6, 10 + k // 4)) for k in range(8)]
    responses = [tuple(generator.integers(6, 200, n).tolist()) for n in lengths]
    return make_episode_rollout(
        TokenInputs(prompts, responses),
        logprobs=[[-3.0] * n for n in lengths], rewards=[[0.0] * (n - 1) + [float(n % 3)] for n in lengths],
        returns=[float(n % 3) for n in lengths], truncated=[False] * 8, failures=[""] * 8,
        groups=[k // 4 for k in range(8)], records=[None] * 8, limit=10,
    )  # fmt: skip


@pytest.mark.parametrize("name", ALGORITHMS)
def test_half_the_microbatch_gives_the_same_update(nano: LoadedModel, name: str) -> None:
    kind, config = ALGORITHMS[name]
    critic: Any = "head" if name == "ppo" else None
    found = []
    for room in (1 << 30, 2):
        policy = Crowded(nano.weights, critic)
        policy.room, policy.refused = room, []
        algorithm = kind(policy, config, Seeds(0))
        gradient: list[torch.Tensor] = []
        # The gradient as it is before the step, and no step: the next policy starts with the same weights.
        algorithm.optimizer.step = lambda g=gradient, o=algorithm.optimizer: g.extend(  # type: ignore[method-assign]
            p.grad.clone()
            for p in o._inner.parameters  # type: ignore[union-attr]
        )
        found.append((algorithm.update(make_rollout(), 0), gradient))
        assert bool(policy.refused) == (room == 2)
        assert policy.microbatch_size == (0 if room > 2 else 2)
    nano.weights.zero_grad()
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-3, abs=1e-5)
    assert len(found[0][1]) == len(found[1][1]) > 10
    for whole, halves in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(whole, halves, atol=1e-5, rtol=1e-3)


def test_one_sequence_that_does_not_fit_names_the_settings(nano: LoadedModel) -> None:
    policy = Crowded(nano.weights)
    policy.room, policy.refused, policy.microbatch_size = 0, [], 1
    with pytest.raises(
        ModelError, match=r"microbatch of 1 sequences.*Tried to allocate 2.00 GiB.*--gradient-checkpoint"
    ):
        GRPO(policy, GRPOConfig(group_size=4), Seeds(0)).update(make_rollout(), 0)
    nano.weights.zero_grad()


def test_metrics_of_the_failed_pass_are_forgotten() -> None:
    rollout, metrics, seen = make_rollout(), MetricMeans(), list[int]()
    policy: Any = SimpleNamespace(microbatch_size=8, max_microbatch_size=lambda _: policy.microbatch_size)
    optimizer: Any = SimpleNamespace(zero_grad=seen.clear)

    def backward(microbatch: Any, _: Any) -> int:
        seen.append(len(microbatch))
        metrics.add(len(microbatch) / 8, size=len(microbatch))
        if len(microbatch) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return len(microbatch)

    results = backward_in_microbatches(
        backward, select_sequences(rollout, range(8)), policy, rollout, optimizer, metrics
    )
    assert results == seen == [4, 4]
    assert metrics.compute() == {"size": 4.0}
