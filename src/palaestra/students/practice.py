"""Learning by practice: the student answers the problems of a lesson itself and learns from rewards with GRPO.

The student samples a group of answers to each question, and the task's scorer rewards them. It does not see the responses
of the examples. Text students practise in a token environment. Students that read images answer through their engine, with
the same update.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from palaestra.chat.rendering import end_ids
from palaestra.core.errors import LessonError, RewardError, SettingsError
from palaestra.core.records import Completion, Engine, Example, Failure, Problem, Request, Sampling, StopReason
from palaestra.core.seeding import Seeds
from palaestra.core.settings import check_ranges, setting
from palaestra.envs.lesson.student import OnStep
from palaestra.envs.token.prompts import Response
from palaestra.kernels.cpu import fuse_activations, select_matmul_kernels
from palaestra.models.families import context_length, split_by_rotation
from palaestra.rl.collection import collect_responses
from palaestra.rl.grpo import GRPO, GRPOConfig
from palaestra.rl.policies.language_model import LanguageModelPolicy, ReferencePolicy
from palaestra.rl.rollouts import ActionEvaluation, Rollout, Selection, make_episode_rollout, select_all
from palaestra.students.batches import IGNORE, Encoded, collate, encode, split_by_shape
from palaestra.students.student import Keep, ModelStudent, Scorer
from palaestra.students.supervised import TrainingState, padding_id

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_Collect = Callable[[int], Rollout]
"""Samples the answers of an iteration."""


@dataclass(frozen=True, slots=True)
class Practice:
    """Settings of practice."""

    passes: float = setting(4.0, above=0)
    """How often each problem is practised."""
    problems: int = setting(16, low=1)
    """Problems in an iteration."""
    group_size: int = setting(8, low=2)
    """Answers to a problem in an iteration."""
    learning_rate: float = setting(1e-4, above=0)
    """Learning rate."""
    max_tokens: int = setting(72, low=1)
    """Maximum tokens of an answer."""
    temperature: float = setting(1.0, above=0)
    """Sampling temperature of an answer."""
    kl_coef: float = setting(0.0, low=0)
    """Weight of the KL divergence from the base weights."""
    variant: Literal["grpo", "dr_grpo", "dapo"] = setting("grpo")
    """Variant of GRPO; see `palaestra.rl.grpo`."""
    num_minibatches: int = setting(2, low=1)
    """Optimizer steps of an update."""
    slots: int = setting(128, low=1)
    """Answers that are generated at the same time."""

    def __post_init__(self) -> None:
        check_ranges(self)


class PracticingStudent(ModelStudent):
    """A student that learns by reinforcement learning from verifiable rewards.

    Its loss is 1 minus the mean score of an iteration's answers. Its `metrics` are `problems`, `unverifiable` (examples
    without a score, which are left out), `reward_first`, `reward_last`, `failed_answers` (answers whose scoring failed) and
    `frac_reward_zero_std` (the fraction of groups without a gradient).

    Arguments:
        score: rewards answers.
        environment: makes the token environment of the problems, for example
            `palaestra.envs.token.TokenVectorEnv`. Not needed by students that read images.
        others: see `ModelStudent`.
    """

    Settings = Practice
    settings: Practice
    score: Scorer

    def _prepare(self) -> None:
        if self.score is None:
            raise SettingsError("a practising student needs a scorer; pass `score`")
        if self.environment is None and self.processor is None:
            raise SettingsError("a practising student needs a token environment; pass environment=TokenVectorEnv")
        if self.processor is not None and self.settings.temperature != 1.0:
            given = self.settings.temperature
            raise SettingsError(f"{self.name} reads images; its option 'temperature' must be 1; got {given}")
        # The policy does the same, so the student's outputs are equal before, during and after practice.
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
        groups = min(settings.problems, len(problems))
        practice = self._practice_in_environment if self.processor is None else self._practice_by_engine
        policy, collect = practice(problems, groups, seeds)
        reference = ReferencePolicy(policy, self._copy_base()) if settings.kl_coef else None
        names = ("learning_rate", "group_size", "kl_coef", "num_minibatches", "variant")
        config = GRPOConfig(**{name: getattr(settings, name) for name in names})
        algorithm = GRPO(policy, config, seeds.derive("algorithm"))
        total = math.ceil(settings.passes * len(problems) / groups)
        curve: list[tuple[int, float]] = []
        if state is not None and state.step:
            self._copy_weights(state.weights)
            algorithm.optimizer.load_state(state.moments.get(0, {}))
            curve = list(state.curve)
        failed, without_variance = 0, []
        try:
            for iteration in range(len(curve) + 1, total + 1):
                rollout = collect(iteration)
                stats = rollout.stats
                if not stats.returns:
                    raise LessonError(f"no answer of iteration {iteration} could be scored: {stats.failures[0]}")
                if reference is not None:
                    rollout.reference_BT = reference.logprobs_BT(rollout)
                without_variance.append(algorithm.update(rollout, iteration)["frac_reward_zero_std"])
                failed += len(stats.failures)
                loss = 1.0 - sum(stats.returns) / len(stats.returns)
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
            "frac_reward_zero_std": sum(without_variance) / max(1, len(without_variance)),
        }
        return curve

    def _unflatten_weights(self) -> None:
        """Give every parameter its own memory again: the optimizer puts those of a small model into one tensor."""
        for parameter in self._trained.parameters():
            parameter.grad = None
            if parameter.untyped_storage().nbytes() != parameter.numel() * parameter.element_size():
                parameter.data = parameter.data.clone()
        self._trained.eval()

    def _copy_base(self) -> PreTrainedModel | None:
        """A copy of the model with the base weights; `None` with an adapter, which can be turned off."""
        if self._adapted is not None:
            return None
        model = copy.deepcopy(self._model)
        model.load_state_dict(self._base, strict=False)
        return model

    def _practice_in_environment(
        self, problems: Sequence[Example], groups: int, seeds: Seeds
    ) -> tuple[LanguageModelPolicy, _Collect]:
        """Answers are episodes of a token environment."""
        assert self.environment is not None
        settings = self.settings
        count = groups * settings.group_size
        prompts = [
            Problem(str(place), example.messages, example.reference, example.skill, example.subskill)
            for place, example in enumerate(problems)
        ]

        def reward(response: Response) -> float:
            answer = Completion(response.text, response.token_ids, stop_reason=response.stop_reason)
            assert isinstance(response.prompt.source, Problem)
            return self.reward(problems[int(response.prompt.source.id)], answer)

        env = self.environment(
            prompts,
            reward,
            tokenizer=self.tokenizer,
            num_envs=min(settings.slots, count),
            max_tokens=settings.max_tokens,
            context=context_length(self._model.config),
            end_ids=end_ids(self._model, self.tokenizer),
            group_size=settings.group_size,
            failures="mark",
        )
        env.reset(seed=seeds.derive("environment").integer(), options={"episodes": 0})
        policy = LanguageModelPolicy(self._trained, temperature=settings.temperature, vocabulary=env.vocabulary)

        def collect(iteration: int) -> Rollout:
            return collect_responses(env, policy, count, seeds.derive("answers"), first=(iteration - 1) * count)

        return policy, collect

    def _practice_by_engine(
        self, problems: Sequence[Example], groups: int, seeds: Seeds
    ) -> tuple[VisualPolicy, _Collect]:
        """Answers come from the student's engine. Every pass takes all problems in a new random order."""
        settings = self.settings
        prompts = [encode(example, self.tokenizer, self._engine.context, self.processor) for example in problems]

        def collect(iteration: int) -> Rollout:
            numbers = range((iteration - 1) * groups, iteration * groups)
            places = []
            for number in numbers:
                lap, place = divmod(number, len(problems))
                places.append(int(seeds.derive("order", lap).generator().permutation(len(problems))[place]))
            asked, encoded = [problems[place] for place in places], [prompts[place] for place in places]
            own_seeds, size = [seeds.derive("answers", number).integer() for number in numbers], settings.group_size
            return collect_answers(self._engine, asked, encoded, self.reward, size, settings.max_tokens, own_seeds)

        return VisualPolicy(self._trained, padding_id(self.tokenizer)), collect


