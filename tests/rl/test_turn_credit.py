"""Updates with credit per turn: PPO, GRPO, RLOO and REINFORCE on episodes of several turns."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import tiny_model

from palaestra.core.errors import SettingsError
from palaestra.core.seeding import Seeds
from palaestra.recipes.train.presets import make_settings
from palaestra.rl.agent_loop import make_captured_rollout
from palaestra.rl.algorithms import ALGORITHMS, Algorithm
from palaestra.rl.policies.language_model import LanguageModelPolicy
from palaestra.rl.rollouts import Rollout, Turns, select_sequences
from palaestra.rl.turns import TurnEpisode, make_turn_rollout

PLAIN = {"max_grad_norm": 0.0, "learning_rate": 1e-2}


def make_policy(critic: Any = None) -> LanguageModelPolicy:
    return LanguageModelPolicy(copy.deepcopy(tiny_model("gpt2")), critic, seeds=Seeds(0))


def make_episodes(lengths: Sequence[Sequence[int]], rewards: Sequence[Sequence[float]]) -> list[TurnEpisode]:
    """Episodes with messages of the given lengths and their rewards; one given token between two messages."""
    generator = np.random.default_rng(0)
    episodes = []
    for number, (own, paid) in enumerate(zip(lengths, rewards, strict=True)):
        episode = TurnEpisode(number, number // 2, 0, prompt=2, ids=[3, 4], rewards=list(paid), terminated=True)
        for length in own:
            episode.chosen += range(len(episode.ids), len(episode.ids) + length)
            episode.ids += generator.integers(2, 60, size=length + 1).tolist()
            episode.ends.append(len(episode.chosen))
        episode.logprobs, episode.entropies = [0.0] * len(episode.chosen), [0.0] * len(episode.chosen)
        episodes.append(episode)
    return episodes


LENGTHS, REWARDS = [[2, 1, 3], [4], [1, 2], [2, 2]], [[0.5, 0.0, 1.0], [0.2], [1.0, -1.0], [0.0, 3.0]]


def make_rollout(
    policy: LanguageModelPolicy,
    lengths: Sequence[Sequence[int]] = LENGTHS,
    rewards: Sequence[Sequence[float]] = REWARDS,
) -> Rollout:
    rollout = make_turn_rollout(make_episodes(lengths, rewards), limit=10)
    rollout.logprobs_BT = policy.logprobs_BT(rollout)
    return rollout


def update(name: str, rollout: Rollout, policy: LanguageModelPolicy, **values: Any) -> tuple[Algorithm, torch.Tensor]:
    """The algorithm after an update, and the policy's weights."""
    kind = ALGORITHMS.get(name)
    algorithm: Algorithm = kind(policy, kind.Config(**{**PLAIN, **values}), Seeds(0))
    algorithm.update(rollout, 1)
    return algorithm, torch.cat([p.detach().flatten() for p in policy.parameters()])


def test_turns_sum_and_take_values_of_their_tokens() -> None:
    rollout = make_turn_rollout(make_episodes(LENGTHS, REWARDS), limit=10)
    turns = Turns(rollout)
    assert turns.count_BN.tolist() == [[2, 1, 3], [4, 0, 0], [1, 2, 0], [2, 2, 0]]
    assert turns.sum_BN(rollout.rewards_BT).tolist() == [
        [0.5, 0.0, 1.0],
        pytest.approx([0.2, 0, 0]),
        [1, -1, 0],
        [0, 3, 0],
    ]
    place_BT = torch.arange(6.0).expand(4, 6)
    assert turns.first_BN(place_BT).tolist() == [[0, 2, 3], [0, 0, 0], [0, 1, 0], [0, 2, 0]]
    assert turns.last_BN(place_BT).tolist() == [[1, 2, 5], [3, 0, 0], [0, 2, 0], [1, 3, 0]]
    assert turns.is_first_BT[0].tolist() == [True, False, True, True, False, False]
    assert turns.is_first_BT.sum() == 8
    assert torch.allclose(turns.sum_BN(turns.weights_BT), turns.reached_BN.float())
    assert (
        turns.last_BN(rollout.ended_BT).tolist()
        == [[False, False, True], [True, False, False]] + [[False, True, False]] * 2
    )


def test_gae_over_turns_discounts_at_the_ends_of_turns() -> None:
    """Against a plain loop over the turns of each episode."""
    policy = make_policy("head")
    with torch.no_grad():
        policy.value_head.weight.normal_(generator=torch.Generator().manual_seed(1))  # type: ignore[union-attr]
    rollout = make_rollout(policy)
    gamma, gae_lambda = 0.9, 0.7
    values_BT, _ = policy.values_BT(rollout)
    algorithm, _ = update("ppo", rollout, policy, credit="turn", gamma=gamma, gae_lambda=gae_lambda)
    assert algorithm.advantages_BT is not None
    for k, (lengths, rewards) in enumerate(zip(LENGTHS, REWARDS, strict=True)):
        starts = np.cumsum([0, *lengths])
        values, running = [*values_BT[k, starts[:-1]].tolist(), 0.0], 0.0
        for n in range(len(lengths) - 1, -1, -1):
            running = rewards[n] + gamma * values[n + 1] - values[n] + gamma * gae_lambda * running
            own = algorithm.advantages_BT[k, starts[n] : starts[n + 1]]
            assert own.tolist() == pytest.approx([running] * lengths[n], abs=1e-5)


