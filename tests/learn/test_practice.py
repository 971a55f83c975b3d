"""Learning by practice: rewards rise, failures are not zeros, and training is reproducible."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from palaestra.core.errors import LessonError, SettingsError
from palaestra.core.records import Completion, Example, Failure, FailureCause, Problem, Score
from palaestra.core.seeding import Seeds
from palaestra.engines import models
from palaestra.engines.base import Request, Sampling
from palaestra.engines.models import LoadedModel
from palaestra.envs.token import TokenVectorEnv
from palaestra.learn.policies.language_model import ReferencePolicy
from palaestra.learn.practice import Practice, PractisingStudent, VisualPolicy, collect_answers
from palaestra.learn.students import make_student
from palaestra.learn.supervised import Method, Supervision, padding_id
from palaestra.runs.files import write_folder
from palaestra.tasks.math.task import MathSkills
from palaestra.tasks.vision.task import VisionSkills

TASK = MathSkills()
EXAMPLES = TASK.write_examples("geometry", "perimeter", 8, np.random.default_rng(0))
SMALL = Practice(passes=1.0, problems=4, group_size=4, max_tokens=32, slots=32)


def score(example: Example, completion: Completion) -> Score | Failure | None:
    return TASK.score(Problem("", example.messages, example.reference, example.skill), completion)


def student_of(
    model: LoadedModel, settings: Practice = SMALL, method: Method = "full", **more: Any
) -> PractisingStudent:
    more = {"score": score, **more}
    return PractisingStudent(model, Supervision(method), settings, environment=TokenVectorEnv, **more)


def test_a_student_gets_better_at_what_it_practises(fresh_nano: LoadedModel) -> None:
    examples = TASK.write_examples("percent", "", 8, np.random.default_rng(0))
    student = student_of(fresh_nano, Practice(passes=8.0, problems=8, learning_rate=3e-4, max_tokens=48))
    curve = student.learn(examples, Seeds(0))
    assert len(curve) == 8
    missed = [loss for _, loss in curve]
    assert np.mean(missed[-2:]) < np.mean(missed[:2]) - 0.1
    assert student.metrics["reward_last"] > student.metrics["reward_first"]
    assert student.metrics["problems"] == 8


@pytest.mark.parametrize("method", ["full", "lora"])
def test_practice_repeats_by_its_seed_and_is_saved_and_loaded(
    fresh_nano: LoadedModel, tmp_path: Path, method: Method
) -> None:
    student = student_of(fresh_nano, replace(SMALL, kl_coef=0.05, learning_rate=1e-3), method)
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
    other = student_of(models.load("nano", device="cpu"), method=method)
    other.learn(EXAMPLES[:4], Seeds(1))
    assert other.weights_sha256() != learned
    other.load(tmp_path / "student")
    assert other.weights_sha256() == learned
    assert other.engine().generate([question]) == after


def test_a_practice_killed_in_the_middle_ends_as_one_that_was_not(fresh_nano: LoadedModel, tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    def kill(step: int, total: int, loss: float) -> None:
        if step == 3:
            raise Killed

    settings = replace(SMALL, passes=2.0, problems=2)
    whole = student_of(fresh_nano, settings)
    curve = whole.learn(EXAMPLES[:4], Seeds(0))
    student = student_of(models.load("nano", device="cpu"), settings, keep_every=0.0)
    with pytest.raises(Killed):
        student.learn(EXAMPLES[:4], Seeds(0), kill, tmp_path / "training")
    steps: list[int] = []
    again = student_of(models.load("nano", device="cpu"), settings)
    assert again.learn(EXAMPLES[:4], Seeds(0), lambda step, *_: steps.append(step), tmp_path / "training") == curve
    assert steps == [3, 4]
    assert again.weights_sha256() == whole.weights_sha256()


def test_the_weights_of_a_small_model_have_memory_of_their_own_after_practice(
    fresh_nano: LoadedModel, tmp_path: Path
) -> None:
    from palaestra.learn.pretrain import build_model

    torch.manual_seed(0)  # Its random words decide whether one answer is longer than another.
    model = LoadedModel("tiny", build_model(fresh_nano.tokenizer, layers=1, width=32).eval(), fresh_nano.tokenizer)

    def length(example: Example, completion: Completion) -> Score:
        return Score(min(1.0, len(completion.text) / 1000))

    student = student_of(model, score=length)
    student.learn(EXAMPLES[:4], Seeds(0))
    write_folder(tmp_path / "student", student.save)
    learned = student.weights_sha256()
    student.restore()
    assert student.weights_sha256() != learned
    student.load(tmp_path / "student")
    assert student.weights_sha256() == learned


def test_what_nobody_can_judge_is_no_problem_and_a_failure_is_no_zero(fresh_nano: LoadedModel) -> None:
    def half(example: Example, completion: Completion) -> Score | Failure | None:
        if example is EXAMPLES[0]:
            return None
        if example is EXAMPLES[1]:
            return Failure(FailureCause.SANDBOX, "no room")
        return Score(1.0)

    student = student_of(fresh_nano, score=half)
    clean = student.weights_sha256()
    curve = student.learn(EXAMPLES[:4], Seeds(0))
    assert curve == [(1, 0.0)]  # All that was scored was right.
    assert student.weights_sha256() == clean  # And so nothing was to be learned.
    assert student.metrics == {
        "problems": 3, "unverifiable": 1, "reward_first": 1, "reward_last": 1, "failed_answers": 4,
        "frac_reward_zero_std": 1,
    }  # fmt: skip
    with pytest.raises(LessonError, match="none of the 3 examples can be scored"):
        student_of(fresh_nano, score=lambda *_: None).learn(EXAMPLES[:3], Seeds(0))
    with pytest.raises(LessonError, match=r"no answer of iteration 1 could be scored: .*no room"):
        student_of(fresh_nano, score=half).learn(EXAMPLES[1:2], Seeds(0))


def test_the_divergence_is_from_the_base_also_after_a_round(fresh_nano: LoadedModel) -> None:
    for method in ("full", "lora"):
        student = student_of(models.load("nano", device="cpu"), method=method, start="last")  # type: ignore[arg-type]
        student.learn(EXAMPLES[:4], Seeds(0))
        policy, collect = student._practise_in_environment(EXAMPLES, 2, Seeds(0))
        rollout = collect(1)
        reference_BT = ReferencePolicy(policy, student._copy_base()).logprobs_BT(rollout)
        student.restore()
        policy, _ = student._practise_in_environment(EXAMPLES, 2, Seeds(0))
        base_BT = policy.logprobs_BT(rollout)
        assert torch.allclose(reference_BT, base_BT, atol=1e-4)


def test_what_is_missing_is_one_clear_line(fresh_nano: LoadedModel) -> None:
    with pytest.raises(SettingsError, match="needs a scorer"):
        make_student("practice", fresh_nano, environment=TokenVectorEnv)
    with pytest.raises(SettingsError, match="pass environment=TokenVectorEnv"):
        make_student("practice", fresh_nano, score=score)
    with pytest.raises(SettingsError, match="setting 'group_size': expected at least 2"):
        make_student("practice", fresh_nano, score=score, environment=TokenVectorEnv, group_size=1)
    made = make_student("practice", fresh_nano, score=score, environment=TokenVectorEnv, passes=2, kl_coef=0.1)
    assert isinstance(made, PractisingStudent)
    assert (made.settings.passes, made.settings.kl_coef) == (2, 0.1)


@pytest.fixture(scope="module")
def scenes() -> list[Example]:
    return VisionSkills().write_examples("majority", "", 4, np.random.default_rng(0))


def test_answers_to_pictures_are_judged_as_they_were_given(scenes: list[Example]) -> None:
    from palaestra.learn.batches import encode

    vlm = models.load("nano-vlm", device="cpu")
    examples = [*scenes[:2], EXAMPLES[0]]
    prompts = [encode(one, vlm.tokenizer, 1 << 20, vlm.processor) for one in examples]
    rollout = collect_answers(vlm.engine(), examples, prompts, lambda e, c: float(len(c.text) % 2), 2, 24, [1, 2, 3])
    policy = VisualPolicy(vlm.weights, padding_id(vlm.tokenizer))
    found_BT = policy.logprobs_BT(rollout)
    assert torch.allclose(found_BT, rollout.logprobs_BT, atol=1e-4)
    assert rollout.group_B is not None
    assert rollout.group_B.tolist() == [0, 0, 1, 1, 2, 2]
    assert rollout.sequence_returns() == [float(len(answer.text) % 2) for answer in rollout.records]


def test_students_that_read_images_practise_as_well(scenes: list[Example]) -> None:
    vlm = models.load("nano-vlm", device="cpu")

    def brief(example: Example, completion: Completion) -> Score:
        return Score(1.0 / (1 + len(completion.token_ids)))

    settings = Practice(passes=2.0, problems=4, group_size=4, learning_rate=1e-3, max_tokens=12)
    student = PractisingStudent(vlm, settings=settings, score=brief)
    clean = student.weights_sha256()
    curve = student.learn(scenes, Seeds(0))
    assert curve[-1][1] < curve[0][1]
    learned = student.weights_sha256()
    assert student.learn(scenes, Seeds(0)) == curve
    assert student.weights_sha256() == learned != clean
    with pytest.raises(SettingsError, match=r"must be 1; got 0\.5"):
        PractisingStudent(vlm, settings=replace(settings, temperature=0.5), score=brief)
