"""Learning by practice: rewards rise, failures are not zeros, and training is reproducible."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from palaestra.core.errors import LessonError, SettingsError
from palaestra.core.records import Completion, Example, Failure, FailureCause, Problem, Request, Sampling, Score
from palaestra.core.seeding import Seeds
from palaestra.engines.transformers import TransformersEngine
from palaestra.envs.token import TokenVectorEnv
from palaestra.models import registry as models
from palaestra.models.registry import LoadedModel
from palaestra.rl.policies.language_model import ReferencePolicy
from palaestra.runs.files import write_folder
from palaestra.students.practice import Practice, PracticingStudent, VisualPolicy, collect_answers
from palaestra.students.registry import make_student
from palaestra.students.supervised import Method, Supervision, padding_id
from palaestra.tasks.math.task import MathSkills
from palaestra.tasks.vision.task import VisionSkills

TASK = MathSkills()
EXAMPLES = TASK.write_examples("geometry", "perimeter", 8, np.random.default_rng(0))
SMALL = Practice(passes=1.0, problems=4, group_size=4, max_tokens=32, slots=32)


def score(example: Example, completion: Completion) -> Score | Failure | None:
    return TASK.score(Problem("", example.messages, example.reference, example.skill), completion)


def make_test_student(
    model: LoadedModel, settings: Practice = SMALL, method: Method = "full", **more: Any
) -> PracticingStudent:
    more = {"score": score, **more}
    return PracticingStudent(model, Supervision(method), settings, environment=TokenVectorEnv, **more)


def test_a_student_gets_better_at_what_it_practises(fresh_nano: LoadedModel) -> None:
    examples = TASK.write_examples("percent", "", 8, np.random.default_rng(0))
    student = make_test_student(fresh_nano, Practice(passes=8.0, problems=8, learning_rate=3e-4, max_tokens=48))
    curve = student.learn(examples, Seeds(0))
    assert len(curve) == 8
    missed = [loss for _, loss in curve]
    assert np.mean(missed[-2:]) < np.mean(missed[:2]) - 0.1
    assert student.metrics["reward_last"] > student.metrics["reward_first"]
    assert student.metrics["problems"] == 8


@pytest.mark.parametrize("method", ["full", pytest.param("lora", marks=pytest.mark.backends)])
def test_practice_repeats_by_its_seed_and_is_saved_and_loaded(
    fresh_nano: LoadedModel, tmp_path: Path, method: Method
) -> None:
    student = make_test_student(fresh_nano, replace(SMALL, kl_coef=0.05, learning_rate=1e-3), method)
    question = Request(EXAMPLES[0].messages, Sampling(max_tokens=32))
    clean, before = student.weights_sha256(), student.engine().generate([question])
    curve = student.learn(EXAMPLES[:4], Seeds(0))
    learned, after = student.weights_sha256(), student.engine().generate([question])
    assert learned != clean
    write_folder(tmp_path / "student", student.save)
    student.restore()
    assert student.weights_sha256() == clean
    assert student.engine().generate([question]) == before
    assert student.learn(EXAMPLES[:4], Seeds(0)) == curve
    assert student.weights_sha256() == learned
    other = make_test_student(models.load("nano", device="cpu"), method=method)
    other.learn(EXAMPLES[:4], Seeds(1))
    assert other.weights_sha256() != learned
    other.load(tmp_path / "student")
    assert other.weights_sha256() == learned
    assert other.engine().generate([question]) == after


def test_a_killed_practice_resumes_bit_identically(fresh_nano: LoadedModel, tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    def kill(step: int, total: int, loss: float) -> None:
        if step == 3:
            raise Killed

    settings = replace(SMALL, passes=2.0, problems=2)
    whole = make_test_student(fresh_nano, settings)
    curve = whole.learn(EXAMPLES[:4], Seeds(0))
    student = make_test_student(models.load("nano", device="cpu"), settings, keep_every=0.0)
    with pytest.raises(Killed):
        student.learn(EXAMPLES[:4], Seeds(0), kill, tmp_path / "training")
    steps: list[int] = []
    again = make_test_student(models.load("nano", device="cpu"), settings)
    assert again.learn(EXAMPLES[:4], Seeds(0), lambda step, *_: steps.append(step), tmp_path / "training") == curve
    assert steps == [3, 4]
    assert again.weights_sha256() == whole.weights_sha256()


def test_weights_have_their_own_memory_after_practice(fresh_nano: LoadedModel, tmp_path: Path) -> None:
    from palaestra.students.pretraining import build_model

    torch.manual_seed(0)  # Its random words decide whether one answer is longer than another.
    model = LoadedModel("tiny", build_model(fresh_nano.tokenizer, layers=1, width=32).eval(), fresh_nano.tokenizer)

    def score_length(example: Example, completion: Completion) -> Score:
        return Score(min(1.0, len(completion.text) / 1000))

    student = make_test_student(model, score=score_length)
    student.learn(EXAMPLES[:4], Seeds(0))
    write_folder(tmp_path / "student", student.save)
    learned = student.weights_sha256()
    student.restore()
    assert student.weights_sha256() != learned
    student.load(tmp_path / "student")
    assert student.weights_sha256() == learned


def test_unscorable_examples_and_failures_are_left_out(fresh_nano: LoadedModel) -> None:
    def score_half(example: Example, completion: Completion) -> Score | Failure | None:
        if example is EXAMPLES[0]:
            return None
        if example is EXAMPLES[1]:
            return Failure(FailureCause.SANDBOX, "no room")
        return Score(1.0)

    student = make_test_student(fresh_nano, score=score_half)
    clean = student.weights_sha256()
    curve = student.learn(EXAMPLES[:4], Seeds(0))
    assert curve == [(1, 0.0)]  # All that was scored was right.
    assert student.weights_sha256() == clean  # And so nothing was to be learned.
    assert student.metrics == {
        "problems": 3,
        "unverifiable": 1,
        "reward_first": 1,
        "reward_last": 1,
        "failed_answers": 4,
        "frac_reward_zero_std": 1,
    }
    with pytest.raises(LessonError, match="of the 3 examples"):
        make_test_student(fresh_nano, score=lambda *_: None).learn(EXAMPLES[:3], Seeds(0))
    with pytest.raises(LessonError, match=r"iteration 1 .*no room"):
        make_test_student(fresh_nano, score=score_half).learn(EXAMPLES[1:2], Seeds(0))


def test_the_divergence_is_from_the_base_also_after_a_round(fresh_nano: LoadedModel) -> None:
    for method in ("full", "lora"):
        student = make_test_student(models.load("nano", device="cpu"), method=method, start="last")  # type: ignore[arg-type]
        student.learn(EXAMPLES[:4], Seeds(0))
        policy, collect = student._practice_in_environment(EXAMPLES, 2, Seeds(0))
        rollout = collect(1)
        reference_BT = ReferencePolicy(policy, student._copy_base()).logprobs_BT(rollout)
        student.restore()
        policy, _ = student._practice_in_environment(EXAMPLES, 2, Seeds(0))
        base_BT = policy.logprobs_BT(rollout)
        assert torch.allclose(reference_BT, base_BT, atol=1e-4)


def test_what_is_missing_is_one_clear_line(fresh_nano: LoadedModel) -> None:
    with pytest.raises(SettingsError, match="scorer"):
        make_student("practice", fresh_nano, environment=TokenVectorEnv)
    with pytest.raises(SettingsError, match="TokenVectorEnv"):
        make_student("practice", fresh_nano, score=score)
    with pytest.raises(SettingsError, match=r"'group_size': .*at least 2"):
        make_student("practice", fresh_nano, score=score, environment=TokenVectorEnv, group_size=1)
    learner = make_student("practice", fresh_nano, score=score, environment=TokenVectorEnv, passes=2, kl_coef=0.1)
    assert isinstance(learner, PracticingStudent)
    assert (learner.settings.passes, learner.settings.kl_coef) == (2, 0.1)


@pytest.fixture(scope="module")
def scenes() -> list[Example]:
    return VisionSkills().write_examples("majority", "", 4, np.random.default_rng(0))


def test_answers_to_pictures_are_judged_as_they_were_given(scenes: list[Example]) -> None:
    from palaestra.students.batches import encode

    vlm = models.load("nano-vlm", device="cpu")
    examples = [*scenes[:2], EXAMPLES[0]]
    prompts = [encode(source, vlm.tokenizer, 1 << 20, vlm.processor) for source in examples]
    rollout = collect_answers(
        TransformersEngine.from_loaded(vlm), examples, prompts, lambda e, c: float(len(c.text) % 2), 2, 24, [1, 2, 3]
    )
    policy = VisualPolicy(vlm.weights, padding_id(vlm.tokenizer))
    found_BT = policy.logprobs_BT(rollout)
    assert torch.allclose(found_BT, rollout.logprobs_BT, atol=1e-4)
    assert rollout.get_episodes().group_B.tolist() == [0, 0, 1, 1, 2, 2]
    assert rollout.returns_B[rollout.valid_B].tolist() == [
        float(len(answer.text) % 2) for answer in rollout.get_episodes().records
    ]


def test_students_that_read_images_practise_as_well(scenes: list[Example]) -> None:
    vlm = models.load("nano-vlm", device="cpu")

    def score_brevity(example: Example, completion: Completion) -> Score:
        return Score(1.0 / (1 + len(completion.token_ids)))

    settings = Practice(passes=2.0, problems=4, group_size=4, learning_rate=1e-3, max_tokens=12)
    student = PracticingStudent(vlm, settings=settings, score=score_brevity)
    clean = student.weights_sha256()
    curve = student.learn(scenes, Seeds(0))
    assert curve[-1][1] < curve[0][1]
    learned = student.weights_sha256()
    assert student.learn(scenes, Seeds(0)) == curve
    assert student.weights_sha256() == learned != clean
    with pytest.raises(SettingsError, match=r"1; got 0\.5"):
        PracticingStudent(vlm, settings=replace(settings, temperature=0.5), score=score_brevity)
