"""Learning by practice: the student answers the problems of a lesson itself and learns from rewards with GRPO.

The student samples a group of answers to each question, and the task's scorer rewards them. It does not see the responses
of the examples. Students of text practise in a token environment. Students that read images answer through their engine,
with the same update.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from palaestra.core.errors import LessonError, RewardError, SettingsError
from palaestra.core.records import Completion, Example, Failure, Problem
from palaestra.core.seeding import Seeds
from palaestra.engines.chat import end_ids
from palaestra.engines.cpu.kernels import fuse_activations
from palaestra.engines.families import context_length
from palaestra.engines.models import LoadedModel
from palaestra.learn.batches import encode
from palaestra.learn.collect import collect_answers, collect_responses
from palaestra.learn.grpo import GRPO, GRPOConfig, Variant
from palaestra.learn.policies.language_model import LanguageModelPolicy
from palaestra.learn.policies.visual import VisualPolicy
from palaestra.learn.reference import apply_kl_penalty
from palaestra.learn.rollouts import Rollout
from palaestra.learn.student import Keep, ModelStudent, OnStep, Scorer, Start
from palaestra.learn.supervised import Supervision, padding_id
from palaestra.learn.training_state import TrainingState


@dataclass(frozen=True, slots=True)
class Practice:
    """Settings of practice.

    Arguments:
        passes: how often each problem is practised.
        problems: problems in an iteration.
        group_size: answers to a problem in an iteration.
        max_tokens, temperature: of an answer.
        kl_coef: weight of the divergence from the base.
        variant: which GRPO; see `palaestra.learn.grpo`.
        num_minibatches: optimiser steps an update.
        slots: answers that are generated side by side.
    """

    passes: float = 4.0
    problems: int = 16
    group_size: int = 8
    learning_rate: float = 1e-4
    max_tokens: int = 72
    temperature: float = 1.0
    kl_coef: float = 0.0
    variant: Variant = "grpo"
    num_minibatches: int = 2
    slots: int = 128

    def __post_init__(self) -> None:
        for name, good, wanted in (
            ("passes", self.passes > 0, "above 0"),
            ("problems", self.problems >= 1, "at least 1"),
            ("group_size", self.group_size >= 2, "at least 2"),
            ("learning_rate", self.learning_rate > 0, "above 0"),
            ("max_tokens", self.max_tokens >= 1, "at least 1"),
            ("temperature", self.temperature > 0, "above 0"),
            ("kl_coef", self.kl_coef >= 0, "at least 0"),
            ("variant", self.variant in ("grpo", "dr_grpo", "dapo"), "grpo, dr_grpo or dapo"),
            ("num_minibatches", self.num_minibatches >= 1, "at least 1"),
            ("slots", self.slots >= 1, "at least 1"),
        ):
            if not good:
                raise SettingsError(f"practice option '{name}': expected {wanted}; got {getattr(self, name)!r}")

    def groups(self, problems: int) -> int:
        """The number of groups in an iteration, if there are `problems` in all."""
        return min(self.problems, problems)


class PractisingStudent(ModelStudent):
    """A student that learns by reinforcement learning from verifiable rewards.

    Its loss is 1 minus the mean score of an iteration's answers. Its `metrics` are `problems`, `unverifiable` (examples
    without a score, which are left out), `reward_first`, `reward_last`, `failed_answers` (answers whose scoring failed) and
    `groups_without_variance` (the fraction of groups without a gradient).

    Arguments:
        score: rewards answers.
        environment: makes the token environment of the problems, for example
            `palaestra.envs.token.TokenVectorEnv`. Not needed by students that read images.
        others: see `ModelStudent`.
    """

    Settings = Practice
    settings: Practice

    def __init__(
        self,
        model: LoadedModel,
        supervision: Supervision = Supervision(),
        settings: Practice | None = None,
        *,
        score: Scorer | None = None,
        environment: Callable[..., Any] | None = None,
        start: Start = "base",
        batch_size: int = 128,
        keep_every: float = 120.0,
    ) -> None:
        super().__init__(model, supervision, settings, start=start, batch_size=batch_size, keep_every=keep_every)
        if score is None:
            raise SettingsError("a practising student needs a scorer; pass `score`")
        if environment is None and model.processor is None:
            raise SettingsError("a practising student needs a token environment; pass environment=TokenVectorEnv")
        if model.processor is not None and self.settings.temperature != 1.0:
            raise SettingsError(
                f"{model.name} reads images; its practice option 'temperature' must be 1; got {self.settings.temperature}"
            )
        self.score, self.environment = score, environment
        # As the policy does, so that the student computes the same before, during and after practice.
        fuse_activations(self._model)

    def reward(self, example: Example, completion: Completion) -> float:
        """The score of an answer.

        Raises:
            RewardError: scoring failed. A failure is not a reward of 0.
        """
        outcome = self.score(example, completion)
        if outcome is None:
            raise RewardError("the example cannot be scored")
        if isinstance(outcome, Failure):
            raise RewardError(f"{outcome.cause}: {outcome.message}")
        return outcome.value

    def _train(
        self, examples: Sequence[Example], seeds: Seeds, on_step: OnStep, state: TrainingState | None, keep: Keep | None
    ) -> list[tuple[int, float]]:
        settings = self.settings
        problems = [example for example in examples if self.score(example, Completion(example.response)) is not None]
        if not problems:
            raise LessonError(
                f"none of the {len(examples)} examples can be scored; add references, or use the 'supervised' student"
            )
        source = (
            _EngineSource(self, problems, seeds) if self.processor is not None else _TokenSource(self, problems, seeds)
        )
        config = GRPOConfig(
            learning_rate=settings.learning_rate, group_size=settings.group_size, kl_coef=settings.kl_coef,
            num_minibatches=settings.num_minibatches, variant=settings.variant,
        )  # fmt: skip
        algorithm = GRPO(source.policy, config, seeds.derive("algorithm"))
        groups = settings.groups(len(problems))
        total = math.ceil(settings.passes * len(problems) / groups)
        curve: list[tuple[int, float]] = []
        if state is not None and state.step:
            self._copy_weights(state.weights)
            algorithm.optimizer.load_state(state.moments.get(0, {}))
            curve = list(state.curve)
        failed, without_variance = 0, []
        try:
            for iteration in range(len(curve) + 1, total + 1):
                rollout = source.collect(iteration, groups)
                if not rollout.episode_returns:
                    raise LessonError(f"no answer of iteration {iteration} could be scored: {rollout.failures[0]}")
                if settings.kl_coef:
                    apply_kl_penalty(rollout, source.reference_BT(rollout), 0.0)  # The KL term is part of GRPO's loss.
                without_variance.append(algorithm.update(rollout, iteration)["groups_without_variance"])
                failed += len(rollout.failures)
                loss = 1.0 - sum(rollout.episode_returns) / len(rollout.episode_returns)
                curve.append((iteration, loss))
                on_step(iteration, total, loss)
                if keep is not None:
                    weights = {n: p.detach() for n, p in self._trained.named_parameters() if p.requires_grad}
                    keep(TrainingState(iteration, weights, {0: algorithm.optimizer.state()}, curve))
        finally:
            self._unflatten_weights()
        self.metrics = {
            "problems": float(len(problems)),
            "unverifiable": float(len(examples) - len(problems)),
            "reward_first": 1.0 - curve[0][1],
            "reward_last": 1.0 - curve[-1][1],
            "failed_answers": float(failed),
            "groups_without_variance": sum(without_variance) / max(1, len(without_variance)),
        }
        return curve

    def _unflatten_weights(self) -> None:
        """Give every parameter its own memory again: the optimizer puts those of a small model into one tensor."""
        for parameter in self._trained.parameters():
            parameter.grad = None
            if parameter.untyped_storage().nbytes() != parameter.numel() * parameter.element_size():
                parameter.data = parameter.data.clone()
        self._trained.eval()


class _AnswerSource(ABC):
    """Samples a practising student's answers."""

    policy: Any

    def __init__(self, student: PractisingStudent, problems: Sequence[Example], seeds: Seeds) -> None:
        self.student, self.problems, self.seeds = student, problems, seeds
        self.policy = self.make_policy(student._trained)
        self._base: Any = None

    @abstractmethod
    def make_policy(self, model: Any) -> Any: ...

    @abstractmethod
    def collect(self, iteration: int, groups: int) -> Rollout:
        """Sample groups of answers; iterations go through all problems in turn."""

    def reference_BT(self, rollout: Rollout) -> torch.Tensor:
        """The log-probs of the answers under the base weights: without the adapter, or a copy of the model."""
        student = self.student
        if student._adapted is None and self._base is None:
            model = copy.deepcopy(student._model)
            model.load_state_dict(student._base, strict=False)
            self._base = self.make_policy(model.requires_grad_(False))
        with student._adapted.disable_adapter() if student._adapted is not None else nullcontext():
            logprobs_BT: torch.Tensor = (self._base or self.policy).logprobs_BT(rollout)
        return logprobs_BT


