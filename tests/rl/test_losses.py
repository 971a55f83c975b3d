"""Advantages and losses against plain NumPy, and against the functions of Stable-Baselines3 and TRL where they can be called."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from bare_trl import make_bare_trainer
from hypothesis import given, settings
from hypothesis import strategies as st

from palaestra.rl.losses import (
    aggregate_losses,
    approximate_kl,
    compute_clip_fraction,
    compute_clip_ratios,
    compute_explained_variance,
    compute_frac_reward_zero_std,
    compute_gae_BT,
    compute_group_advantages_GK,
    compute_importance_weights,
    compute_leave_one_out_advantages_GK,
    compute_policy_loss,
    compute_returns_BT,
    compute_sequence_logprobs_BT,
    compute_value_loss,
    kl_k1,
    kl_k3,
    mean_where,
    measure_values,
    normalize,
)


@pytest.fixture
def batch() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    old = -torch.rand(6, 10, generator=generator) * 3
    lengths = torch.tensor([10, 3, 7, 1, 10, 5])
    return {
        "old": old,
        "new": old + 0.4 * torch.randn(6, 10, generator=generator),
        "advantages": torch.randn(6, 1, generator=generator),
        "mask": (torch.arange(10)[None] < lengths[:, None]).float(),
        "reference": old + 0.2 * torch.randn(6, 10, generator=generator),
    }


def numpy_surrogate(new: Any, old: Any, advantages: Any, low: float, high: float) -> Any:
    ratio = np.exp(new - old)
    return -np.minimum(ratio * advantages, np.clip(ratio, 1 - low, 1 + high) * advantages)


@pytest.mark.parametrize(("low", "high"), [(0.2, None), (0.2, 0.28), (0.1, 0.1)])
def test_the_clipped_surrogate_is_that_of_the_paper(
    batch: dict[str, torch.Tensor], low: float, high: float | None
) -> None:
    losses = compute_policy_loss(batch["new"], batch["old"], batch["advantages"], low, high)
    expected = numpy_surrogate(*(batch[k].numpy() for k in ("new", "old", "advantages")), low, high or low)
    assert np.allclose(losses.numpy(), expected, atol=1e-6)


def test_ppo_in_control_is_that_of_stable_baselines() -> None:
    """Its training code as it stands in `PPO.train`: policy loss, clipped values, approximate KL, clip share."""
    generator = torch.Generator().manual_seed(3)
    old = -torch.rand(64, generator=generator)
    new = old + 0.3 * torch.randn(64, generator=generator)
    advantages, returns = torch.randn(64, generator=generator), torch.randn(64, generator=generator)
    values, old_values = torch.randn(64, generator=generator), torch.randn(64, generator=generator)
    ratio, clip = torch.exp(new - old), 0.2
    policy_loss = -torch.min(advantages * ratio, advantages * torch.clamp(ratio, 1 - clip, 1 + clip)).mean()
    clipped = old_values + torch.clamp(values - old_values, -clip, clip)
    approx_kl = torch.mean((torch.exp(new - old) - 1) - (new - old))
    fraction = torch.mean((torch.abs(ratio - 1) > clip).float())
    assert torch.allclose(compute_policy_loss(new, old, advantages, clip).mean(), policy_loss, atol=1e-6)
    assert torch.allclose(approximate_kl(new, old), approx_kl, atol=1e-6)
    assert torch.allclose(compute_clip_fraction(new, old, None, clip), fraction)
    # SB3 takes the squared error of the clipped value; PPO's paper code, and ours, the worse of the two.
    worse = torch.maximum((values - returns) ** 2, (clipped - returns) ** 2)
    assert torch.allclose(compute_value_loss(values, old_values, returns, clip), 0.5 * worse, atol=1e-6)
    assert torch.allclose(compute_value_loss(values, old_values, returns, None), 0.5 * (values - returns) ** 2)


@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo", "dapo", "bnpo"])
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("beta", [0.0, 0.3])
@pytest.mark.parametrize("by_engine", [False, True])
def test_grpo_and_its_variants_are_those_of_trl(
    batch: dict[str, torch.Tensor], loss_type: str, level: str, beta: float, by_engine: bool
) -> None:
    """TRL's own `_compute_loss`, called on a trainer that has nothing but what the method reads."""
    trl = pytest.importorskip("trl")
    trainer = make_bare_trainer(trl, batch["new"], loss_type=loss_type, level=level, beta=beta)
    inputs = {
        "prompt_ids": torch.zeros(6, 4, dtype=torch.long), "prompt_mask": torch.ones(6, 4, dtype=torch.long),
        "completion_ids": torch.zeros(6, 10, dtype=torch.long), "completion_mask": batch["mask"].long(),
        "advantages": batch["advantages"][:, 0], "old_per_token_logps": batch["old"], "ref_per_token_logps": batch["reference"],
        "num_items_in_batch": batch["mask"].sum(),
    }  # fmt: skip
    sampling = batch["old"] + 0.7 * torch.randn(6, 10, generator=torch.Generator().manual_seed(3))
    weights = compute_importance_weights(batch["old"], sampling, 1.5)
    if by_engine:  # TRL computes these ratios where it calls vLLM.
        assert bool((weights == 1.5).any())
        trainer.use_vllm = trainer.vllm_importance_sampling_correction = True
        inputs["importance_sampling_ratio"] = torch.clamp(torch.exp(batch["old"] - sampling), max=1.5)
    theirs = float(trainer._compute_loss(trainer.model, inputs))
    compared = batch["new"]
    if level == "sequence":
        compared = compute_sequence_logprobs_BT(batch["new"], batch["old"], batch["mask"])
    per_token = compute_policy_loss(compared, batch["old"], batch["advantages"], 0.2, 0.28)
    if by_engine:
        per_token = per_token * weights
    if beta:
        per_token = per_token + beta * kl_k3(batch["new"], batch["reference"])
    weighting: Any = {"grpo": "sequence", "dr_grpo": "constant", "dapo": "token", "bnpo": "token"}[loss_type]
    ours = float(aggregate_losses(per_token, batch["mask"], weighting, 6, float(batch["mask"].sum()), 10))
    assert abs(ours - theirs) < 1e-5
    logged = {name: values[0] for name, values in trainer._metrics["train"].items()}
    if beta:
        assert float(mean_where(kl_k3(batch["new"], batch["reference"]), batch["mask"])) == pytest.approx(logged["kl"])
    counted = batch["mask"] if level == "token" else batch["mask"][:, :1]
    width = counted.shape[1]
    ratios = compute_clip_ratios(compared[:, :width], batch["old"][:, :width], batch["advantages"], counted, 0.2, 0.28)
    assert logged["clip_ratio/region_mean"] > 0
    for name, value in ratios.items():
        assert float(value) == pytest.approx(logged[name], abs=1e-6), name


