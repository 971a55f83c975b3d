"""Credit per turn follows the exact policy gradient, and the usual estimators per turn index do not.

Small problems in which the policy decides after each turn whether to stop. All groups of episodes are listed with their
probabilities, so expectations are exact and nothing is sampled.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palaestra.rl.losses import (
    compute_group_advantages_GK,
    compute_leave_one_out_advantages_GK,
    compute_turn_group_advantages_GKN,
    compute_turn_leave_one_out_advantages_GKN,
)

STOP = 0
Advantages = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Of the rewards, the returns from each turn on, and the turns that members reached, `[G, K, N]`."""


class StoppingProblem:
    """At each turn the policy stops (action 0) or goes on. Every action is paid; the last turn always ends the episode.

    Arguments:
        logits_NA, rewards_NA: of the actions in each turn.
    """

    def __init__(self, logits_NA: torch.Tensor, rewards_NA: torch.Tensor, gamma: float = 1.0) -> None:
        self.gamma, (turns, actions) = gamma, logits_NA.shape
        paths = [
            path
            for length in range(1, turns + 1)
            for path in product(range(actions), repeat=length)
            if STOP not in path[:-1] and (path[-1] == STOP or length == turns)
        ]
        logp_NA = logits_NA.log_softmax(-1)
        jacobian = torch.autograd.functional.jacobian(lambda x: x.log_softmax(-1), logits_NA)
        score_NAP = jacobian.view(turns, actions, turns * actions)
        self.logp_E = torch.tensor(
            [sum(float(logp_NA[n, a]) for n, a in enumerate(path)) for path in paths], dtype=torch.float64
        )
        self.rewards_EN = torch.zeros(len(paths), turns, dtype=torch.float64)
        self.reached_EN = torch.zeros(len(paths), turns, dtype=torch.bool)
        self.scores_ENP = torch.zeros(len(paths), turns, turns * actions, dtype=torch.float64)
        for e, path in enumerate(paths):
            for n, a in enumerate(path):
                self.rewards_EN[e, n], self.reached_EN[e, n] = rewards_NA[n, a], True
                self.scores_ENP[e, n] = score_NAP[n, a]
        self.returns_EN = self.rewards_EN.clone()
        for n in range(turns - 2, -1, -1):
            self.returns_EN[:, n] += gamma * self.returns_EN[:, n + 1]

    def exact_gradient_P(self) -> torch.Tensor:
        """The expectation of the score of each turn times the return from it on."""
        return torch.einsum("e,en,enp->p", self.logp_E.exp(), self.returns_EN, self.scores_ENP)

    def estimate_P(self, members: int, advantages: Advantages) -> torch.Tensor:
        """The expectation of an estimator over all groups of `members` episodes."""
        groups_GK = torch.cartesian_prod(*[torch.arange(len(self.logp_E))] * members)
        tables = (self.rewards_EN[groups_GK], self.returns_EN[groups_GK], self.reached_EN[groups_GK])
        probability_G = self.logp_E[groups_GK].sum(-1).exp()
        values_GKN = advantages(*tables) * tables[2]
        return torch.einsum("g,gkn,gknp->p", probability_G, values_GKN, self.scores_ENP[groups_GK]) / members


def compute_expected_return(logits_NA: torch.Tensor, rewards_NA: torch.Tensor) -> torch.Tensor:
    """The expected return of a stopping problem, by backward induction."""
    value = torch.zeros((), dtype=torch.float64)
    for probs_A, rewards_A in zip(logits_NA.softmax(-1).flip(0), rewards_NA.flip(0), strict=True):
        value = (probs_A * rewards_A).sum() + (1 - probs_A[STOP]) * value
    return value


def ours(rewards_GKN: torch.Tensor, returns_GKN: torch.Tensor, reached_GKN: torch.Tensor) -> torch.Tensor:
    return compute_turn_leave_one_out_advantages_GKN(returns_GKN, reached_GKN)


def ours_of_grpo(rewards_GKN: torch.Tensor, returns_GKN: torch.Tensor, reached_GKN: torch.Tensor) -> torch.Tensor:
    return compute_turn_group_advantages_GKN(returns_GKN, reached_GKN, scale=False)


def sum_of_centered_rewards(
    rewards_GKN: torch.Tensor, returns_GKN: torch.Tensor, reached_GKN: torch.Tensor
) -> torch.Tensor:
    """The natural estimator: center the rewards of each turn index over the members that reached it, then sum from each turn on."""
    mean_G1N = (rewards_GKN * reached_GKN).sum(1, True) / reached_GKN.sum(1, True).clamp(min=1)
    return ((rewards_GKN - mean_G1N) * reached_GKN).flip(-1).cumsum(-1).flip(-1)


def mean_per_index(rewards_GKN: torch.Tensor, returns_GKN: torch.Tensor, reached_GKN: torch.Tensor) -> torch.Tensor:
    """Center the returns of each turn index over all members that reached it, the own one among them."""
    mean_G1N = (returns_GKN * reached_GKN).sum(1, True) / reached_GKN.sum(1, True).clamp(min=1)
    return returns_GKN - mean_G1N


