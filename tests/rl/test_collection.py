"""Rollouts of control policies: devices, both autoreset modes, groups, broken episodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from corridor_env import SPACES, Corridor, make_corridors
from gymnasium.vector import AutoresetMode

from palaestra.envs.wrappers import SlotVectorEnv
from palaestra.rl.collection import ControlCollector
from palaestra.rl.policies.control import history_policy, mlp_policy
from palaestra.rl.ppo import PPO, PPOConfig
from palaestra.rl.rollouts import make_minibatches

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("body", [mlp_policy, history_policy])
@pytest.mark.parametrize("name", ["multi_discrete", "box"])
def test_a_rollout_is_the_same_on_every_device(body: Any, name: str) -> None:
    rollouts, weights = [], []
    for device in ("cpu", DEVICE):
        env = make_corridors(4, AutoresetMode.SAME_STEP, space=SPACES[name])
        policy = body(env.single_observation_space, env.single_action_space, normalise=True).to(device)
        collector = ControlCollector(env, policy)
        collector.start(0)
        state = collector.state()
        assert state["inputs"].device.type == "cpu"
        collector.load_state(state)
        rollouts.append(collector.collect(12, torch.Generator().manual_seed(0)))
        assert rollouts[-1].rewards_BT.device.type == rollouts[-1].inputs.actions_BT.device.type == device
        PPO(policy, PPOConfig(n_epochs=1, batch_size=16)).update(rollouts[-1], 0)
        weights.append([p.detach().cpu() for p in policy.parameters()])
    assert torch.allclose(rollouts[0].inputs.actions_BT, rollouts[1].inputs.actions_BT.cpu(), atol=1e-4)
    assert torch.allclose(rollouts[0].logprobs_BT, rollouts[1].logprobs_BT.cpu(), atol=1e-4)
    assert all(torch.allclose(a, b, atol=1e-3) for a, b in zip(*weights, strict=True))


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
@pytest.mark.parametrize("cut", [True, False])
def test_episodes_are_kept_apart_under_both_kinds_of_autoreset(mode: AutoresetMode, cut: bool) -> None:
    env = make_corridors(2, mode, length=4, cut=cut)
    policy = mlp_policy(env.single_observation_space, env.single_action_space)
    collector = ControlCollector(env, policy)
    collector.start(0)
    rollout = collector.collect(10, torch.Generator().manual_seed(0))
    assert rollout.stats.returns[:2] == [10.0, 10.0]
    assert set(rollout.stats.lengths) == {4}
    rewards = [r for r, m in zip(rollout.rewards_BT[0].tolist(), rollout.mask_BT[0].tolist(), strict=True) if m]
    assert rewards[:6] == [1, 2, 3, 4, 1, 2]
    _values_BT, next_BT = policy.values_BT(rollout)
    ends = (rollout.ended_BT & rollout.mask_BT).nonzero().tolist()
    assert ends
    for sequence, t in ends:  # The state that an episode ended in has the observation (start, 4).
        start = rollout.inputs.observations_BTF[sequence, t, 0]
        with torch.no_grad():
            expected = policy.critic(torch.stack([start, torch.tensor(4.0)])[None])[0, 0]  # type: ignore[misc]
        if cut:
            assert torch.allclose(next_BT[sequence, t], expected, atol=1e-5)
        assert bool(rollout.terminated_BT[sequence, t]) is not cut


def test_each_group_shares_its_own_start() -> None:
    env = make_corridors(6, AutoresetMode.SAME_STEP)
    policy = mlp_policy(env.single_observation_space, env.single_action_space)
    rollout = ControlCollector(env, policy).collect_episodes(3, 7, torch.Generator().manual_seed(0), 100)
    starts = rollout.inputs.observations_BTF[:, 0, 0].tolist()
    assert starts[0] == starts[1] == starts[2]
    assert starts[3] == starts[4] == starts[5] != starts[0]
    assert rollout.mask_BT.sum(-1).tolist() == [5] * 6
    assert rollout.get_episodes().group_B.tolist() == [0, 0, 0, 1, 1, 1]  # type: ignore[union-attr]


class Breaking(Corridor):
    """The second environment that is made breaks in the third step of each episode."""

    instances = 0

    def __init__(self) -> None:
        super().__init__(length=5)
        Breaking.instances += 1
        self.weak = Breaking.instances == 2

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.weak and self.at == 2:
            raise ValueError("a screw came loose")
        return super().step(action)


def test_an_episode_that_broke_is_no_result_and_teaches_nothing() -> None:
    Breaking.instances = 0
    env = SlotVectorEnv(Breaking, 4)
    policy = mlp_policy(env.single_observation_space, env.single_action_space)
    rollout = ControlCollector(env, policy).collect_episodes(2, 7, torch.Generator().manual_seed(0), 100)
    assert rollout.valid_B.tolist() == [True, False, True, True]  # type: ignore[union-attr]
    assert rollout.returns_B[rollout.valid_B].tolist() == [15.0, 15.0, 15.0]
    chosen = torch.cat([batch.index for batch in make_minibatches(rollout, False, 4, np.random.default_rng(0))])
    assert set((chosen // rollout.mask_BT.shape[1]).tolist()) == {0, 2, 3}
