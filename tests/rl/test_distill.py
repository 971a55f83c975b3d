"""On-policy distillation: the loss is the reverse KL divergence, and the student moves towards its teacher."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import palaestra
from palaestra.core.errors import ModelError, SettingsError
from palaestra.core.seeding import Seeds
from palaestra.envs.factory import make_token_env
from palaestra.models import registry as models
from palaestra.rl.collection import collect_responses
from palaestra.rl.distill import Distill, DistillConfig
from palaestra.rl.policies.language_model import LanguageModelPolicy
from palaestra.rl.rollouts import Rollout
from palaestra.runs.run import Run

HINT = "The answer is {reference}."


def make_rollout(temperature: float = 1.0) -> tuple[Any, LanguageModelPolicy, Rollout, Any]:
    loaded = models.load("nano", device="cpu", trainable=True)
    env = make_token_env("palaestra/CoT-v0", 4, {"problems": 4}, tokenizer=loaded.tokenizer, max_tokens=12)
    policy = LanguageModelPolicy(loaded.weights, temperature=temperature, vocabulary=env.vocabulary)
    env.reset(seed=0, options={"episodes": 0})
    return env, policy, collect_responses(env, policy, 6, Seeds(0)), loaded.tokenizer


def disturb(model: torch.nn.Module, folder: Path, tokenizer: Any) -> str:
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    model.save_pretrained(folder)  # type: ignore[operator]
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_gradient_is_that_of_the_reverse_divergence(tmp_path: Path, temperature: float) -> None:
    env, policy, rollout, tokenizer = make_rollout(temperature)
    teacher = disturb(models.load("nano", device="cpu").weights, tmp_path, tokenizer)
    config = DistillConfig(teacher=teacher, max_grad_norm=0.0, num_minibatches=1)
    metrics = Distill(policy, config).update(rollout, 1)

    # The same with plain forward passes of transformers, one sequence after the other.
    student, other = (
        models.load("nano", device="cpu", trainable=True).weights,
        models.load(teacher, device="cpu").weights,
    )
    total, tokens = torch.zeros(()), 0
    for prompt, response in zip(rollout.inputs.prompts, rollout.inputs.responses, strict=True):
        ids = torch.tensor([[*prompt, *response]])
        first = len(prompt) - 1
        logp, logq = (
            (model(input_ids=ids).logits[0, first:-1, : env.vocabulary] / temperature).log_softmax(-1)
            for model in (student, other)
        )
        total = total + torch.nn.functional.kl_div(logq.detach(), logp, reduction="sum", log_target=True)
        tokens += len(response)
    loss = total / tokens
    gradients = torch.autograd.grad(loss, [p for p in student.parameters() if p.requires_grad])
    assert metrics["teacher_kl"] == pytest.approx(float(loss.detach()), rel=1e-4)
    norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
    assert metrics["grad_norm"] == pytest.approx(float(norm), rel=1e-3)


def test_a_teacher_with_the_same_weights_teaches_nothing() -> None:
    _, policy, rollout, _ = make_rollout()
    metrics = Distill(policy, DistillConfig(teacher="nano")).update(rollout, 1)
    assert metrics["teacher_kl"] == pytest.approx(0.0, abs=1e-5)
    assert metrics["grad_norm"] < 1e-3


def test_only_the_teacher_reads_the_hint() -> None:
    env, policy, rollout, tokenizer = make_rollout()
    algorithm = Distill(policy, DistillConfig(hint=HINT))
    algorithm.bind(env, tokenizer)
    prompt = rollout.inputs.prompts[0]
    problem = env.find_prompt(prompt).source
    text = tokenizer.decode(algorithm.add_hint(prompt))
    assert f"The answer is {problem.reference}." in text
    assert text.replace(f"\nThe answer is {problem.reference}.", "") == tokenizer.decode(prompt)
    assert algorithm.update(rollout, 1)["teacher_kl"] > 0


def test_the_divergence_shrinks_on_the_same_samples(tmp_path: Path) -> None:
    _, policy, rollout, tokenizer = make_rollout()
    teacher = disturb(models.load("nano", device="cpu").weights, tmp_path, tokenizer)
    algorithm = Distill(policy, DistillConfig(teacher=teacher, learning_rate=5e-5, num_minibatches=1))
    divergences = [algorithm.update(rollout, iteration)["teacher_kl"] for iteration in range(10)]
    assert divergences[-1] < 0.5 * divergences[0]


def test_a_run_learns_from_its_teacher(tmp_path: Path) -> None:
    run = palaestra.train(
        env="palaestra/CoT-v0", algorithm="distill", hint=HINT, iterations=1, episodes=4, num_envs=4, max_tokens=8,
        evaluation=0, out=tmp_path / "run", progress=False,
    )  # fmt: skip
    with Run.open(run.folder, read_only=True) as stored:
        assert stored.store.metrics("teacher_kl")[1]["teacher_kl"] > 0


@pytest.mark.parametrize("values", [{}, {"hint": "{answer}"}])
def test_a_missing_teacher_and_a_wrong_hint_are_refused(values: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match="hint"):
        Distill(make_rollout()[1], DistillConfig(**values))


def test_other_tokens_and_policies_are_refused() -> None:
    env, policy, _, tokenizer = make_rollout()
    with pytest.raises(ModelError, match="other tokens"):
        Distill(policy, DistillConfig(teacher="nano-coder")).bind(env, tokenizer)
    with pytest.raises(SettingsError, match="language models"):
        Distill(torch.nn.Linear(1, 1), DistillConfig(teacher="nano"))