numbers = st.floats(-2, 2).map(lambda x: round(x, 2))


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_credit_per_turn_is_the_exact_gradient(data: st.DataObject) -> None:
    turns, actions, members = data.draw(st.sampled_from([(2, 3, 2), (2, 2, 4), (3, 2, 3), (3, 3, 2)]))
    draw = st.lists(numbers, min_size=turns * actions, max_size=turns * actions)
    logits_NA, rewards_NA = (torch.tensor(data.draw(draw), dtype=torch.float64).view(turns, actions) for _ in range(2))
    problem = StoppingProblem(logits_NA, rewards_NA, data.draw(st.sampled_from([1.0, 0.7, 0.0])))
    exact_P = problem.exact_gradient_P()
    if problem.gamma == 1.0:
        gradient_NA = torch.autograd.functional.jacobian(lambda x: compute_expected_return(x, rewards_NA), logits_NA)
        assert torch.allclose(exact_P, gradient_NA.flatten(), atol=1e-9)
    assert torch.allclose(problem.estimate_P(members, ours), exact_P, atol=1e-9)
    factor = (members - 1) / members
    assert torch.allclose(problem.estimate_P(members, ours_of_grpo), factor * exact_P, atol=1e-9)


def test_usual_estimators_per_turn_index_are_biased() -> None:
    """A second turn pays 1: all of the gradient of going on. The natural estimator subtracts exactly this reward."""
    problem = StoppingProblem(torch.zeros(2, 2, dtype=torch.float64), torch.tensor([[0.5, 0.0], [1.0, 1.0]]))
    exact_P = problem.exact_gradient_P()
    assert exact_P.tolist() == [-0.125, 0.125, 0.0, 0.0]  # Going on pays 1, stopping 0.5.
    for members in (2, 4):
        natural_P = problem.estimate_P(members, sum_of_centered_rewards)
        # What it follows instead: the rewards of the first turn alone, so it learns to stop.
        assert natural_P[0] == pytest.approx(0.125 * (members - 1) / members)
        assert torch.allclose(problem.estimate_P(members, ours), exact_P, atol=1e-12)


def test_a_mean_with_the_own_return_scales_turns_unequally() -> None:
    """Fewer members reach later turns, and their own returns are a larger part of the mean."""
    problem = StoppingProblem(torch.zeros(2, 2, dtype=torch.float64), torch.tensor([[0.0, 0.0], [0.0, 1.0]]))
    ratio_P = problem.estimate_P(4, mean_per_index) / problem.exact_gradient_P()
    assert ratio_P[1] == pytest.approx(0.75)
    assert ratio_P[3] < 0.6
    ratio_P = problem.estimate_P(4, ours_of_grpo) / problem.exact_gradient_P()
    assert ratio_P.tolist() == pytest.approx([0.75] * 4)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.lists(numbers, min_size=4, max_size=4), min_size=1, max_size=3), st.lists(st.booleans(), min_size=12)
)
def test_one_turn_has_the_advantages_of_the_episode(returns: list[list[float]], valid: list[bool]) -> None:
    returns_GK = torch.tensor(returns)
    valid_GK = torch.tensor(valid[: returns_GK.numel()]).view(returns_GK.shape)
    for scale in (True, False):
        advantages_GKN = compute_turn_group_advantages_GKN(returns_GK[..., None], valid_GK[..., None], scale)
        expected_GK = compute_group_advantages_GK(returns_GK, valid_GK, scale)
        assert torch.allclose(advantages_GKN[..., 0], expected_GK, atol=1e-5)
    advantages_GKN = compute_turn_leave_one_out_advantages_GKN(returns_GK[..., None], valid_GK[..., None])
    expected_GK = compute_leave_one_out_advantages_GK(returns_GK, valid_GK)
    assert torch.allclose(advantages_GKN[..., 0], expected_GK, atol=1e-6)


def test_the_scale_of_a_group_counts_every_turn_once() -> None:
    returns_GKN = torch.tensor([[[1.0, 0.0], [1.0, 0.0], [4.0, 3.0]]])
    reached_GKN = torch.tensor([[[True, False], [True, False], [True, True]]])
    plain_GKN = compute_turn_group_advantages_GKN(returns_GKN, reached_GKN, scale=False)
    assert plain_GKN.tolist() == [[[-1.0, 0.0], [-1.0, 0.0], [2.0, 2.0]]]
    scaled_GKN = compute_turn_group_advantages_GKN(returns_GKN, reached_GKN, epsilon=0.0)
    assert torch.allclose(scaled_GKN, plain_GKN / (10 / 4 * 3 / 2) ** 0.5)
    loo_GKN = compute_turn_leave_one_out_advantages_GKN(returns_GKN, reached_GKN)
    assert loo_GKN.tolist() == [[[-1.5, 0.0], [-1.5, 0.0], [3.0, 3.0]]]
