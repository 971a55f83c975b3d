"""Learning from preferences: the loss equals TRL's, rejected answers are wrong, and training is reproducible."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from palaestra.core.errors import LessonError, SettingsError, UnknownNameError
from palaestra.core.records import Completion, Example, Failure, FailureCause, Message, Problem, Request, Score
from palaestra.core.seeding import Seeds
from palaestra.envs.lesson.student import STUDENTS
from palaestra.models import registry as models
from palaestra.models.registry import LoadedModel
from palaestra.rl.optimizers import fork_torch_rng
from palaestra.runs.files import write_folder
from palaestra.students.batches import ResponseLogProbs
from palaestra.students.preference import (
    Preference,
    PreferencePair,
    PreferenceStudent,
    preference_loss,
)
from palaestra.students.registry import make_student
from palaestra.students.student import SupervisedStudent
from palaestra.students.supervised import Method, Supervision, padding_id
from palaestra.tasks.math.task import MathSkills
from palaestra.tasks.vision.task import VisionSkills

TASK = MathSkills()
EXAMPLES = TASK.write_examples("geometry", "perimeter", 8, np.random.default_rng(0))
GIVEN = [
    replace(source, metadata={"rejected": f"{source.reference}+1. Answer: 1{source.reference}"}) for source in EXAMPLES
]
SMALL = Supervision(epochs=2, batch_size=4, learning_rate=2e-4)


def score(example: Example, completion: Completion) -> Score | Failure | None:
    return TASK.score(Problem("", example.messages, example.reference, example.skill), completion)


def make_test_student(
    model: LoadedModel, settings: Preference = Preference(), method: Method = "full", **more: Any
) -> Any:
    how = replace(SMALL, method=method, learning_rate=2e-4 if method == "full" else 5e-3)
    return PreferenceStudent(model, how, settings, score=score, **more)


def perturb(model: LoadedModel) -> LoadedModel:
    """Add noise to the weights of a model, so that they differ from its reference."""
    with fork_torch_rng(Seeds(1)), torch.no_grad():
        for weight in model.weights.parameters():
            weight.add_(0.02 * torch.randn_like(weight))
    return model


def compute_margins(student: PreferenceStudent, pairs: Sequence[PreferencePair]) -> np.ndarray:
    """Compute the log-probability of each chosen response minus that of the rejected one."""
    rows = [row for pair in pairs for row in pair.rows]
    with torch.no_grad():
        total_B = ResponseLogProbs(student._trained, padding_id(student.tokenizer))(rows).sum(-1)
    return (total_B[::2] - total_B[1::2]).numpy()


@pytest.mark.parametrize("sft_weight", [0.0, 0.7])
def test_the_loss_is_that_of_trl(nano: LoadedModel, sft_weight: float) -> None:
    """TRL's collator and `_compute_loss`, on our ids, on a trainer that has nothing but what the method reads."""
    trl = pytest.importorskip("trl")
    from trl.trainer.dpo_trainer import DataCollatorForPreference
    from trl.trainer.utils import add_fused_lm_head

    student = make_test_student(models.load("nano", device="cpu"))
    pairs = student.make_pairs(GIVEN[:6], Seeds(0))
    pad_id = padding_id(nano.tokenizer)
    reference = student._reference(pairs, ResponseLogProbs(student._trained, pad_id))
    settings = Preference(beta=0.3, sft_weight=sft_weight)
    policy, other = perturb(models.load("nano", device="cpu")).weights, models.load("nano", device="cpu").weights
    with torch.no_grad():
        logprobs = ResponseLogProbs(policy, pad_id)
        ours = float(preference_loss(logprobs, pairs, [reference[k] for k in range(6)], settings))
    for model in (policy, other):
        add_fused_lm_head(model, outputs=("log_probs", "entropy", "mean_logits", "is_top1"))
    trainer = trl.DPOTrainer.__new__(trl.DPOTrainer)
    trainer.model, trainer.ref_model, trainer.beta = policy, other, 0.3
    trainer.loss_types, trainer.loss_weights = ["sigmoid", "sft"], [1.0, sft_weight]
    trainer.aux_loss_enabled = trainer.precompute_ref_logps = trainer.use_weighting = False
    trainer.ld_alpha, trainer.f_divergence_type, trainer.label_smoothing = None, "reverse_kl", 0.0
    trainer.args = SimpleNamespace(gradient_checkpointing_kwargs=None)
    trainer.accelerator = SimpleNamespace(device="cpu", gather=lambda x: x, gather_for_metrics=lambda x: x)
    trainer._metrics = {"train": defaultdict(list), "eval": defaultdict(list)}
    trainer._total_train_tokens, trainer._tp_size = 0, 1
    rows = [
        {
            "prompt_ids": list(p.chosen.prompt_ids),
            "chosen_ids": list(p.chosen.response_ids),
            "rejected_ids": list(p.rejected.response_ids),
        }
        for p in pairs
    ]
    with torch.no_grad():
        theirs = float(trainer._compute_loss(policy, DataCollatorForPreference(pad_id)(rows), False))
    assert ours == pytest.approx(theirs, rel=1e-4)
    assert abs(ours - float(np.log(2))) > 0.01  # Another number than that of a policy that is its reference.