def test_cutting_a_batch_into_pieces_changes_no_loss(batch: dict[str, torch.Tensor]) -> None:
    per_token = compute_policy_loss(batch["new"], batch["old"], batch["advantages"], 0.2)
    tokens = float(batch["mask"].sum())
    for weighting in ("token", "sequence", "constant"):
        whole = aggregate_losses(per_token, batch["mask"], weighting, 6, tokens, 10)  # type: ignore[arg-type]
        parts = [
            aggregate_losses(per_token[k : k + 2], batch["mask"][k : k + 2], weighting, 6, tokens, 10)
            for k in (0, 2, 4)
        ]  # type: ignore[arg-type]
        assert torch.allclose(whole, sum(parts), atol=1e-6)  # type: ignore[arg-type]


def test_divergence_from_itself_is_zero_and_k3_not_negative(batch: dict[str, torch.Tensor]) -> None:
    assert kl_k1(batch["new"], batch["new"]).abs().max() == 0
    assert kl_k3(batch["new"], batch["new"]).abs().max() == 0
    assert kl_k3(batch["new"], batch["reference"]).min() >= 0


def test_both_estimators_of_the_divergence_are_unbiased() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, other = torch.randn(5, generator=generator), torch.randn(5, generator=generator)
    p, q = logits.log_softmax(-1), other.log_softmax(-1)
    exact = float((p.exp() * (p - q)).sum())
    drawn = torch.multinomial(p.exp(), 200_000, replacement=True, generator=generator)
    for estimate in (kl_k1, kl_k3):
        assert abs(float(estimate(p[drawn], q[drawn]).mean()) - exact) < 0.02


