"""Losses against plain NumPy, and against the functions of Stable-Baselines3 and TRL where they can be called."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from bare_trl import make_bare_trainer

from palaestra.rl.losses import (
    aggregate_losses,
    approximate_kl,
    compute_clip_fraction,
    compute_clip_ratios,
    compute_importance_weights,
    compute_policy_loss,
    compute_sequence_logprobs_BT,
    compute_value_loss,
    kl_k1,
    kl_k3,
    mean_where,
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
