"""After an out-of-memory error a minibatch is computed again in halves, with the same gradient and metrics."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from palaestra.core.errors import ModelError
from palaestra.core.seeding import Seeds
from palaestra.models.registry import LoadedModel
from palaestra.rl.algorithms import MetricMeans
from palaestra.rl.grpo import GRPO, GRPOConfig
from palaestra.rl.optimizers import retry_in_smaller_microbatches
from palaestra.rl.policies.language_model import LanguageModelPolicy
from palaestra.rl.ppo import PPO, PPOConfig
from palaestra.rl.reinforce import REINFORCE, REINFORCEConfig
from palaestra.rl.rloo import RLOO, RLOOConfig
from palaestra.rl.rollouts import (
    Rollout,
    Selection,
    TokenInputs,
    make_episode_rollout,
    select_sequences,
    split_microbatches,
)

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
        logprobs=[[-3.0] * n for n in lengths],
        rewards=[[0.0] * (n - 1) + [float(n % 3)] for n in lengths],
        returns=[float(n % 3) for n in lengths],
        truncated=[False] * 8,
        failures=[""] * 8,
        groups=[k // 4 for k in range(8)],
        records=[None] * 8,
        limit=10,
    )


@pytest.mark.parametrize("name", ALGORITHMS)
def test_half_the_microbatch_gives_the_same_update(nano: LoadedModel, name: str) -> None:
    kind, config = ALGORITHMS[name]
    critic: Any = "head" if name == "ppo" else None
    updates = []
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
        updates.append((algorithm.update(make_rollout(), 0), gradient))
        assert bool(policy.refused) == (room == 2)
        assert policy.microbatch_size == (0 if room > 2 else 2)
    nano.weights.zero_grad()
    assert updates[0][0] == pytest.approx(updates[1][0], rel=1e-3, abs=1e-5)
    assert len(updates[0][1]) == len(updates[1][1]) > 10
    for whole, halves in zip(updates[0][1], updates[1][1], strict=True):
        torch.testing.assert_close(whole, halves, atol=1e-5, rtol=1e-3)


def test_one_sequence_that_does_not_fit_names_the_settings(nano: LoadedModel) -> None:
    policy = Crowded(nano.weights)
    policy.room, policy.refused, policy.microbatch_size = 0, [], 1
    with pytest.raises(ModelError, match=r"1 sequences.*2.00 GiB.*--gradient-checkpoint"):
        GRPO(policy, GRPOConfig(group_size=4), Seeds(0)).update(make_rollout(), 0)
    nano.weights.zero_grad()


class CountingAlgorithm:
    """Counts the sequences of its microbatches; those with more than four run out of memory."""

    def __init__(self) -> None:
        self.metrics, self.sizes = MetricMeans(), list[int]()
        self.optimizer = SimpleNamespace(zero_grad=self.sizes.clear)
        self.policy: Any = SimpleNamespace(microbatch_size=8)
        self.policy.max_microbatch_size = lambda _: self.policy.microbatch_size

    @retry_in_smaller_microbatches
    def accumulate_gradients(self, minibatch: Selection, rollout: Rollout) -> int:
        for microbatch in split_microbatches(minibatch, self.policy.max_microbatch_size(rollout)):
            self.sizes.append(len(microbatch))
            self.metrics.add(len(microbatch) / 8, size=len(microbatch))
            if len(microbatch) > 4:
                raise torch.OutOfMemoryError("CUDA out of memory.")
        return sum(self.sizes)


def test_metrics_of_the_failed_pass_are_discarded() -> None:
    rollout, algorithm = make_rollout(), CountingAlgorithm()
    assert algorithm.accumulate_gradients(select_sequences(rollout, range(8)), rollout) == 8
    assert algorithm.sizes == [4, 4]
    assert algorithm.metrics.compute() == {"size": 4.0}