def test_a_mask_that_keeps_nothing_gives_zero() -> None:
    assert mean_where(torch.ones(3), torch.zeros(3)) == 0


def numpy_gae(rewards, values, next_values, terminated, ended, gamma, lam):  # type: ignore[no-untyped-def]
    """Straight from the paper: the discounted sum of the TD errors up to the end of the episode."""
    count, steps = rewards.shape
    advantages = np.zeros((count, steps))
    for b in range(count):
        for t in range(steps):
            weight = 1.0
            for k in range(t, steps):
                bootstrap = 0.0 if terminated[b, k] else next_values[b, k]
                advantages[b, t] += weight * (rewards[b, k] + gamma * bootstrap - values[b, k])
                if ended[b, k]:
                    break
                weight *= gamma * lam
    return advantages


def make_case(seed: int, count: int = 3, steps: int = 12) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    terminated = generator.random((count, steps)) < 0.15
    ended = terminated | (generator.random((count, steps)) < 0.15)
    values = generator.normal(size=(count, steps))
    next_values = np.concatenate([values[:, 1:], generator.normal(size=(count, 1))], 1)
    next_values = np.where(ended, generator.normal(size=(count, steps)), next_values)
    return {
        "rewards": generator.normal(size=(count, steps)), "values": values, "next_values": next_values,
        "terminated": terminated, "ended": ended,
    }  # fmt: skip


def compute_ours(data: dict[str, np.ndarray], gamma: float, lam: float) -> np.ndarray:
    tensors = [torch.tensor(data[name]) for name in ("rewards", "values", "next_values", "terminated", "ended")]
    return compute_gae_BT(*tensors, gamma, lam).numpy()  # type: ignore[arg-type]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.floats(0, 1), st.floats(0, 1))
def test_gae_is_that_of_the_paper(seed: int, gamma: float, lam: float) -> None:
    data = make_case(seed)
    assert np.allclose(compute_ours(data, gamma, lam), numpy_gae(**data, gamma=gamma, lam=lam), atol=1e-9)


def test_gae_is_that_of_stable_baselines() -> None:
    buffers = pytest.importorskip("stable_baselines3.common.buffers")
    import gymnasium

    steps, count, gamma, lam = 9, 4, 0.97, 0.9
    generator = np.random.default_rng(0)
    space = gymnasium.spaces.Box(-1, 1, (2,))
    buffer = buffers.RolloutBuffer(steps, space, gymnasium.spaces.Discrete(2), "cpu", lam, gamma, count)
    done = generator.random((steps + 1, count)) < 0.2
    rewards, values = generator.normal(size=(steps, count)), generator.normal(size=(steps + 1, count))
    for t in range(steps):
        value = torch.tensor(values[t], dtype=torch.float32)
        starts = done[t].astype(np.float32)
        buffer.add(np.zeros((count, 2)), np.zeros((count, 1)), rewards[t], starts, value, torch.zeros(count))
    buffer.compute_returns_and_advantage(torch.tensor(values[-1], dtype=torch.float32), done[-1])
    ended = done[1:].T
    data = {
        "rewards": rewards.T,
        "values": values[:-1].T,
        "next_values": values[1:].T,
        "terminated": ended,
        "ended": ended,
    }
    assert np.allclose(compute_ours(data, gamma, lam), buffer.advantages.T, atol=1e-5)