def test_at_the_start_the_preference_loss_is_that_of_a_coin(fresh_nano: LoadedModel) -> None:
    student = make_test_student(fresh_nano, Preference(sft_weight=0.0))
    curve = student.learn(GIVEN, Seeds(0))
    assert curve[0][1] == pytest.approx(np.log(2), rel=1e-4)
    assert curve[-1][1] < 0.7 * curve[0][1]


@pytest.mark.parametrize("method", ["full", pytest.param("lora", marks=pytest.mark.backends)])
def test_right_responses_become_likelier_than_wrong_ones(
    fresh_nano: LoadedModel, tmp_path: Path, method: Method
) -> None:
    student = make_test_student(fresh_nano, method=method)
    clean = student.weights_sha256()
    pairs = student.make_pairs(GIVEN, Seeds(0))
    before = compute_margins(student, pairs)
    curve = student.learn(GIVEN, Seeds(0))
    after, learned = compute_margins(student, pairs), student.weights_sha256()
    assert (after > before).all()
    assert after.mean() > before.mean() + 2
    write_folder(tmp_path / "student", student.save)
    student.restore()
    assert student.weights_sha256() == clean
    assert student.learn(GIVEN, Seeds(0)) == curve
    assert student.weights_sha256() == learned
    other = make_test_student(models.load("nano", device="cpu"), method=method)
    other.learn(GIVEN[:2], Seeds(1))
    assert other.weights_sha256() != learned
    other.load(tmp_path / "student")
    assert other.weights_sha256() == learned