def test_the_critic_learns_one_value_per_turn() -> None:
    """The gradient of the value head is that of the values before the first tokens of messages, in any microbatches."""
    policy = make_policy("head")
    rollout, gradients = make_rollout(policy), []
    for microbatch_size in (4, 1):
        policy.microbatch_size = microbatch_size
        kind = ALGORITHMS.get("ppo")
        algorithm = kind(policy, kind.Config(**PLAIN, credit="turn", gamma=1.0, gae_lambda=1.0, n_epochs=1), Seeds(0))
        algorithm.optimizer.step = lambda: gradients.append(policy.value_head.weight.grad.clone())  # type: ignore[union-attr]
        algorithm.update(rollout, 1)
    turns = Turns(rollout)
    values = policy.evaluate_actions(rollout, select_sequences(rollout, range(4))).values
    assert values is not None
    rewards_BN = turns.sum_BN(rollout.rewards_BT)
    targets_BT = turns.spread_BT(rewards_BN.flip(-1).cumsum(-1).flip(-1))
    loss = 0.5 * 0.5 * (values - targets_BT)[turns.is_first_BT].square().mean()
    [expected] = torch.autograd.grad(loss, [policy.value_head.weight])  # type: ignore[union-attr]
    for gradient in gradients:
        assert torch.allclose(gradient, expected, atol=1e-5)


@pytest.mark.parametrize("name", ["grpo", "rloo", "ppo", "reinforce"])
def test_turns_of_one_token_are_actions(name: str) -> None:
    """PPO and REINFORCE do the same per token; the group methods weight each token by its own return."""
    lengths, rewards = [[1, 1], [1, 1, 1], [1, 1], [1]], [[0.0, 1.0], [1.0, 0.0, 2.0], [0.0, 0.0], [1.0]]
    critic = "head" if name == "ppo" else None
    policies = [make_policy(critic) for _ in range(2)]
    own = {"group_size": 2} if name in ("grpo", "rloo") else {}
    if name == "reinforce":
        own = {"baseline": "none"}
    rollout = make_rollout(policies[0], lengths, rewards)
    weights = [update(name, rollout, policies[0], credit="turn", **own)[1]]
    if own.get("group_size"):
        algorithm, _ = update(name, rollout, policies[1], credit="turn", **own)
        assert algorithm.advantages_BT is not None
        # The third turn of the second episode has no other: the first ended with a return of 0.
        assert float(algorithm.advantages_BT[1, 2]) > 0 > float(algorithm.advantages_BT[0, 0])
        return
    weights.append(update(name, rollout, policies[1], **own)[1])
    assert torch.allclose(*weights, atol=1e-6)


@pytest.mark.parametrize("name", ["grpo", "rloo"])
@pytest.mark.parametrize("epochs", [1, 2])
def test_one_turn_is_trained_like_an_episode(name: str, epochs: int) -> None:
    policies = [make_policy() for _ in range(3)]
    rollout = make_rollout(policies[0], [[3], [2], [4], [1]], [[1.0], [0.0], [0.5], [2.0]])
    own = {"group_size": 2, "n_epochs": epochs}
    by_episode, by_turn = (update(name, rollout, p, credit=c, **own)[1] for p, c in zip(policies, ("episode", "turn"), strict=False))  # fmt: skip
    assert torch.allclose(by_episode, by_turn, atol=1e-5)
    if name == "grpo":
        by_mean = update(name, rollout, policies[2], loss_aggregation="turn", **own)[1]
        assert torch.allclose(by_episode, by_mean, atol=1e-5)


def test_the_mean_per_turn_gives_every_turn_the_same_weight() -> None:
    policy = make_policy()
    rollout = make_rollout(policy)
    algorithm, _ = update("grpo", rollout, make_policy(), group_size=2)
    advantages_BT, turns = algorithm.advantages_BT, Turns(rollout)
    assert advantages_BT is not None
    logprobs_BT = policy.evaluate_actions(rollout, select_sequences(rollout, range(4)), values=False).logprobs
    means_BN = turns.sum_BN(logprobs_BT * advantages_BT) / turns.count_BN.clamp(min=1)
    gradients = torch.autograd.grad(-means_BN.sum() / 8, list(policy.model.parameters()))
    expected = float(torch.cat([gradient.flatten() for gradient in gradients]).norm())
    for microbatch_size in (4, 1):
        other = make_policy()
        other.microbatch_size = microbatch_size
        kind = ALGORITHMS.get("grpo")
        metrics = kind(other, kind.Config(**PLAIN, group_size=2, loss_aggregation="turn")).update(rollout, 1)
        assert metrics["grad_norm"] == pytest.approx(expected, rel=1e-3)


def test_credit_per_turn_needs_turns_with_rewards() -> None:
    records = make_episodes(LENGTHS, REWARDS)
    with pytest.raises(SettingsError, match="agent"):
        update("grpo", make_captured_rollout(records, 10, 0), make_policy(), credit="turn", group_size=2)
    with pytest.raises(SettingsError, match="turn environment"):
        make_settings({"env": "palaestra/CoT-v0", "credit": "turn"})
    with pytest.raises(SettingsError, match="agent"):
        make_settings({"env": "palaestra/Guess-v0", "credit": "turn", "agent": "python agent.py"})
    with pytest.raises(SettingsError, match="gamma"):
        make_settings({"env": "palaestra/Guess-v0", "gamma": 0.9})
