"""Control policies: every action space, devices, memory, normalization."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from corridor_env import SPACES, make_corridors
from gymnasium.vector import AutoresetMode

from palaestra.core.errors import EnvError
from palaestra.rl.collection import ControlCollector
from palaestra.rl.policies.control import history_policy, make_action_head, mlp_policy
from palaestra.rl.rollouts import ControlInputs, Rollout, Selection, select_all


@pytest.mark.parametrize("name", list(SPACES))
@pytest.mark.parametrize("body", [mlp_policy, history_policy])
def test_the_ratio_is_one_and_actions_fit_the_space(name: str, body: Any) -> None:
    env = make_corridors(3, AutoresetMode.SAME_STEP, space=SPACES[name])
    policy = body(env.single_observation_space, env.single_action_space)
    collector = ControlCollector(env, policy)
    collector.start(0)
    rollout = collector.collect(11, torch.Generator().manual_seed(0))
    for part in select_all(rollout, False, 7):
        now = policy.evaluate_actions(rollout, part)
        assert torch.allclose(now.logprobs, part.take(rollout.logprobs_BT), atol=1e-5)


@pytest.mark.parametrize("body", [mlp_policy, history_policy])
@pytest.mark.parametrize("name", ["discrete", "box"])
def test_all_tensors_are_on_the_device_of_the_policy(body: Any, name: str) -> None:
    # The meta device, on which tensors have no values, raises like a GPU if devices are mixed.
    policy = body(SPACES["box"], SPACES[name], normalise=True).to("meta")
    assert {p.device.type for p in policy.parameters()} == {policy.device.type} == {"meta"}
    assert policy.mean_F.device.type == "cpu"
    states, fresh = np.zeros((3, 2), np.float32), np.array([True, False, True])
    first = policy.encode_observation(states, fresh, None)
    actions, logprobs = policy.act(first, torch.Generator())
    then = policy.encode_observation(states, fresh, actions)
    final = policy.encode_final_observation(states[0], 0, actions)
    inputs = ControlInputs(torch.stack([first, then], 1), torch.stack([actions, actions], 1), then, {(0, 1): final})
    none = torch.zeros(3, 2, device="meta")
    rollout = Rollout(none, none, none > 0, none > 0, none > 0, inputs)
    tensors = [first, actions, logprobs, then, final, policy.act_greedily(first), *policy.values_BT(rollout)]
    for selection in (Selection(torch.arange(4), False), Selection(torch.arange(2), True, 2)):
        now = policy.evaluate_actions(rollout, selection)
        tensors += [now.logprobs, now.values, now.entropy]
    assert {tensor.device.type for tensor in tensors} == {"meta"}


def test_log_probs_and_entropies_match_torch_distributions() -> None:
    generator = torch.Generator().manual_seed(0)
    output = torch.randn(5, 6, generator=generator)
    head = make_action_head(SPACES["multi_discrete"])
    actions, logprobs = head.sample(output, None, generator)
    parts = [torch.distributions.Categorical(logits=logits) for logits in torch.split(output, [2, 4], -1)]
    assert torch.allclose(logprobs, sum(p.log_prob(actions[:, k]) for k, p in enumerate(parts)), atol=1e-6)  # type: ignore[arg-type]
    assert torch.allclose(head.evaluate_actions(output, None, actions)[1], sum(p.entropy() for p in parts), atol=1e-6)  # type: ignore[arg-type]
    box, log_std = make_action_head(SPACES["box"]), torch.tensor([0.3, -0.5])
    mean = torch.randn(5, 2, generator=generator)
    actions, logprobs = box.sample(mean, log_std, generator)
    normal = torch.distributions.Normal(mean, log_std.exp())
    assert torch.allclose(logprobs, normal.log_prob(actions).sum(-1), atol=1e-5)
    assert torch.allclose(box.evaluate_actions(mean, log_std, actions)[1], normal.entropy().sum(-1), atol=1e-5)


BOXES: dict[str, tuple[Any, list[float], list[float]]] = {
    "integers": (gymnasium.spaces.Box(0, 7, (1,), np.int64), [-2, -1, -0.8, 0.1, 0.8, 1, 2], [0, 0, 0, 4, 7, 7, 7]),
    "8 bits": (gymnasium.spaces.Box(0, 255, (1,), np.uint8), [-1, 0.001, 1], [0, 128, 255]),
    "bools": (gymnasium.spaces.Box(0, 1, (1,), np.bool_), [-0.1, 0.1], [0, 1]),
    "unit": (gymnasium.spaces.Box(-1, 1, (1,)), [-2, -0.5, 0.5], [-1, -0.5, 0.5]),
    "positive": (gymnasium.spaces.Box(10, 20, (1,)), [-1, 0, 0.5, 3], [10, 15, 17.5, 20]),
    "unbounded": (gymnasium.spaces.Box(-np.inf, np.inf, (1,)), [-9, 0.5], [-9, 0.5]),
    "unbounded integers": (gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.int64), [-9, 0.6], [-9, 1]),
    "bounded below": (gymnasium.spaces.Box(0, np.inf, (1,)), [-9, 0.5, 9], [0, 0.5, 9]),
    "limits of the dtype": (
        gymnasium.spaces.Box(-np.finfo(np.float32).max, np.finfo(np.float32).max, (1,)), [-9, 0.5], [-9, 0.5],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BOXES)
def test_actions_are_scaled_to_the_bounds_of_their_box(name: str) -> None:
    space, outputs, expected = BOXES[name]
    actions = make_action_head(space).to_environment(torch.tensor(outputs)[:, None])
    assert actions[:, 0].tolist() == expected
    assert actions.dtype == space.dtype
    assert all(action in space for action in actions)


def test_the_first_policy_reaches_every_integer_of_a_box() -> None:
    policy = mlp_policy(SPACES["box"], gymnasium.spaces.Box(-3, 7, (2,), np.int32))
    actions, _ = policy.act(torch.zeros(4000, policy.features), torch.Generator().manual_seed(0))
    chosen = policy.head.to_environment(actions)
    assert set(chosen.flatten().tolist()) == set(range(-3, 8))


def test_sampling_follows_the_distribution() -> None:
    logits = torch.tensor([[0.0, 1.0, -1.0]]).expand(60_000, -1)
    actions, _ = make_action_head(SPACES["discrete"]).sample(logits, None, torch.Generator().manual_seed(0))
    shares = torch.bincount(actions[:, 0], minlength=3) / 60_000
    assert torch.allclose(shares, logits[0].softmax(-1), atol=0.01)


def test_the_history_begins_anew_with_each_episode() -> None:
    env = make_corridors(1, AutoresetMode.SAME_STEP, length=3)
    policy = history_policy(env.single_observation_space, env.single_action_space, window=4)
    collector = ControlCollector(env, policy)
    collector.start(0)
    seen = collector.collect(5, torch.Generator().manual_seed(0)).inputs.observations_BTF[0]
    present = seen[..., -1]
    assert present.tolist() == [[0, 0, 0, 1], [0, 0, 1, 1], [0, 1, 1, 1], [0, 0, 0, 1], [0, 0, 1, 1]]
    assert seen[1, -1, 2:5].sum() == 1  # The action before is part of what is seen ...
    assert seen[3, -1, 2:5].sum() == 0  # ... and nothing of the episode before.


def test_what_is_hidden_from_the_transformer_changes_nothing() -> None:
    policy = history_policy(SPACES["box"], SPACES["discrete"], window=5)
    steps = torch.randn(2, 5, 2 + 3 + 1)
    steps[..., -1] = torch.tensor([0.0, 0.0, 1.0, 1.0, 1.0])
    other = steps.clone()
    other[:, :2, :-1] += 10.0
    assert torch.allclose(policy.actor(steps), policy.actor(other), atol=1e-5)


def test_observations_are_normalized_by_training_statistics() -> None:
    policy = mlp_policy(gymnasium.spaces.Box(-100, 100, (1,)), SPACES["discrete"], normalise=True)
    policy.train()
    for _ in range(50):
        policy.encode_observation(np.array([[4.0], [8.0]]), np.zeros(2, bool), None)
    scaled = policy.encode_observation(np.array([[4.0], [8.0]]), np.zeros(2, bool), None)
    assert torch.allclose(scaled[:, 0], torch.tensor([-1.0, 1.0]), atol=1e-2)
    seen = float(policy.seen)
    policy.eval()
    policy.encode_observation(np.array([[4.0], [8.0]]), np.zeros(2, bool), None)
    assert float(policy.seen) == seen


def test_a_space_that_does_not_fit_is_named() -> None:
    with pytest.raises(EnvError, match=r"action space; got Dict"):
        mlp_policy(SPACES["box"], gymnasium.spaces.Dict({"a": SPACES["box"]}))
    with pytest.raises(EnvError, match=r"observation space.*TransformObservation"):
        mlp_policy(gymnasium.spaces.Dict({"a": gymnasium.spaces.Text(4)}), SPACES["discrete"])


@pytest.mark.parametrize("body", [mlp_policy, history_policy])
def test_predictions_are_those_of_the_greedy_evaluation(body: Any) -> None:
    env = make_corridors(3, AutoresetMode.SAME_STEP, space=SPACES["box"])
    policy = body(env.single_observation_space, env.single_action_space, normalise=True)
    collector = ControlCollector(env, policy)
    collector.start(0)
    collector.collect(11, torch.Generator().manual_seed(0))
    seen = policy.seen.clone()
    first, then = (np.array([[0.1, 0.2], [0.3, 0.4]], np.float32) + step for step in (0, 1))
    starts = np.array([True, True])
    policy.eval()
    policy.memory = None
    expected = policy.act_greedily(policy.encode_observation(first, starts, None))
    expected = policy.act_greedily(policy.encode_observation(then, ~starts, expected))
    policy.train()
    policy.memory = None
    policy.predict(first, starts)
    assert policy.predict(then) == pytest.approx(policy.head.to_environment(expected))
    assert policy.training
    assert torch.equal(policy.seen, seen)
    policy.predict(first[1], True)
    assert policy.predict(then[1]) == pytest.approx(policy.head.to_environment(expected)[1])
