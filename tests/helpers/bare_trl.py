"""TRL's `GRPOTrainer` with nothing but what `_compute_loss` reads."""

from __future__ import annotations

import inspect
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import torch


def make_bare_trainer(
    trl: Any,
    logprobs: torch.Tensor,
    entropies: torch.Tensor | None = None,
    *,
    loss_type: str = "grpo",
    level: str = "token",
    beta: float = 0.0,
    epsilon: tuple[float, float] = (0.2, 0.28),
) -> Any:
    """Make a trainer whose model gives each token the log-probs and entropies; `_metrics["train"]` has what it logs."""
    trainer = trl.GRPOTrainer.__new__(trl.GRPOTrainer)

    class Model(torch.nn.Module):
        pass

    model = Model()
    model.train()
    trainer.model = model
    trainer.loss_type, trainer.importance_sampling_level, trainer.beta = loss_type, level, beta
    (trainer.epsilon_low, trainer.epsilon_high), trainer.top_entropy_quantile = epsilon, 1.0
    trainer.args = SimpleNamespace(
        delta=None,
        steps_per_generation=1,
        use_bias_correction_kl=False,
        off_policy_sequence_mask_threshold=None,
        off_policy_mask_threshold=None,
        sapo_temperature_pos=1.0,
        sapo_temperature_neg=1.0,
        vespo_k_pos=1.0,
        vespo_k_neg=1.0,
    )
    trainer.off_policy_mask_threshold = trainer.off_policy_sequence_mask_threshold = None
    trainer.use_vllm = trainer.vllm_importance_sampling_correction = trainer.tools = False
    trainer.use_liger_kernel = trainer.aux_loss_enabled = trainer._entropy_bonus_enabled = False
    trainer.max_completion_length, trainer.current_gradient_accumulation_steps = 10, 1
    trainer.accelerator = SimpleNamespace(
        num_processes=1, gather=lambda x: x, gather_for_metrics=lambda x: x, reduce=lambda x, reduction: x
    )
    trainer._metrics = {"train": defaultdict(list), "eval": defaultdict(list)}
    given = (logprobs, torch.zeros_like(logprobs) if entropies is None else entropies, None)
    three = "aux_loss" in inspect.getsource(trl.GRPOTrainer._get_per_token_logps_and_entropies)
    trainer._get_per_token_logps_and_entropies = lambda *args, **kwargs: given if three else given[:2]
    return trainer