def test_nothing_leaks_over_the_end_of_an_episode() -> None:
    data = make_case(1)
    data["ended"][:, 5] = True
    before = compute_ours(data, 0.99, 0.95)[:, :6]
    data["rewards"][:, 6:] += 100.0
    data["values"][:, 6:] -= 50.0
    assert np.array_equal(before, compute_ours(data, 0.99, 0.95)[:, :6])


def test_only_truncated_episodes_bootstrap_their_last_value() -> None:
    data = {name: np.zeros((1, 3)) for name in ("rewards", "values", "next_values")}
    data["next_values"][0, 2] = 10.0
    ended = np.array([[False, False, True]])
    cut = compute_ours({**data, "terminated": np.zeros((1, 3), bool), "ended": ended}, 0.5, 1.0)
    over = compute_ours({**data, "terminated": ended, "ended": ended}, 0.5, 1.0)
    assert cut.tolist() == [[1.25, 2.5, 5.0]]
    assert over.tolist() == [[0.0, 0.0, 0.0]]


def test_returns_are_discounted_sums_within_the_episode() -> None:
    rewards = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    terminated = torch.tensor([[False, True, False, False]])
    ended = torch.tensor([[False, True, False, True]])
    returns = compute_returns_BT(rewards, torch.tensor([[0.0, 9.0, 0.0, 8.0]]), terminated, ended, 0.5)
    assert returns.tolist() == [[2.0, 2.0, 7.0, 8.0]]  # the last is 4 + 0.5 * 8: it was cut, not over


def test_group_advantages_are_those_of_the_paper() -> None:
    returns = np.random.default_rng(0).normal(size=(5, 8))
    expected = (returns - returns.mean(1, keepdims=True)) / (returns.std(1, ddof=1, keepdims=True) + 1e-4)
    assert np.allclose(compute_group_advantages_GK(torch.tensor(returns)).numpy(), expected, atol=1e-9)
    unscaled = compute_group_advantages_GK(torch.tensor(returns), scale=False).numpy()
    assert np.allclose(unscaled, returns - returns.mean(1, keepdims=True), atol=1e-12)


def test_a_failed_member_moves_no_mean_and_has_no_advantage() -> None:
    returns = torch.tensor([[1.0, 0.0, 100.0, 1.0]])
    valid = torch.tensor([[True, True, False, True]])
    advantages = compute_group_advantages_GK(returns, valid, scale=False)
    assert torch.allclose(advantages, torch.tensor([[1 / 3, -2 / 3, 0.0, 1 / 3]]))
    alone = compute_leave_one_out_advantages_GK(returns, valid)
    assert torch.allclose(alone, torch.tensor([[0.5, -1.0, 0.0, 0.5]]))


def compute_exact(returns: list[float], valid: list[bool], method: str) -> list[float]:
    """Compute advantages with fractions; only the square root is rounded."""
    known = [Fraction(value) for value, counts in zip(returns, valid, strict=True) if counts]
    advantages = []
    for value, counts in zip(map(Fraction, returns), valid, strict=True):
        if not counts or len(known) < 2:
            advantages.append(0.0)
        elif method == "rloo":
            advantages.append(float(value - (sum(known) - value) / (len(known) - 1)))
        else:
            mean = sum(known) / len(known)
            variance = sum((other - mean) ** 2 for other in known) / (len(known) - 1)
            advantages.append(float(value - mean) / (float(variance) ** 0.5 + 1e-4 if method == "grpo" else 1.0))
    return advantages


METHODS = {
    "grpo": compute_group_advantages_GK,
    "dr_grpo": lambda returns, valid: compute_group_advantages_GK(returns, valid, scale=False),
    "rloo": compute_leave_one_out_advantages_GK,
}


