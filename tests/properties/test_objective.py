"""Every algorithm reaches the optimal policy of random environments whose optimum is computed exactly.

In half of them a limit is part of the task and pays less than an end; in the others the limit is only patience.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from palaestra.core.seeding import Seeds
from palaestra.envs.token import Prompt, TokenVectorEnv
from palaestra.envs.wrappers import SlotVectorEnv
from palaestra.rl.algorithms import ALGORITHMS
from palaestra.rl.collection import ControlCollector, collect_responses
from palaestra.rl.policies.control import ControlPolicy
from palaestra.rl.policies.language_model import LanguageModelPolicy

CONTROL: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": ("ppo", {"learning_rate": 0.2, "critic_learning_rate": 0.2, "n_epochs": 2, "gamma": 1.0}),
    "grpo": ("grpo", {"learning_rate": 0.2}),
    "rloo": ("rloo", {"learning_rate": 0.2, "n_epochs": 2}),
    "rest_em": ("rest_em", {"learning_rate": 0.2, "from_base": False}),
    "reinforce with a critic": (
        "reinforce",
        {"learning_rate": 0.4, "critic_learning_rate": 0.1, "baseline": "critic"},
    ),
    "reinforce": ("reinforce", {"learning_rate": 0.4}),
}
TOKEN: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": (
        "ppo",
        {"learning_rate": 3e-3, "critic_learning_rate": 3e-2, "n_epochs": 2, "batch_size": 32, "gamma": 1.0, "gae_lambda": 1.0},
    ),
    "grpo": ("grpo", {"learning_rate": 3e-3, "n_epochs": 2}),
    "rloo": ("rloo", {"learning_rate": 3e-3, "n_epochs": 2}),
    "rest_em": ("rest_em", {"learning_rate": 3e-3, "from_base": False}),
    "reinforce with a critic": ("reinforce", {"learning_rate": 5e-3, "critic_learning_rate": 3e-2, "baseline": "critic"}),
    "reinforce": ("reinforce", {"learning_rate": 5e-3}),
}  # fmt: skip


class ExitGraph(gymnasium.Env[int, int]):
    """Rooms with an exit each. Action 0 leaves and pays for the exit; the others go to another room for `step_pay`.

    A ring connects all rooms, so the best exit is reached before the limit. The episode is cut after `limit` steps.
    """

    bootstrap_truncated = False

    def __init__(self, seed: int, cut_pay: float = 0.6, step_pay: float = 0.0, rooms: int = 3, limit: int = 4) -> None:
        generator = np.random.default_rng(seed)
        self.exits = generator.uniform(0.7, 1.0, rooms)
        self.next_rooms = np.stack([(np.arange(rooms) + 1) % rooms, generator.integers(rooms, size=rooms)], -1)
        self.cut_pay, self.step_pay, self.limit = cut_pay, step_pay, limit
        self.observation_space, self.action_space = spaces.Discrete(rooms), spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.room, self.steps = int(self.np_random.integers(len(self.exits))), 0
        return self.room, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if action == 0:
            return self.room, float(self.exits[self.room]), True, False, {}
        self.room = int(self.next_rooms[self.room, action - 1])
        is_cut = self.steps == self.limit
        return self.room, self.step_pay + self.cut_pay * is_cut, False, is_cut, {}

    def compute_optimum(self, gamma: float, horizon: int) -> float:
        """The mean value of the start under the optimal policy, by backward induction."""
        values = np.full(len(self.exits), self.cut_pay)
        for _ in range(horizon):
            values = np.maximum(self.exits, self.step_pay + gamma * values[self.next_rooms].max(-1))
        return float(values.mean())

    def evaluate(self, probs_SA: np.ndarray, gamma: float, horizon: int) -> float:
        """The mean value of the start under a policy."""
        values = np.full(len(self.exits), self.cut_pay)
        for _ in range(horizon):
            values = probs_SA[:, 0] * self.exits + (
                probs_SA[:, 1:] * (self.step_pay + gamma * values[self.next_rooms])
            ).sum(-1)
        return float(values.mean())


class EndlessGraph(ExitGraph):
    """The same rooms without an end of the task: the limit is patience."""

    bootstrap_truncated = True


def train_control(env: ExitGraph, name: str, iterations: int, **changes: Any) -> np.ndarray:
    """Train a table of logits and a table of values. Returns the probabilities of the actions by room."""
    algorithm_name, values = CONTROL[name]
    kind = ALGORITHMS.get(algorithm_name)
    config = kind.Config(**{**values, **changes, "max_grad_norm": 0.0})
    rooms = env.observation_space.n  # type: ignore[attr-defined]
    actor, critic = nn.Linear(rooms, 3, bias=False), nn.Linear(rooms, 1, bias=False)
    nn.init.zeros_(actor.weight)
    nn.init.ones_(critic.weight)  # The values of an untrained critic must not be used.
    policy = ControlPolicy(env.observation_space, env.action_space, actor, critic)
    algorithm = kind(policy, config, Seeds(0))
    arguments = {"cut_pay": env.cut_pay, "step_pay": env.step_pay, "limit": env.limit}
    vector = SlotVectorEnv(lambda: _copy(env, arguments), 32)
    collector = ControlCollector(vector, policy)
    collector.start(0)
    for iteration in range(iterations):
        generator = torch.Generator().manual_seed(iteration)
        if config.whole_episodes:
            rollout = collector.collect_episodes(config.group_size, iteration, generator, env.limit)
        else:
            rollout = collector.collect(16, generator)
        algorithm.update(rollout, iteration)
    return actor.weight.detach().T.softmax(-1).numpy()


def _copy(env: ExitGraph, arguments: dict[str, Any]) -> ExitGraph:
    other = type(env)(0, **arguments)
    other.exits, other.next_rooms = env.exits, env.next_rooms
    return other


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", CONTROL)
def test_a_limit_of_the_task_is_no_way_to_more_reward(name: str, seed: int) -> None:
    env = ExitGraph(seed)
    probs_SA = train_control(env, name, 24)
    optimum, chance = env.compute_optimum(1.0, env.limit), env.evaluate(np.full((3, 3), 1 / 3), 1.0, env.limit)
    assert env.evaluate(probs_SA, 1.0, env.limit) > chance + 0.8 * (optimum - chance)


@pytest.mark.parametrize("pay", [0.2, 0.02])
@pytest.mark.parametrize("name", ["ppo", "reinforce with a critic"])
def test_patience_does_not_change_the_optimal_policy(name: str, pay: float) -> None:
    """Within the limit of 4 steps an exit pays more than to stay; without it, 0.2 a step is worth more than any exit."""
    env = EndlessGraph(0, cut_pay=0.0, step_pay=pay, limit=4)
    probs_SA = train_control(env, name, 20, gamma=0.9)
    optimum, chance = env.compute_optimum(0.9, 200), env.evaluate(np.full((3, 3), 1 / 3), 0.9, 200)
    assert env.evaluate(probs_SA, 0.9, 200) > chance + 0.8 * (optimum - chance)


END, VOCABULARY, LIMIT = 1, 8, 3


class PricedResponses(TokenVectorEnv):
    """Pays a random price for the first token of a response that ends, and less for every response that is cut."""

    def __init__(self, seed: int, **arguments: Any) -> None:
        self.prices = np.random.default_rng(seed).uniform(0.7, 1.0, VOCABULARY)
        self.prices[END] = 0.65  # An empty response.
        super().__init__([Prompt((2, 3), "")], max_tokens=LIMIT, **arguments)
        self.vocabulary = VOCABULARY
        self._is_end[:] = False
        self._is_end[END] = True

    def reward(self, response: Any) -> float:
        return 0.6 if response.truncated else float(self.prices[response.token_ids[0]])


@pytest.mark.backends
@pytest.mark.parametrize("name", TOKEN)
def test_a_cut_response_is_paid_once(name: str) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    algorithm_name, values = TOKEN[name]
    kind = ALGORITHMS.get(algorithm_name)
    config = kind.Config(**values)
    env = PricedResponses(0, num_envs=64, group_size=config.group_size)
    env.reset(seed=0, options={"episodes": 0})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=8, n_embd=16, n_layer=1, n_head=2))
    critic = "head" if config.needs_critic else None
    policy = LanguageModelPolicy(model, critic, vocabulary=VOCABULARY, seeds=Seeds(0))
    algorithm = kind(policy, config, Seeds(0))
    means = []
    for iteration in range(40):
        rollout = collect_responses(env, policy, 64, Seeds(0), first=64 * iteration)
        means.append(float(np.mean(rollout.stats.returns)))
        algorithm.update(rollout, iteration)
    assert np.mean(means[-5:]) > means[0] + 0.7 * (env.prices.max() - means[0])
