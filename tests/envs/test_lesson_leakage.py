"""The lesson environment drops held-out problems and rejects invalid lessons."""

from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest

import palaestra  # noqa: F401  (registers the environments)
from palaestra.core.errors import LessonError, PalaestraError, SettingsError
from palaestra.core.records import Decision, Example, Lesson, Message, Problem, Split, ToolCall
from palaestra.envs.lesson import LessonEnv
from palaestra.models.registry import LoadedModel
from palaestra.students.student import SupervisedStudent
from palaestra.students.supervised import Supervision
from palaestra.tasks.math.task import MathSkills

SKILLS = ("change", "addition")
GOOD = Example((Message("user", "What is 991+3?"),), "991+3=994. Answer: 994", "addition")


@pytest.fixture
def env(fresh_nano: LoadedModel) -> Any:
    student = SupervisedStudent(fresh_nano, Supervision(epochs=1))
    lesson_env = gymnasium.make(
        "palaestra/Lesson-v0", student=student, skills=SKILLS, validation=3, test=3, rounds=2, budget=20
    )
    lesson_env.reset(seed=0)
    return lesson_env


def copy_problem(problem: Problem, before: str = "") -> Example:
    return Example((Message("user", before + problem.messages[-1].text),), problem.metadata["worked"], problem.skill)


@pytest.mark.parametrize("split", [Split.VALIDATION, Split.TEST])
@pytest.mark.parametrize("before", ["", "Please answer: "])
def test_copies_of_held_out_problems_are_dropped_and_counted(env: Any, split: Split, before: str) -> None:
    stolen = [copy_problem(problem, before) for problem in MathSkills().problems(split, 3, 0, SKILLS)]
    with pytest.raises(LessonError, match=f"6 x repeats a {split} problem"):
        env.step(Lesson(tuple(stolen)))
    honest = MathSkills().write_examples("addition", "", 4, np.random.default_rng(0))
    state, _, _, _, info = env.step(Lesson((*honest, *stolen)))
    assert (info["taught"], info["dropped"]) == (4, {f"repeats a {split} problem": 6})
    assert (state.examples, list(state.history[0].allocation)) == (4, ["addition"])
    assert env.unwrapped.data == honest


def make_bad_lesson(**values: Any) -> Lesson:
    return Lesson((GOOD, replace(GOOD, **values)))


@pytest.mark.parametrize(
    ("lesson", "message"),
    [
        (None, "a Lesson as the action; got None"),
        ([GOOD], "a Lesson as the action; got [Example("),
        (Lesson(None), "examples: "),
        (Lesson([GOOD]), "examples: "),
        (Lesson((GOOD, "What is 1+1?")), "examples.2: "),
        (Lesson(()), "at least one example"),
        (Lesson((GOOD,), "why"), "decisions: "),
        (make_bad_lesson(messages="1+1?"), "examples.2.messages: "),
        (make_bad_lesson(messages=()), "example 2 of 2 needs a question"),
        (make_bad_lesson(messages=(Message("student", "a"),)), "messages.1.role: "),
        (make_bad_lesson(messages=(Message("user", 7),)), "messages.1.content.str: "),
        (make_bad_lesson(messages=(Message("user", ()),)), "messages are empty"),
        (make_bad_lesson(messages=(Message("system", ""), Message("user", " \n"))), "messages are empty"),
        (make_bad_lesson(messages=(Message("user", "a", (ToolCall(3),)),)), "tool_calls.1.name: "),
        (make_bad_lesson(response=5), "examples.2.response: "),
        (make_bad_lesson(response=" "), "non-empty response"),
        (make_bad_lesson(skill="additon"), "'additon'; did you mean 'addition'"),
        (make_bad_lesson(metadata=[1]), "examples.2.metadata: "),
        (make_bad_lesson(metadata={"a": object()}), "metadata cannot be stored"),
        (Lesson((GOOD,), (Decision("a", "b", 3),)), "decisions.1.reason: "),
    ],
)  # fmt: skip
def test_invalid_lesson_is_refused_before_tokenization(
    lesson: Any, message: str, monkeypatch: pytest.MonkeyPatch, nano: LoadedModel
) -> None:
    student = SupervisedStudent(nano)
    monkeypatch.setattr(student, "check", lambda examples: pytest.fail("tokenised"))
    env = LessonEnv(student=student, skills=SKILLS, validation=1, test=1)
    env._over = False  # The untaught student need not be asked for this.
    for refuse in (env.check, env.step):
        with pytest.raises(LessonError) as caught:
            refuse(lesson)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)


def test_large_lesson_is_refused_before_leakage_check(monkeypatch: pytest.MonkeyPatch, nano: LoadedModel) -> None:
    env = LessonEnv(student=SupervisedStudent(nano), skills=SKILLS, validation=1, test=1, budget=3)
    env._over = False
    monkeypatch.setattr(env, "screen", lambda lesson: pytest.fail("compared"))
    with pytest.raises(LessonError, match=r"4 examples, .*3 left"):
        env.step(Lesson((GOOD,) * 4))
    with pytest.raises(LessonError, match="at most 256"):
        env.step(Lesson((replace(GOOD, response="word " * 1000),)))


@pytest.mark.parametrize(
    "values",
    [
        {"rounds": 0},
        {"rounds": -1},
        {"rounds": 1.5},
        {"budget": 0},
        {"budget": True},
        {"validation": -1},
        {"test": "3"},
    ],
)
def test_invalid_sizes_are_refused_before_model_is_loaded(values: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=f"{next(iter(values))} .*whole number"):
        LessonEnv(student="no-such-model", **values)
    with pytest.raises(PalaestraError, match="addition"):
        LessonEnv(student="no-such-model", skills=("additon",))


def test_a_round_can_pass_without_a_lesson(env: Any) -> None:
    weights = env.unwrapped.student.weights_sha256()
    state, reward, _, _, info = env.unwrapped.skip_round()
    assert (state.round, state.examples, reward, info["taught"], info["loss"]) == (1, 0, 0.0, 0, None)
    assert info["weights_sha256"] == weights
    *_, truncated, info = env.step(Lesson((GOOD,)))
    assert truncated
    assert info["weights_sha256"] != weights