class _TokenSource(_AnswerSource):
    """Samples answers as episodes of a token environment."""

    def __init__(self, student: PractisingStudent, problems: Sequence[Example], seeds: Seeds) -> None:
        settings = student.settings
        assert student.environment is not None
        prompts = [
            Problem(str(place), example.messages, example.reference, example.skill, example.subskill)
            for place, example in enumerate(problems)
        ]

        def reward(response: Any) -> float:
            answer = Completion(response.text, response.token_ids, stop_reason=response.stop_reason)
            return student.reward(problems[int(response.prompt.source.id)], answer)

        self.env = student.environment(
            prompts,
            reward,
            tokenizer=student.tokenizer,
            num_envs=min(settings.slots, settings.groups(len(problems)) * settings.group_size),
            max_tokens=settings.max_tokens,
            context=context_length(student._model.config),
            end_ids=end_ids(student._model, student.tokenizer),
            group_size=settings.group_size,
            failures="mark",
        )
        self.env.reset(seed=seeds.derive("environment").integer(), options={"episodes": 0})
        super().__init__(student, problems, seeds)

    def make_policy(self, model: Any) -> Any:
        return LanguageModelPolicy(
            model, temperature=self.student.settings.temperature, vocabulary=int(self.env.single_action_space.n)
        )

    def collect(self, iteration: int, groups: int) -> Rollout:
        count = groups * self.student.settings.group_size
        return collect_responses(
            self.env, self.policy, count, self.seeds.derive("answers"), first=(iteration - 1) * count
        )


class _EngineSource(_AnswerSource):
    """Samples answers through the student's engine."""

    def __init__(self, student: PractisingStudent, problems: Sequence[Example], seeds: Seeds) -> None:
        super().__init__(student, problems, seeds)
        limit = student._engine.context
        self.prompts = [encode(example, student.tokenizer, limit, student.processor) for example in problems]

    def make_policy(self, model: Any) -> Any:
        return VisualPolicy(model, padding_id(self.student.tokenizer))

    def collect(self, iteration: int, groups: int) -> Rollout:
        student, settings = self.student, self.student.settings
        numbers = range((iteration - 1) * groups, iteration * groups)
        places = [self._problem_index(number) for number in numbers]
        return collect_answers(
            student._engine,
            [self.problems[place] for place in places],
            [self.prompts[place] for place in places],
            student.reward,
            settings.group_size,
            settings.max_tokens,
            [self.seeds.derive("answers", number).integer() for number in numbers],
        )

    def _problem_index(self, number: int) -> int:
        """The problem of a group: every pass goes through all problems in a new random order."""
        lap, place = divmod(number, len(self.problems))
        return int(self.seeds.derive("order", lap).generator().permutation(len(self.problems))[place])