def test_a_killed_training_resumes_bit_identically(fresh_nano: LoadedModel, tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    def kill(step: int, total: int, loss: float) -> None:
        if step == 4:
            raise Killed

    few = Preference(samples=1, max_tokens=32)
    whole = make_test_student(fresh_nano, few)
    curve = whole.learn(EXAMPLES, Seeds(0))
    student = make_test_student(models.load("nano", device="cpu"), few, keep_every=0.0)
    with pytest.raises(Killed):
        student.learn(EXAMPLES, Seeds(0), kill, tmp_path / "training")
    steps: list[int] = []
    again = make_test_student(models.load("nano", device="cpu"), few)
    assert again.learn(EXAMPLES, Seeds(0), lambda step, *_: steps.append(step), tmp_path / "training") == curve
    assert steps[0] == 4
    assert again.weights_sha256() == whole.weights_sha256()


def test_rejected_answers_are_its_own_sampled_tokens(fresh_nano: LoadedModel) -> None:
    student = make_test_student(fresh_nano, Preference(samples=3))
    examples = [*EXAMPLES[:7], GIVEN[7]]
    pairs = student.make_pairs(examples, Seeds(0))
    assert student.make_pairs(examples, Seeds(0)) == pairs
    own = [(example, pair) for example, pair in zip(examples[:7], pairs[:7], strict=True) if pair.rejected is not None]
    assert len(own) >= 4
    assert student.metrics == {"pairs_given": 1, "pairs_own": len(own), "without_pair": 7 - len(own)}
    end = student.tokenizer.eos_token_id
    for example, pair in own:
        assert pair.rejected is not None
        ids = pair.rejected.response_ids
        decoded = student.tokenizer.decode([i for i in ids if i != end], skip_special_tokens=True)
        assert score(example, Completion(decoded)) == Score(0.0, score(example, Completion(decoded)).evidence)  # type: ignore[union-attr]
        asked = student.engine().generate([Request(example.messages)])[0][0]
        assert isinstance(asked, Completion)
        assert asked.prompt_ids == pair.chosen.prompt_ids == pair.rejected.prompt_ids
    text = student.tokenizer.decode(pairs[7].rejected.response_ids[:-1])  # type: ignore[union-attr]
    assert text == GIVEN[7].metadata["rejected"]


def test_an_answer_without_a_score_is_not_rejected(fresh_nano: LoadedModel) -> None:
    def fail_odd(example: Example, completion: Completion) -> Failure | None:
        return Failure(FailureCause.SCORER, "broke") if len(completion.text) % 2 else None

    student = PreferenceStudent(fresh_nano, SMALL, Preference(sft_weight=0.0), score=fail_odd)
    with pytest.raises(LessonError, match="of the 8 examples"):
        student.learn(EXAMPLES, Seeds(0))
    assert student.metrics["without_pair"] == 8


def test_without_pairs_only_responses_are_learned(fresh_nano: LoadedModel) -> None:
    plain = PreferenceStudent(fresh_nano, SMALL, Preference(sft_weight=0.0))
    with pytest.raises(LessonError, match=r"no scorer; .*metadata\['rejected'\]"):
        plain.learn(EXAMPLES, Seeds(0))
    responses = PreferenceStudent(fresh_nano, SMALL, Preference(sft_weight=1.0)).learn(EXAMPLES, Seeds(0))
    supervised = SupervisedStudent(models.load("nano", device="cpu"), SMALL).learn(EXAMPLES, Seeds(0))
    assert [loss for _, loss in responses] == pytest.approx([loss for _, loss in supervised], rel=1e-3)


def test_what_cannot_be_a_rejected_answer_is_one_clear_line(nano: LoadedModel) -> None:
    student = make_test_student(models.load("nano", device="cpu"))
    student.check(GIVEN)
    with pytest.raises(LessonError, match="text; got list"):
        student.check([replace(EXAMPLES[0], metadata={"rejected": ["1"]})])
    with pytest.raises(LessonError, match=r"tokens .*at most"):
        student.check([replace(EXAMPLES[0], metadata={"rejected": "1+" * 2000})])
    with pytest.raises(SettingsError, match=r"'beta': .*above 0; got 0"):
        Preference(beta=0)


def test_start_last_continues_and_a_failure_changes_nothing(fresh_nano: LoadedModel, tmp_path: Path) -> None:
    student = make_test_student(fresh_nano, start="last")
    clean = student.weights_sha256()
    student.learn(GIVEN[:4], Seeds(0))
    first = student.weights_sha256()
    write_folder(tmp_path / "first", student.save)

    def interrupt(step: int, total: int, loss: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        student.learn(GIVEN[4:], Seeds(1), interrupt)
    assert student.weights_sha256() == first
    student.learn(GIVEN[4:], Seeds(1))
    second = student.weights_sha256()
    # A process that was killed between the rounds loads the first and gets to the same second.
    other = make_test_student(models.load("nano", device="cpu"), start="last")
    other.load(tmp_path / "first")
    other.learn(GIVEN[4:], Seeds(1))
    assert other.weights_sha256() == second
    other.restore()
    assert other.weights_sha256() == clean
    other.learn(GIVEN[4:], Seeds(1))
    assert other.weights_sha256() != second


def test_students_that_read_images_prefer_as_well() -> None:
    vlm = models.load("nano-vlm", device="cpu")
    examples = VisionSkills().write_examples("relation", "", 4, np.random.default_rng(0))
    examples = [replace(source, metadata={"rejected": "Answer: a very wrong one"}) for source in examples]
    examples.append(replace(examples[0], messages=(Message("user", "What is 3 + 4?"),), response="Answer: 7"))
    student = PreferenceStudent(vlm, SMALL)
    student.check(examples)
    pairs = student.make_pairs(examples, Seeds(0))
    before = compute_margins(student, pairs[:4])
    student.learn(examples, Seeds(0))
    assert (compute_margins(student, pairs[:4]) > before).all()


def test_students_are_made_by_how_they_learn(nano: LoadedModel) -> None:
    assert STUDENTS.names() == ["practice", "preference", "supervised"]
    learner = make_student("preference", nano, SMALL, score=score, start="last", beta=0.2)
    assert isinstance(learner, PreferenceStudent)
    assert (learner.settings.beta, learner.start, learner.score) == (0.2, "last", score)
    assert isinstance(make_student("supervised", nano, score=score), SupervisedStudent)
    with pytest.raises(UnknownNameError, match="'preference'"):
        make_student("preferences", nano)
    with pytest.raises(SettingsError, match=r"'preference' .*'betta'; .*'beta'"):
        make_student("preference", nano, betta=1)
