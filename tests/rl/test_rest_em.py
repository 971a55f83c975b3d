"""ReST-EM keeps the best responses of a group and maximizes their likelihood."""

from __future__ import annotations

import pytest
import torch
from corridor_env import make_corridors
from gymnasium.vector import AutoresetMode

from palaestra.rl.collection import ControlCollector
from palaestra.rl.policies.control import ControlPolicy, mlp_policy
from palaestra.rl.rest_em import RestEM, RestEMConfig
from palaestra.rl.rollouts import Rollout, select_sequences


def make_rollout(rewards: list[float]) -> tuple[ControlPolicy, Rollout]:
    env = make_corridors(6, AutoresetMode.SAME_STEP)
    policy = mlp_policy(env.single_observation_space, env.single_action_space)
    rollout = ControlCollector(env, policy).collect_episodes(3, 7, torch.Generator().manual_seed(0), 100)
    rollout.rewards_BT[:] = 0.0
    rollout.rewards_BT[:, 0] = torch.tensor(rewards)
    return policy, rollout


@pytest.mark.parametrize(("min_return", "kept"), [(None, [0, 2, 5]), (2.0, [2, 3, 4, 5])])
def test_gradient_is_that_of_supervised_learning_on_the_kept(min_return: float | None, kept: list[int]) -> None:
    policy, rollout = make_rollout([1.0, 0.0, 5.0, 2.0, 2.0, 4.0] if min_return else [4.0, 0.0, 5.0, 2.0, 2.0, 4.0])
    selection = select_sequences(rollout, kept)
    mask_BT = rollout.mask_BT[kept]
    logprobs_BT = policy.evaluate_actions(rollout, selection, values=False).logprobs
    loss = -(logprobs_BT * mask_BT[:, : logprobs_BT.shape[1]]).sum() / mask_BT.sum()
    gradients = torch.autograd.grad(loss, list(policy.actor.parameters()))
    expected = float(torch.cat([gradient.flatten() for gradient in gradients]).norm())

    config = RestEMConfig(group_size=3, max_grad_norm=0.0, n_epochs=1, num_minibatches=1, min_return=min_return)
    metrics = RestEM(policy, config).update(rollout, 0)
    assert metrics["grad_norm"] == pytest.approx(expected, rel=1e-4)
    assert metrics["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
    assert metrics["kept"] == pytest.approx(len(kept) / 6)


def test_each_update_starts_from_the_base_weights() -> None:
    policy, rollout = make_rollout([1.0, 0.0, 5.0, 2.0, 0.0, 4.0])
    algorithm = RestEM(policy, RestEMConfig(group_size=3, learning_rate=1e-2))
    weights = []
    for _ in range(2):
        algorithm.update(rollout, 1)
        weights.append([p.detach().clone() for p in policy.actor.parameters()])
    assert all(torch.equal(first, second) for first, second in zip(*weights, strict=True))
    continued = RestEM(policy, RestEMConfig(group_size=3, learning_rate=1e-2, from_base=False))
    continued.update(rollout, 1)
    assert not all(torch.equal(p, first) for p, first in zip(policy.actor.parameters(), weights[0], strict=True))


def test_nothing_changes_without_a_better_response() -> None:
    policy, rollout = make_rollout([1.0] * 6)
    before = [p.detach().clone() for p in policy.actor.parameters()]
    assert RestEM(policy, RestEMConfig(group_size=3)).update(rollout, 0)["kept"] == 0.0
    assert all(torch.equal(p, other) for p, other in zip(policy.actor.parameters(), before, strict=True))
