import warnings
from collections import Counter

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import palaestra  # noqa: F401  (registers the environments)
from palaestra.core.errors import LessonError, SettingsError
from palaestra.core.records import Completion, Example, Failure, FailureCause, Lesson, Message, Report, Score, Split
from palaestra.core.seeding import Seeds
from palaestra.engines.mock import MockEngine
from palaestra.envs.lesson import LessonEnv
from palaestra.envs.lesson.student import Start
from palaestra.models.registry import LoadedModel
from palaestra.students.student import SupervisedStudent
from palaestra.students.supervised import Supervision
from palaestra.tasks.math.task import MathSkills

SKILLS = ("geometry", "addition")
OURS = ["palaestra/Lesson-v0"]
SMALL = {"skills": SKILLS, "validation": 2, "test": 2, "rounds": 2, "budget": 20}


def make_lesson(count: int = 4, seed: int = 0) -> Lesson:
    return Lesson(tuple(MathSkills().write_examples("geometry", "", count, np.random.default_rng(seed))))


@pytest.fixture
def env(fresh_nano: LoadedModel) -> LessonEnv:
    student = SupervisedStudent(fresh_nano, Supervision(epochs=1))
    return LessonEnv(student=student, **SMALL)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", OURS)
def test_every_registered_environment_passes_gymnasiums_checker(name: str) -> None:
    env = gymnasium.make(name, skills=("addition",), validation=1, test=1, rounds=3, budget=10_000, rehearsal=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped, skip_render_check=False)


def test_episode_reports_test_accuracy_at_start_and_end_only(env: LessonEnv) -> None:
    state, info = env.reset(seed=0)
    assert isinstance(info["test"], Report)
    state, _, terminated, truncated, info = env.step(make_lesson())
    assert (terminated, truncated, "test" in info) == (False, False, False)
    state, _, terminated, truncated, info = env.step(make_lesson(seed=1))
    assert (terminated, truncated, "test" in info) == (False, True, True)
    assert state in env.observation_space
    assert (state.examples, state.budget, len(state.history)) == (8, 12, 2)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(make_lesson())


def test_the_budget_counts_all_data_and_terminates(env: LessonEnv) -> None:
    env.reset(seed=0)
    _, _, terminated, _, info = env.step(make_lesson(20))
    assert terminated
    assert "test" in info


def test_lesson_above_budget_is_refused_without_effect(env: LessonEnv) -> None:
    env.reset(seed=0)
    with pytest.raises(LessonError, match=r"21 examples, .*20 left"):
        env.step(make_lesson(21))
    state, *_ = env.step(make_lesson(1))
    assert (state.round, state.examples) == (1, 1)


def test_the_reward_is_the_change_of_validation_accuracy(env: LessonEnv) -> None:
    state, _ = env.reset(seed=0)
    after, reward, *_ = env.step(make_lesson(16))
    assert reward == pytest.approx(after.report.accuracy - state.report.accuracy)  # type: ignore[operator]
    assert after.history[0].allocation == {"geometry": {"perimeter": 6, "area": 5, "side": 5}}


def test_reset_restores_student_and_seed_repeats_episode(env: LessonEnv) -> None:
    first, first_info = env.reset(seed=0)
    step_one = env.step(make_lesson(8))
    again, again_info = env.reset(seed=0)
    assert again == first
    assert again_info == first_info
    assert env.step(make_lesson(8)) == step_one


def test_another_seed_asks_other_problems(env: LessonEnv) -> None:
    questions = [{attempt.question for attempt in env.reset(seed=seed)[0].attempts} for seed in (0, 1)]
    assert len(questions[0]) == 4
    assert questions[0] != questions[1]
    (first, second) = (env.reset()[0].attempts for _ in range(2))  # Without a seed the episodes differ too.
    assert first != second


def test_training_starts_from_the_base_on_all_data(env: LessonEnv) -> None:
    env.reset(seed=0)
    env.step(make_lesson(4, 0))
    *_, info = env.step(make_lesson(4, 1))
    from palaestra.models import registry as models

    other = SupervisedStudent(models.load("nano", device="cpu"), Supervision(epochs=1))
    rehearsed = tuple(env._rehearsed[: env._count_rehearsed(8)])
    other.learn(make_lesson(4, 0).examples + make_lesson(4, 1).examples + rehearsed, Seeds(0).derive("training", 2))
    assert info["weights_sha256"] == other.weights_sha256()


def test_a_teacher_sees_no_test_problem_and_no_reference(env: LessonEnv) -> None:
    state, _ = env.reset(seed=0)
    test = {p.messages[0].text for p in env.task.problems(Split.TEST, 2, 0, SKILLS)}
    assert test.isdisjoint(attempt.question for attempt in state.attempts)
    assert {attempt.reference for attempt in state.attempts} == {""}


def test_references_are_shown_when_asked_for(fresh_nano: LoadedModel) -> None:
    env = LessonEnv(student=SupervisedStudent(fresh_nano), show_references=True, **SMALL)  # type: ignore[arg-type]
    state, _ = env.reset(seed=0)
    assert all(attempt.reference for attempt in state.attempts)


BAD = {
    "expected a Lesson": "a lesson",
    "non-empty response": Lesson((Example((Message("user", "q"),), "  "),)),
    "needs a question": Lesson((Example((), "a"),)),
    "at most 256": Lesson((Example((Message("user", "word " * 400),), "a"),)),
}


