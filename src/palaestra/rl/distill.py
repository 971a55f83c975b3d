"""On-policy distillation: the student samples, and at each of its tokens moves towards the teacher's distribution.

The loss of a token is the reverse KL divergence from the student's distribution to the teacher's, over the whole vocabulary
(Agarwal et al. 2024, with samples of the student only). Rewards are measured and not used. The teacher is another model with the
same tokens, or the student before training that also reads a hint, such as the right answer (`hint`).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import torch

from palaestra.core.errors import ModelError, SettingsError
from palaestra.core.records import Problem
from palaestra.core.seeding import Seeds
from palaestra.core.settings import setting
from palaestra.envs.token.prompts import tokenize_prompt
from palaestra.models import registry as models
from palaestra.rl.algorithms import Algorithm, AlgorithmConfig, MetricMeans
from palaestra.rl.optimizers import retry_in_smaller_microbatches, training_mode
from palaestra.rl.policies.language_model import LanguageModelPolicy
from palaestra.rl.rollouts import Rollout, Selection, TokenInputs, make_group_minibatches, split_microbatches


@dataclass(frozen=True, kw_only=True)
class DistillConfig(AlgorithmConfig):
    """Hyperparameters of on-policy distillation."""

    teacher: str = setting(
        "", "Model to learn from: a registered name, a folder or a hub id; by default the student before training."
    )
    hint: str = setting("", "Text after the question that only the teacher reads; {reference} is the expected answer.")
    n_epochs: int = setting(1, "Epochs over the episodes of an iteration.", low=1)
    num_minibatches: int = setting(2, "Optimizer steps in an epoch.", low=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            self.hint.format(reference="")
        except (KeyError, IndexError, ValueError):
            raise SettingsError(
                f"setting 'hint': expected a text with {{reference}} or without braces; got {self.hint!r}"
            ) from None


class Distill(Algorithm):
    """Reverse KL divergence to a teacher, on the student's own samples."""

    Config = DistillConfig
    config: DistillConfig

    def __init__(self, policy: Any, config: DistillConfig | None = None, seeds: Seeds = Seeds(0)) -> None:
        if not isinstance(policy, LanguageModelPolicy):
            raise SettingsError("distill trains language models; expected another algorithm, such as ppo")
        super().__init__(policy, config, seeds)
        name = self.config.teacher
        if not name and not self.config.hint:
            raise SettingsError(
                "distill needs a teacher: set --teacher to a model, or --hint to what only a teacher reads"
            )
        self.tokenizer: Any = None
        if name:
            loaded = models.load(name, device=str(policy.device))
            weights, self.tokenizer = loaded.weights, loaded.tokenizer
        else:
            weights = copy.deepcopy(policy.model)
        self.teacher = policy.with_model(weights.requires_grad_(False))

    def bind(self, env: Any, tokenizer: Any) -> None:
        """Check that the teacher fits the student and the environment."""
        self.env = env
        if self.tokenizer is not None and self.tokenizer.get_vocab() != tokenizer.get_vocab():
            raise ModelError(f"the teacher {self.config.teacher} has other tokens than the student; expected the same")
        if self.config.hint and not hasattr(env, "find_prompt"):
            raise SettingsError(
                "setting 'hint': expected an environment whose prompts are problems, such as palaestra/CoT-v0"
            )

    def update(self, rollout: Rollout, iteration: int, progress_remaining: float = 1.0) -> dict[str, float]:
        config, policy, optimizer = self.config, self.policy, self.optimizer
        optimizer.scale_learning_rates(config.scale_learning_rate(progress_remaining))
        rollout, self.metrics = rollout.to(policy.device), MetricMeans()
        given: TokenInputs = rollout.inputs
        if config.hint:
            given = replace(given, prompts=[self.add_hint(prompt) for prompt in given.prompts])
        sequences = [int(sequence) for sequence in rollout.mask_BT.any(-1).nonzero()[:, 0]]
        with training_mode(policy):
            for epoch in range(config.n_epochs):
                generator = self.seeds.derive("minibatches", iteration, epoch).generator()
                for minibatch in make_group_minibatches(rollout, sequences, config.num_minibatches, generator):
                    self.accumulate_gradients(minibatch, rollout, given)
                    optimizer.reduce_gradients()
                    self.metrics.add(grad_norm=optimizer.clip_grad_norm(config.max_grad_norm))
                    optimizer.step()
                    optimizer.zero_grad()
        return self.metrics.compute()

    @retry_in_smaller_microbatches
    def accumulate_gradients(self, minibatch: Selection, rollout: Rollout, given: TokenInputs) -> None:
        """Add the gradient of a minibatch, one microbatch after the other.

        Arguments:
            given: what the teacher reads.
        """
        num_tokens = minibatch.take(rollout.mask_BT).sum()
        for part in split_microbatches(minibatch, self.policy.max_microbatch_size(rollout)):
            microbatch = part.cut(rollout)
            mask_BR = microbatch.take_mask(rollout.mask_BT).float()
            student_BRV = self.policy.compute_distributions(rollout.inputs, microbatch)
            with torch.no_grad():
                teacher_BRV = self.teacher.compute_distributions(given, microbatch)
            # Illegal tokens have the log-prob minus infinity in both.
            leads_BRV = (student_BRV - teacher_BRV).masked_fill(student_BRV == -torch.inf, 0.0)
            divergences_BR = (student_BRV.exp() * leads_BRV).sum(-1)
            loss = (divergences_BR * mask_BR).sum() / num_tokens
            loss.backward()
            tokens = mask_BR.sum()
            self.metrics.add(float(tokens / num_tokens), teacher_kl=loss.detach() * num_tokens / tokens.clamp(min=1))

    def add_hint(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        """The prompt with the hint for the teacher."""
        prompt = self.env.find_prompt(ids)
        problem = prompt and prompt.source
        if not isinstance(problem, Problem):
            raise SettingsError(
                "setting 'hint': expected an environment whose prompts are problems, such as palaestra/CoT-v0"
            )
        *before, last = problem.messages
        text = f"{last.text}\n{self.config.hint.format(reference=problem.reference)}"
        hinted = replace(problem, messages=(*before, replace(last, content=text)))
        return tokenize_prompt(hinted, self.env.tokenizer, self.env.chat).ids