_MICROBATCH_SIZE = 16
"""Answers in one pass with gradients."""


@dataclass(slots=True)
class _VisualInputs:
    """The exact tokens of a rollout with their images, by sequence."""

    rows: list[Encoded]


class VisualPolicy:
    """A vision-language model as the policy of a group method, at temperature 1.

    Arguments:
        model: an image-text-to-text model of transformers, or peft's wrapper of one.
    """

    by_sequence, has_critic = True, False

    def __init__(self, model: PreTrainedModel, pad_id: int) -> None:
        self.model, self.pad_id, self.microbatch_size = model, pad_id, _MICROBATCH_SIZE

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.device
        return device

    def with_model(self, model: PreTrainedModel) -> VisualPolicy:
        """Return the same policy with other weights."""
        return VisualPolicy(model, self.pad_id)

    def train(self, mode: bool = True) -> VisualPolicy:
        """Keep dropout off while learning: see `LanguageModelPolicy.train`."""
        self.model.eval()
        return self

    def eval(self) -> VisualPolicy:
        return self.train(False)

    def evaluate_actions(
        self, rollout: Rollout, selection: Selection, entropy: bool = False, values: bool = True
    ) -> ActionEvaluation:
        """Log-probs and entropies at the tokens of the selected sequences, `[sequences, width]`."""
        rows = [rollout.inputs.rows[sequence] for sequence in selection.index.tolist()]
        logprobs: list[torch.Tensor] = [torch.zeros(0)] * len(rows)
        entropies = list(logprobs)
        parts = split_by_rotation([len(row) for row in rows], self.model.config)
        for part in (part for alike in parts for part in split_by_shape(alike, rows)):
            batch = collate([rows[place] for place in part], self.pad_id, self.model.device)
            labels_BT = batch.pop("labels")[:, 1:]
            logp_BTV = self.model(**batch).logits[:, :-1].float().log_softmax(-1)
            chosen_BT = logp_BTV.gather(-1, labels_BT.clamp(min=0)[..., None])[..., 0]
            for place, labels_T, chosen_T, logp_TV in zip(part, labels_BT, chosen_BT, logp_BTV, strict=True):
                is_response_T = labels_T != IGNORE
                logprobs[place] = _pad(chosen_T[is_response_T], selection.width)
                if entropy:
                    entropies[place] = _pad(-(logp_TV.exp() * logp_TV).sum(-1)[is_response_T], selection.width)
        device = rollout.rewards_BT.device
        return ActionEvaluation(
            torch.stack(logprobs).to(device), torch.stack(entropies).to(device) if entropy else None
        )

    def max_microbatch_size(self, rollout: Rollout) -> int:
        return self.microbatch_size

    @torch.no_grad()
    def logprobs_BT(self, rollout: Rollout) -> torch.Tensor:
        """The log-probs of all tokens under the current weights."""
        self.model.eval()
        logprobs_BT = torch.zeros_like(rollout.rewards_BT)
        with select_matmul_kernels():
            for selection in select_all(rollout, True, _MICROBATCH_SIZE):
                logprobs_BT[selection.index, : selection.width] = self.evaluate_actions(rollout, selection).logprobs
        return logprobs_BT * rollout.mask_BT

    def parameter_groups(self, learning_rate: float, critic_learning_rate: float) -> list[dict[str, object]]:
        return [{"params": [p for p in self.model.parameters() if p.requires_grad], "lr": learning_rate}]


