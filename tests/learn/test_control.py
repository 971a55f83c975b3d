"""Control policies and their rollouts: every action space, both autoreset modes, memory."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from palaestra.core.errors import EnvError
from palaestra.core.seeding import Seeds
from palaestra.learn.collect import ControlCollector
from palaestra.learn.policies.control import history_policy, make_action_head, mlp_policy
from palaestra.learn.ppo import PPO, PPOConfig
from palaestra.learn.rollouts import ControlInputs, Rollout, Selection, make_minibatches, select_all

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SPACES = {
    "discrete": gymnasium.spaces.Discrete(3, start=2),
    "multi_discrete": gymnasium.spaces.MultiDiscrete([2, 4]),
    "multi_binary": gymnasium.spaces.MultiBinary(3),
    "box": gymnasium.spaces.Box(-2, 2, (2,), np.float32),
}


class Corridor(gymnasium.Env[Any, Any]):
    """Counts its steps; the reward is the step, the episode ends after `length` steps, by truncation if `cut`."""

    def __init__(self, length: int = 5, cut: bool = False, space: gymnasium.Space[Any] = SPACES["discrete"]) -> None:
        self.observation_space = gymnasium.spaces.Box(-1000, 1000, (2,), np.float32)
        self.action_space, self.length, self.cut, self.at = space, length, cut, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at, self.start = 0, float(self.np_random.integers(100))
        return np.array([self.start, 0], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self.at += 1
        over = self.at >= self.length
        return np.array([self.start, self.at], np.float32), float(self.at), over and not self.cut, over and self.cut, {}


def envs(count: int, mode: AutoresetMode, **arguments: Any) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: Corridor(**arguments) for _ in range(count)], autoreset_mode=mode)


@pytest.mark.parametrize("name", list(SPACES))
@pytest.mark.parametrize("body", [mlp_policy, history_policy])
def test_the_ratio_is_one_and_actions_fit_the_space(name: str, body: Any) -> None:
    env = envs(3, AutoresetMode.SAME_STEP, space=SPACES[name])
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
    inputs = ControlInputs(torch.stack([first, then], 1), torch.stack([actions, actions], 1))
    none = torch.zeros(3, 2, device="meta")
    rollout = Rollout(none, none, none > 0, none > 0, none > 0, inputs, then, {(0, 1): final})
    tensors = [first, actions, logprobs, then, final, policy.act_greedily(first), *policy.values_BT(rollout)]
    for selection in (Selection(torch.arange(4), False), Selection(torch.arange(2), True, 2)):
        now = policy.evaluate_actions(rollout, selection)
        tensors += [now.logprobs, now.values, now.entropy]
    assert {tensor.device.type for tensor in tensors} == {"meta"}


@pytest.mark.parametrize("body", [mlp_policy, history_policy])
@pytest.mark.parametrize("name", ["multi_discrete", "box"])
def test_a_rollout_is_the_same_on_every_device(body: Any, name: str) -> None:
    rollouts, weights = [], []
    for device in ("cpu", DEVICE):
        env = envs(4, AutoresetMode.SAME_STEP, space=SPACES[name])
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


def test_log_probs_and_entropies_are_those_of_torch_distributions() -> None:
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


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
@pytest.mark.parametrize("cut", [True, False])
def test_episodes_are_kept_apart_under_both_kinds_of_autoreset(mode: AutoresetMode, cut: bool) -> None:
    env = envs(2, mode, length=4, cut=cut)
    policy = mlp_policy(env.single_observation_space, env.single_action_space)
    collector = ControlCollector(env, policy)
    collector.start(0)
    rollout = collector.collect(10, torch.Generator().manual_seed(0))
    assert rollout.episode_returns[:2] == [10.0, 10.0]
    assert set(rollout.episode_lengths) == {4}
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


def test_group_starts_are_identical_and_other_groups_start_elsewhere() -> None:
    env = envs(6, AutoresetMode.SAME_STEP)
    policy = mlp_policy(env.single_observation_space, env.single_action_space)
    rollout = ControlCollector(env, policy).collect_episodes(3, 7, torch.Generator().manual_seed(0), 100)
    starts = rollout.inputs.observations_BTF[:, 0, 0].tolist()
    assert starts[0] == starts[1] == starts[2]
    assert starts[3] == starts[4] == starts[5] != starts[0]
    assert rollout.mask_BT.sum(-1).tolist() == [5] * 6
    assert rollout.group_B.tolist() == [0, 0, 0, 1, 1, 1]  # type: ignore[union-attr]


def test_the_history_begins_anew_with_each_episode() -> None:
    env = envs(1, AutoresetMode.SAME_STEP, length=3)
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


def test_observations_are_normalised_by_what_was_seen_while_learning() -> None:
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


def test_every_decision_is_in_one_minibatch_of_an_epoch() -> None:
    env = envs(3, AutoresetMode.NEXT_STEP, length=4)
    policy = mlp_policy(env.single_observation_space, env.single_action_space)
    collector = ControlCollector(env, policy)
    collector.start(0)
    rollout = collector.collect(13, torch.Generator().manual_seed(0))
    batches = make_minibatches(rollout, False, 8, np.random.default_rng(0))
    chosen = torch.cat([batch.index for batch in batches])
    assert sorted(chosen.tolist()) == rollout.mask_BT.flatten().nonzero()[:, 0].tolist()
    assert max(len(b) for b in batches) <= 12


def test_a_space_that_does_not_fit_is_named() -> None:
    with pytest.raises(
        EnvError, match=r"expected a Discrete, MultiDiscrete, MultiBinary or Box action space; got Dict"
    ):
        mlp_policy(SPACES["box"], gymnasium.spaces.Dict({"a": SPACES["box"]}))
    with pytest.raises(
        EnvError, match=r"expected a Box, MultiBinary or Discrete observation space.*FlattenObservation"
    ):
        mlp_policy(gymnasium.spaces.Dict({"a": SPACES["box"]}), SPACES["discrete"])


def test_ppo_learns_to_prefer_the_rewarded_action() -> None:
    class Bandit(Corridor):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            state, _, terminated, truncated, info = super().step(action)
            return state, float(action == 3), terminated, truncated, info

    env = SyncVectorEnv([Bandit for _ in range(8)], autoreset_mode=AutoresetMode.SAME_STEP)
    policy = mlp_policy(env.single_observation_space, env.single_action_space, seeds=Seeds(1), normalise=True)
    algorithm = PPO(
        policy, PPOConfig(learning_rate=1e-2, critic_learning_rate=1e-2, n_epochs=4, batch_size=64), Seeds(1)
    )
    collector = ControlCollector(env, policy)
    collector.start(0)
    generator = torch.Generator().manual_seed(0)
    policy.train()
    returns = []
    for iteration in range(12):
        rollout = collector.collect(20, generator)
        returns += rollout.episode_returns
        metrics = algorithm.update(rollout, iteration)
    assert np.mean(returns[:20]) < 2.5
    assert np.mean(returns[-20:]) > 4.0
    assert {"approx_kl", "clip_fraction", "explained_variance", "grad_norm"} <= set(metrics)


def test_target_kl_stops_the_epochs() -> None:
    env = envs(4, AutoresetMode.SAME_STEP)
    policy = mlp_policy(env.single_observation_space, env.single_action_space)
    collector = ControlCollector(env, policy)
    collector.start(0)
    rollout = collector.collect(20, torch.Generator().manual_seed(0))
    config = PPOConfig(learning_rate=0.1, n_epochs=20, batch_size=16, target_kl=0.01)
    assert PPO(policy, config).update(rollout, 0)["n_epochs"] < 20


class Breaking(Corridor):
    """The second environment that is made breaks in the third step of each episode."""

    made = 0

    def __init__(self) -> None:
        super().__init__(length=5)
        Breaking.made += 1
        self.weak = Breaking.made == 2

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.weak and self.at == 2:
            raise ValueError("a screw came loose")
        return super().step(action)


def test_an_episode_that_broke_is_no_result_and_teaches_nothing() -> None:
    from palaestra.envs.wrappers import SlotVectorEnv

    Breaking.made = 0
    env = SlotVectorEnv(Breaking, 4)
    policy = mlp_policy(env.single_observation_space, env.single_action_space)
    rollout = ControlCollector(env, policy).collect_episodes(2, 7, torch.Generator().manual_seed(0), 100)
    assert rollout.valid_B.tolist() == [True, False, True, True]  # type: ignore[union-attr]
    assert rollout.sequence_returns() == [15.0, 15.0, 15.0]
    chosen = torch.cat([batch.index for batch in make_minibatches(rollout, False, 4, np.random.default_rng(0))])
    assert set((chosen // rollout.mask_BT.shape[1]).tolist()) == {0, 2, 3}


def test_dr_grpo_divides_by_a_constant_of_the_run_and_not_by_the_longest_response_of_the_batch() -> None:
    from palaestra.learn.grpo import GRPO, GRPOConfig

    norms = []
    for limit in (10, 20):
        env = envs(4, AutoresetMode.SAME_STEP)
        policy = mlp_policy(env.single_observation_space, env.single_action_space)
        rollout = ControlCollector(env, policy).collect_episodes(2, 7, torch.Generator().manual_seed(0), limit)
        rollout.rewards_BT[:, 0] += torch.tensor([1.0, 0.0, 2.0, 0.0])
        assert (rollout.limit, rollout.mask_BT.shape[1]) == (limit, 5)
        config = GRPOConfig(variant="dr_grpo", group_size=2, max_grad_norm=0.0)
        norms.append(GRPO(policy, config).update(rollout, 0)["grad_norm"])
    assert norms[0] == pytest.approx(2 * norms[1], rel=1e-4)


def test_a_failed_member_does_not_give_a_group_variance() -> None:
    from palaestra.learn.advantages import compute_frac_reward_zero_std

    returns, valid = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 1.0]]), torch.tensor([[True, True, False], [True] * 3])
    assert compute_frac_reward_zero_std(returns, valid) == 0.5
