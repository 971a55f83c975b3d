"""Minibatches of a rollout."""

from __future__ import annotations

import numpy as np
import torch
from corridor_env import make_corridors
from gymnasium.vector import AutoresetMode

from palaestra.rl.collection import ControlCollector
from palaestra.rl.policies.control import mlp_policy
from palaestra.rl.rollouts import make_minibatches


def test_every_decision_is_in_one_minibatch_of_an_epoch() -> None:
    env = make_corridors(3, AutoresetMode.NEXT_STEP, length=4)
    policy = mlp_policy(env.single_observation_space, env.single_action_space)
    collector = ControlCollector(env, policy)
    collector.start(0)
    rollout = collector.collect(13, torch.Generator().manual_seed(0))
    batches = make_minibatches(rollout, False, 8, np.random.default_rng(0))
    chosen = torch.cat([batch.index for batch in batches])
    assert sorted(chosen.tolist()) == rollout.mask_BT.flatten().nonzero()[:, 0].tolist()
    assert max(len(b) for b in batches) <= 12