def test_a_bad_lesson_is_refused_and_the_student_unharmed(env: LessonEnv) -> None:
    env.reset(seed=0)
    env.step(make_lesson())
    before = env.student.weights_sha256()
    for message, bad in BAD.items():
        with pytest.raises(LessonError, match=message):
            env.step(bad)  # type: ignore[arg-type]
        assert env.student.weights_sha256() == before
    state, *_ = env.step(make_lesson(seed=1))
    assert (state.round, state.examples) == (2, 8)


def test_failed_training_leaves_episode_unchanged(env: LessonEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    env.reset(seed=0)
    env.step(make_lesson())
    with monkeypatch.context() as patched:
        patched.setattr(env.student, "learn", lambda *a: (_ for _ in ()).throw(LessonError("the loss is nan")))
        with pytest.raises(LessonError, match="nan"):
            env.step(make_lesson(seed=1))
    state, *_ = env.step(make_lesson(seed=1))
    assert (state.round, state.examples) == (2, 8)


def test_engine_failure_after_training_is_not_scored(env: LessonEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    env.reset(seed=0)
    broken = MockEngine(lambda request, index: Failure(FailureCause.ENGINE, "lost"))
    monkeypatch.setattr(env.student, "engine", lambda: broken)
    state, reward, _, _, info = env.step(make_lesson(10))
    assert (reward, info["compared"]) == (0.0, 0)
    assert state.report.accuracy is None
    assert state.report.failures == {"engine": 4}


def test_the_state_can_be_read_as_text(fresh_nano: LoadedModel) -> None:
    env = LessonEnv(student=SupervisedStudent(fresh_nano), render_mode="ansi", **SMALL)  # type: ignore[arg-type]
    assert env.render() is None
    env.reset(seed=0)
    text = env.render()
    assert text is not None
    assert text.startswith("round 0 of 2: validation:")
    assert "addition: 100.0 %" in text


def test_a_hidden_state_tells_nothing_but_rounds_and_amounts(fresh_nano: LoadedModel) -> None:
    student = SupervisedStudent(fresh_nano, Supervision(epochs=1))
    env = LessonEnv(student=student, show_state=False, **SMALL)  # type: ignore[arg-type]
    env.reset(seed=0)
    state, *_ = env.step(make_lesson(10))
    assert state in env.observation_space
    assert (state.attempts, state.report.accuracy, state.report.slices, state.before.count) == ((), None, (), 0)
    assert (state.examples, state.history[0].allocation["geometry"], state.history[0].report.count) == (
        10,
        {"perimeter": 4, "area": 3, "side": 3},
        0,
    )


def test_a_student_that_goes_on_is_given_the_new_data_alone(
    fresh_nano: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    student = SupervisedStudent(fresh_nano, Supervision(epochs=1), start="last")
    env = LessonEnv(student=student, rehearsal=0.0, **SMALL)  # type: ignore[arg-type]
    given: list[int] = []
    learn = student.learn
    monkeypatch.setattr(
        student, "learn", lambda examples, *rest: (given.append(len(examples)), learn(examples, *rest))[1]
    )
    env.reset(seed=0)
    env.step(make_lesson(4))
    state, *_ = env.step(make_lesson(8, seed=1))
    assert given == [4, 8]
    assert state.examples == 12


def test_a_student_that_reads_text_only_is_given_no_pictures(fresh_nano: LoadedModel) -> None:
    env = LessonEnv("vision-skills", SupervisedStudent(fresh_nano), skills=("count",), validation=1, test=1)
    with pytest.raises(LessonError, match=r"images, .*text only"):
        env.reset(seed=0)


@pytest.mark.parametrize(("start", "expected"), [("base", [4 + 4, 8 + 8]), ("last", [4 + 4, 4 + 4])])
def test_own_correct_answers_are_rehearsed(
    fresh_nano: LoadedModel, monkeypatch: pytest.MonkeyPatch, start: Start, expected: list[int]
) -> None:
    student = SupervisedStudent(fresh_nano, Supervision(epochs=1), start=start)
    skills = ("addition", "comparison")  # `nano` solves both.
    env = LessonEnv(student=student, rehearsal=0.5, **SMALL | {"skills": skills})  # type: ignore[arg-type]
    learned: list[list[Example]] = []
    learn = student.learn
    monkeypatch.setattr(student, "learn", lambda examples, *rest: (learned.append(examples), learn(examples, *rest))[1])
    env.reset(seed=0)
    env.step(make_lesson(4))
    state, *_ = env.step(make_lesson(4, seed=1))
    assert [len(examples) for examples in learned] == expected
    assert state.examples == 8  # The budget counts lessons only.
    rehearsed = [example for example in learned[1] if example.skill in skills]
    assert Counter(example.skill for example in rehearsed) == dict.fromkeys(skills, len(rehearsed) // 2)
    train = {p.messages: p for p in env.task.problems(Split.TRAIN, 10, 0, skills)}
    for example in rehearsed:
        outcome = env.task.score(train[example.messages], Completion(example.response))
        assert isinstance(outcome, Score)
        assert outcome.value == 1


def test_a_student_without_correct_answers_rehearses_nothing(fresh_nano: LoadedModel) -> None:
    student = SupervisedStudent(fresh_nano, Supervision(epochs=1))
    student.engine = lambda: MockEngine(lambda request, index: "no idea")  # type: ignore[method-assign]
    env = LessonEnv(student=student, **SMALL)  # type: ignore[arg-type]
    env.reset(seed=0)
    state, *_ = env.step(make_lesson(4))
    assert state.examples == 4


@pytest.mark.parametrize("rehearsal", [-0.1, 1.0])
def test_rehearsal_is_a_fraction_below_one(rehearsal: float) -> None:
    with pytest.raises(SettingsError, match="rehearsal"):
        LessonEnv(rehearsal=rehearsal)