@pytest.mark.parametrize("method", METHODS)
def test_advantages_are_exact_and_zero_for_equal_returns(method: str) -> None:
    """An advantage of the mean's rounding would be a full step of the optimiser, which does not see how small it is."""
    generator = np.random.default_rng(0)
    for size in range(2, 9):
        for failed in range(size):
            valid = [True] * size
            for place in generator.choice(size, failed, replace=False):
                valid[place] = False
            mask = torch.tensor([valid])
            for reward in (0.1, 0.3, 1.0, 3.0, 1 / 3, -0.7):
                returns = torch.full((1, size), reward).where(mask, 100.0)
                assert (METHODS[method](returns, mask) == 0).all(), (reward, size, failed)
            returns = torch.tensor(generator.choice([0.1, 0.3, 1.0, 3.0], (1, size)), dtype=torch.float32)
            wanted = compute_exact(returns[0].tolist(), valid, method)
            assert METHODS[method](returns, mask)[0].tolist() == pytest.approx(wanted, rel=1e-6, abs=1e-12)


def test_the_same_rewards_paid_in_other_turns_are_alike() -> None:
    """Their sums differ in the last place, and nobody did better."""
    paid = torch.tensor([[0.1, 0.6, 0.0], [0.0, 0.0, 0.7], [0.6, 0.0, 0.1]])
    returns = paid.sum(-1)[None]
    assert returns.unique().numel() > 1
    assert (compute_group_advantages_GK(returns) == 0).all()
    assert (compute_leave_one_out_advantages_GK(returns) == 0).all()
    assert (compute_group_advantages_GK(torch.tensor([[0.7, 0.7001]])) != 0).all()


def test_leave_one_out_compares_with_the_others() -> None:
    returns = np.random.default_rng(1).normal(size=(3, 5))
    advantages = compute_leave_one_out_advantages_GK(torch.tensor(returns)).numpy()
    for g in range(3):
        for k in range(5):
            assert np.isclose(advantages[g, k], returns[g, k] - np.delete(returns[g], k).mean())


def test_normalize_uses_only_unmasked_values() -> None:
    values = torch.tensor([1.0, 2.0, 3.0, 1000.0])
    normalized = normalize(values, torch.tensor([True, True, True, False]))
    assert abs(float(normalized[:3].mean())) < 1e-6
    assert abs(float(normalized[:3].std()) - 1) < 1e-5
    assert normalized[3] == 0


def test_equal_values_are_normalized_to_zero() -> None:
    """The deviation of equal numbers is that of the rounding of their mean; divided by it, that would be large."""
    for value in (0.1, 0.3, 1 / 3, -0.7):
        for count in range(2, 10):
            same = torch.full((count,), value)
            assert (normalize(same) == 0).all()
            mask = torch.arange(count + 1) < count
            assert (normalize(torch.cat([same, torch.tensor([9.0])]), mask) == 0).all()


def test_constant_returns_have_no_explained_variance() -> None:
    """Their rounding errors used to be explained: -1.6e15."""
    values = torch.linspace(-50, 50, 400)
    returns = (0.3 - values) + values  # As in PPO: advantages plus values.
    assert float(returns.var()) > 0
    metrics = measure_values(values, returns)
    assert metrics.keys() == {"value_mean", "return_mean"}
    assert metrics["return_mean"] == pytest.approx(0.3, abs=1e-5)
    assert metrics["value_mean"] == pytest.approx(0.0, abs=1e-5)
    assert measure_values(values, values + 1)["explained_variance"] == pytest.approx(1.0)
    assert measure_values(values[:0], values[:0]) == {}


def test_explained_variance_is_one_if_exact_zero_if_constant() -> None:
    returns = torch.tensor([1.0, 2.0, 4.0])
    assert compute_explained_variance(returns, returns) == 1.0
    assert abs(compute_explained_variance(torch.zeros(3), returns)) < 1e-6


def test_a_failed_member_does_not_give_a_group_variance() -> None:
    returns, valid = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 1.0]]), torch.tensor([[True, True, False], [True] * 3])
    assert compute_frac_reward_zero_std(returns, valid) == 0.5