def _pad(values_T: torch.Tensor, width: int) -> torch.Tensor:
    return torch.nn.functional.pad(values_T, (0, width - len(values_T)))


def collect_answers(
    engine: Engine,
    examples: Sequence[Example],
    prompts: Sequence[Encoded],
    reward: Callable[[Example, Completion], float],
    group_size: int,
    max_tokens: int,
    seeds: Sequence[int],
) -> Rollout:
    """Sample a group of answers to the question of each example.

    Arguments:
        prompts: the encoded questions; their responses are ignored.
        reward: the reward of an answer; raises `RewardError` if there is none.
        seeds: one for each question.
    """
    sampling = Sampling(max_tokens, temperature=1.0, count=group_size)
    requests = [Request(example.messages, sampling, seed) for example, seed in zip(examples, seeds, strict=True)]
    answers = [answer for group in engine.generate(requests) for answer in group]
    rows, rewards, values, failures = [], [], [], []
    for sequence, answer in enumerate(answers):
        example, prompt = examples[sequence // group_size], prompts[sequence // group_size]
        value, failure = 0.0, ""
        try:
            if isinstance(answer, Failure):
                raise RewardError(f"{answer.cause}: {answer.message}")
            value = reward(example, answer)
        except RewardError as error:
            failure = str(error)
        ids = answer.token_ids if isinstance(answer, Completion) else ()
        rows.append(Encoded(prompt.prompt_ids, ids, prompt.images))
        rewards.append([*[0.0] * (len(ids) - 1), value] if ids else [])  # The reward is at the last token.
        values.append(value)
        failures.append(failure)
    truncated = [not isinstance(a, Completion) or a.stop_reason is StopReason.LENGTH for a in answers]
    return make_episode_rollout(
        _VisualInputs(rows),
        logprobs=[answer.logprobs if isinstance(answer, Completion) else () for answer in answers],
        rewards=rewards,
        returns=values,
        truncated=truncated,
        failures=failures,
        groups=[sequence // group_size for sequence in range(len(rows))],
        records=answers,
        limit=max_tokens,
    )
